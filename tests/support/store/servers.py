"""A real store in memory, started for a test session."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis


@dataclass(frozen=True)
class StoreServer:
    """A running valkey-server: ``path`` of its socket, ``url`` for clients."""

    path: str
    url: str
    lasts: bool = False
    """Whether it serves the whole session, test after test."""

    @functools.cached_property
    def client(self) -> redis.Redis:
        """The connection of those who prepare and audit what tests use."""
        return redis.Redis(unix_socket_path=self.path)


BECOME = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def serve(binary: str, folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], StoreServer]:
    """Start a store in ``folder`` on a Unix socket there, and wait until it answers."""
    path = folder / "s"
    process = subprocess.Popen(  # it dies with us, also when we are killed
        [
            sys.executable,
            "-ISc",
            BECOME,
            str(os.getpid()),
            binary,
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--save",
            "",
            "--dir",
            str(folder),
            *options,
        ],
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    client = redis.Redis(unix_socket_path=str(path))
    while True:
        try:
            client.ping()
            client.close()
            return process, StoreServer(str(path), f"unix://{path}")
        except (redis.ConnectionError, redis.BusyLoadingError):
            assert process.poll() is None, f"{binary} ended"
            assert time.monotonic() < until, f"{binary} did not come up"
            time.sleep(0.01)


def serving(binary: str) -> Iterator[StoreServer]:
    """A store of this test session, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    process, server = serve(binary, folder)
    server = dataclasses.replace(server, lasts=True)
    try:
        yield server
    finally:
        server.client.close()
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
