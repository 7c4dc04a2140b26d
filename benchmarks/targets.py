"""What a benchmark drives: processes on free ports, ended with their block."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from tidewarden.clock import SystemClock
from tidewarden.config.load import Store
from tidewarden.store.embedded.server import EmbeddedStore, store_password

if TYPE_CHECKING:
    from benchmarks.connections import Connection

START_S = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """A peer is not installed; the message says how it would be."""


@dataclass(frozen=True)
class Target:
    """What is measured: where it listens, how it is spoken to, whose processor time counts."""

    name: str
    host: str
    port: int
    pids: dict[str, int]
    connection: type[Connection]
    auth: tuple[str, ...] = ()
    version: str = ""
    engine: str = ""
    """URL of the store under it, where there is one."""


def cpu_s(pid: int) -> float:
    """Processor seconds a process has used, all its threads."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def binary_of(name: str, package: str) -> str:
    """
    Where a peer's program is.

    Raises: Missing.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin")
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install {package}")
    return found


def wait_port(
    process: subprocess.Popen[bytes], port: int, log: Path, host: str = "127.0.0.1"
) -> None:
    """
    Return when ``process`` listens on ``port``.

    Raises: SystemExit: it ended, or does not after half a minute; with the end of its log.
    """
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} does not listen on {port}:\n{log.read_text()[-2000:]}")


def stop(process: subprocess.Popen[bytes], grace_s: float = 20.0) -> None:
    """End a process that we started, and whatever it started in its group."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process that we started and its group."""
    if process.poll() is None:  # not reaped, so its number is still its own
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@contextlib.contextmanager
def process_of(
    command: list[str],
    folder: Path,
    name: str,
    surroundings: Mapping[str, str] | None = None,
    grace_s: float = 20.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours in a group of its own, its output in ``folder``, ended with the block."""
    with (folder / f"{name}.out").open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=surroundings,
        )
    try:
        yield process
    finally:
        stop(process, grace_s)


@contextlib.contextmanager
def running(
    command: list[str],
    port: int,
    folder: Path,
    name: str,
    surroundings: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The same, once it listens on ``port``."""
    with process_of(command, folder, name, surroundings) as process:
        wait_port(process, port, folder / f"{name}.out")
        yield process


def child_of(pid: int, name: str) -> int | None:
    """A child process whose name begins so."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            if rest.split()[1] == str(pid) and head.partition("(")[2].startswith(name):
                return int(stat.parent.name)
    return None


def parts_of(pid: int) -> dict[str, int]:
    """The front's process, and the engine's and further fronts' where they are children of it."""
    engine = child_of(pid, "valkey") or child_of(pid, "redis")
    further = {f"front {number}": child for number, child in enumerate(fronts_of(pid), 2)}
    return {"front": pid} | further | ({"engine": engine} if engine else {})


def fronts_of(pid: int) -> list[int]:
    """A node's further processes (``node.processes``)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if (
                parent == str(pid)
                and b"tidewarden.node.secondary" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
    return sorted(found)


def engine_url(data: Path) -> str:
    """URL of the embedded store of a node (or a cluster of ``up``) with its data in that folder."""
    secret = (data / "secrets" / "cluster.key").read_text().strip()
    return EmbeddedStore(data / "store", Store(), "", store_password(secret), SystemClock()).url


def engine_bytes(url: str) -> int:
    """What a store says it uses, once nothing is freed or rewritten behind its back any more."""
    with redis.Redis.from_url(url, socket_timeout=None, retry=None) as store:
        before = -1
        while True:
            info = store.info("everything")
            used = int(info["used_memory"])
            busy = info["lazyfree_pending_objects"] or info["aof_rewrite_in_progress"]
            if not busy and abs(used - before) < 10_000:
                return used
            before = used
            time.sleep(0.2)


def start_peers(
    stack: contextlib.ExitStack, *starts: Callable[[], contextlib.AbstractContextManager[Target]]
) -> list[Target]:
    """Those peers that are installed; a line for each that is not."""
    found: list[Target] = []
    for start in starts:
        try:
            found.append(stack.enter_context(start()))
        except Missing as missing:
            print(missing)
    return found
