"""``tidewarden up`` as a process of its own, and what it printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.doors.command_line import app
from typer.testing import CliRunner

from benchmarks.ports import free_ports

UP = [sys.executable, "-m", "tidewarden", "up"]


def processes_in(folder: Path) -> dict[int, str]:
    """
    Every process whose command line names the folder, or that works in it as valkey-server does.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        line = ""
        # it ended; or it is a node, into which only root may look
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            line += str((entry / "cwd").readlink())
        if str(folder) in line and int(entry.name) != os.getpid():
            found[int(entry.name)] = line
    return found


class Running:
    """One ``up`` and what it printed."""

    def __init__(self, *args: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*UP, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip() for line in self.process.stdout)

    def said(self, *words: str) -> str:
        """The first line that has all the words, or nothing."""
        return next((line for line in list(self.lines) if all(word in line for word in words)), "")

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def base_port() -> int:
    """The first of a hundred ports that nobody else gets."""
    return free_ports(100)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def up(data: Path, base_port: int) -> Iterator[Callable[..., Running]]:
    """
    ``up(*arguments)`` starts one on this test's folder and ports; whatever is left at the end is
    killed.
    """
    started: list[Running] = []

    def start(*args: str) -> Running:
        started.append(Running("--data-dir", str(data), "--base-port", str(base_port), *args))
        return started[-1]

    yield start
    for running in started:
        running.stop(signal.SIGKILL)
    for pid in processes_in(data):
        os.kill(pid, signal.SIGKILL)


def leader(data: Path) -> dict[str, Any]:
    """What the leader says of itself, or nothing."""
    done = CliRunner().invoke(app, ["status", "--data-dir", str(data), "--json"])
    nodes = json.loads(done.stdout)["nodes"] if done.stdout else []
    return next((node for node in nodes if node["role"] == "leader"), {})
