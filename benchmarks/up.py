"""Nodes as ``tidewarden up`` runs them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.connections import Broken
from benchmarks.ports import free_ports
from benchmarks.targets import process_of


@dataclass(frozen=True)
class Up:
    """Holds a running ``tidewarden up``, and what is said to its nodes."""

    process: subprocess.Popen[bytes]
    ports: list[int]
    data: Path
    secret: str
    ready_s: float
    """From the start of the process until every node served."""


@contextlib.contextmanager
def running_up(
    folder: Path,
    nodes: int,
    *words: str,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    limit_s: float = 90.0,
) -> Iterator[Up]:
    """
    Run so many nodes with their data in ``folder``.

    ``words``: more for the command line. ``limit_s``: for the start, and for the end.

    Raises: Broken: it does not become ready.
    """
    base, data, log = free_ports(10 * nodes), folder / "up", folder / "up.out"
    command = [python, "-m", "tidewarden", "up", "--nodes", str(nodes)]
    command += ["--base-port", str(base), "--data-dir", str(data), *words]
    said = log.stat().st_size if log.exists() else 0
    began = time.monotonic()
    with process_of(command, folder, "up", environ, limit_s) as process:
        while b"READY" not in log.read_bytes()[said:]:
            if process.poll() is not None or time.monotonic() > began + limit_s:
                raise Broken(f"tidewarden up did not become ready:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        ready_s = time.monotonic() - began
        secret = (data / "secrets" / "admin.secret").read_text().strip()
        ports = [base + 10 * number for number in range(nodes)]
        yield Up(process, ports, data, secret, ready_s)
