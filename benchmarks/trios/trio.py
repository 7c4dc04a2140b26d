"""Three servers that hold every message thrice: what a benchmark asks of any such system."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.connections import Board, Broken, Connection, Round, connected
from benchmarks.targets import TICKS, Target, kill, resident_bytes, stop, wait_port

HOSTS = 3
WHOLE_S = 120.0


@dataclass
class Server:
    """One host's program, and whatever it starts."""

    name: str
    port: int
    command: list[str]
    folder: Path
    surroundings: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / f"{self.name}.out"

    def start(self) -> None:
        """Start it; :meth:`listens` waits for it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **self.surroundings},
            )

    def listens(self) -> None:
        """Return when it takes connections. Raises: SystemExit: it does not."""
        assert self.process is not None
        wait_port(self.process, self.port, self.log, self.host)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def processes(self) -> list[int]:
        """Its processes: what we started, and all below it."""
        return tree(self.process.pid) if self.process is not None and self.runs else []

    def kill(self) -> None:
        """SIGKILL to all of it at once, as if its host had died."""
        assert self.process is not None
        every = self.processes()
        for pid in every:  # none of them is to see another go first
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in every:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def close(self) -> None:
        """End it, and what it has left behind."""
        if self.process is None:
            return
        below = self.processes()[1:]
        if self.runs:
            stop(self.process)
        else:
            kill(self.process)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def tree(pid: int) -> list[int]:
    """A process and all that descend from it, those last that were started last."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += sorted(child for child, parent in parents.items() if parent == one)
    return found


def called(pid: int) -> str:
    """A process's program; a thread of it may have named it anew."""
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).partition(" ")[0]
    return "?"


def used_s(pid: int) -> float:
    """Processor seconds of a process, and of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


@dataclass
class Trio:
    """
    Three servers, and how their queue is spoken to.

    ``leader``: the number of the server that takes the queue's writes. ``whole``: whether all three
    hold everything.
    """

    name: str
    version: str
    servers: list[Server]
    connection: type[Connection]
    leader: Callable[[], int]
    whole: Callable[[], bool]
    purge: Callable[[], None]
    """No message is left."""
    auth: tuple[str, ...] = ()
    redelivery: str = ""
    """Why a consumer's death is not noticed by its closed connection, and when it is."""
    passing: Callable[[], int] = lambda: 0
    """Bytes of all servers that do not grow with messages, but with what was written."""
    hops: Callable[[], int] = lambda: 0
    """What the server that takes the writes has read from connections, and written to them."""

    def target(self, number: int) -> Target:
        """One of the servers."""
        server = self.servers[number]
        return Target(
            self.name, server.host, server.port, {}, self.connection, self.auth, self.version
        )

    def cpu_s(self) -> Counter[str]:
        """Processor seconds of all servers, by what their programs are called."""
        found: Counter[str] = Counter()
        for server in self.servers:
            for pid in server.processes():
                found[called(pid)] += used_s(pid)
        return found

    def resident(self) -> int:
        """Memory of all servers, once it has stood still for a second."""
        before, until = -1, time.monotonic() + 20
        while True:
            now = 0
            for server in self.servers:
                for pid in server.processes():
                    with contextlib.suppress(OSError):
                        now += resident_bytes(pid)
            if abs(now - before) < 200_000 or time.monotonic() > until:
                return now
            before = now
            time.sleep(1)

    def settle(self, limit_s: float = WHOLE_S) -> None:
        """Wait until all three hold everything. Raises: Broken: it takes too long."""
        until = time.monotonic() + limit_s
        while not self.whole():
            if time.monotonic() > until:
                raise Broken(f"{self.name}: its copies are not whole after {limit_s:g} s")
            time.sleep(0.1)


@contextlib.contextmanager
def running(servers: list[Server]) -> Iterator[None]:
    """Start them all at once; they are ended with the block."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.listens()
        yield
    finally:
        for server in reversed(servers):
            server.close()


async def rate_of(
    trio: Trio,
    hosts: list[int],
    role: type[Connection],
    connections: int,
    seconds: float,
    *,
    rounds_max: int = 0,
    warm_s: float = 0.5,
) -> Round:
    """
    Play ``role`` on connections that are spread over those servers.

    Raises: Broken.
    """
    board = Board(rounds_max=rounds_max)
    share, more = divmod(connections, len(hosts))
    async with contextlib.AsyncExitStack() as stack:
        for place, host in enumerate(hosts):
            count = share + (place < more)
            await stack.enter_async_context(connected(trio.target(host), role, board, count))
        await asyncio.sleep(warm_s)
        began, before, used, own = look(trio, board)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await board.reached.wait()
        ended, after, used_after, own_after = look(trio, board)
    count = max(1, after - before)
    cpu_us = {name: (used_after[name] - used[name]) / count * 1e6 for name in used_after}
    cpu_us["servers"] = sum(cpu_us.values())
    cpu_us["client"] = (own_after - own) / count * 1e6
    return Round((after - before) / (ended - began), after - before, cpu_us)


def look(trio: Trio, board: Board) -> tuple[float, int, Counter[str], float]:
    """Time, rounds, and processor seconds of the servers and of this process."""
    return time.perf_counter(), board.rounds, trio.cpu_s(), time.process_time()
