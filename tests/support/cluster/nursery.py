"""
Nodes as copies of a process that has imported the product and done nothing else.

Importing it takes most of a node's start, and live tests start a hundred nodes.
``live/up/test_up.py``, ``live/up/test_examples.py`` and others start them as users do.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.network import CLONE_NEWNET

PDEATHSIG = 1
TESTS = Path(__file__).parents[2]
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(["support.cluster.nursery", "support.cluster.grown"])


def link_password(secret: str, cluster: str) -> str:
    """
    Of the nursery's nodes, in place of the product's: to stretch it takes half as long as the rest
    of a copy's start.
    """
    return f"{secret} of {cluster}"


def become(
    config: Path,
    output: Path,
    environ: dict[str, str],
    namespace: str,
    store_wait_s: float,
    before: Callable[[], None] | None,
    verb: str = "node",
) -> None:
    """
    ``tidewarden node --config`` (or another verb) in this process, which cannot outlive the nursery, as that cannot
    outlive us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if namespace:
        place = os.open(namespace, os.O_RDONLY)
        if libc.setns(place, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
        os.close(place)
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in (1, 2):
        os.dup2(file, number)
    from tidewarden.cli import main
    from tidewarden.node import store_links

    store_links.STORE_WAIT_S = store_wait_s or store_links.STORE_WAIT_S
    if before is not None:
        before()
    sys.argv = ["tidewarden", verb, "--config", str(config)]
    main()


def begin(function: Callable[..., None], *args: Any) -> BaseProcess:
    """A process that was copied from the nursery, and does this."""
    environ = dict(os.environ)
    os.environ["PYTHONPATH"] = (
        # by this alone it finds what to import
        f"{TESTS}{os.pathsep}{environ.get('PYTHONPATH', '')}"
    )
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(environ)
    process = NURSERY.Process(target=function, args=args)
    process.start()
    return process


class Child:
    """As much of subprocess.Popen as a node's test needs."""

    def __init__(
        self,
        config: Path,
        output: Path,
        namespace: str = "",
        store_wait_s: float = 0,
        before: Callable[[], None] | None = None,
        verb: str = "node",
    ) -> None:
        """
        A node by its configuration file; what it prints is appended to ``output``.

        ``namespace``: as of :func:`support.cluster.processes.spawn`. ``store_wait_s``: how long it
        waits for its store; 0: as usual. ``before``: what it does before it is a node; a function
        of a module, or a partial of one. ``verb``: ``store`` for its store's host.
        """
        self._process = begin(
            become, config, output, dict(os.environ), namespace, store_wait_s, before, verb
        )
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, limit_s: float) -> int:
        """Its exit code. Raises: subprocess.TimeoutExpired."""
        self._process.join(limit_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, limit_s)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()
