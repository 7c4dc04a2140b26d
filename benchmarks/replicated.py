"""
Measures queues on three hosts of one machine, each message thrice, beside NATS and RabbitMQ.

    python -m benchmarks.replicated [--fsync] [--seconds 8] [--only nats,rabbitmq] [--kills 5]

Ours are three nodes, each with its own embedded store; NATS JetStream is a work queue of three
replicas whose acks are confirmed; RabbitMQ a quorum queue, which syncs each write before it
confirms it and confirms no acks. All run at once, and rounds take turns.

- *cycle*: put → take → ack at 50 connections, each waiting for each answer, all at the host that
  takes the writes, and spread over the three; processor µs per cycle of all servers, with what they
  start.
- *memory*: resident memory of all servers that a pending message of 100 bytes adds.
- *gap*: the host that takes the writes is ended by SIGKILL; the longest time without an answered
  put, seen at the others.
- *redelivery*: the process of a consumer that holds a message is ended by SIGKILL; until another
  has it.

With ``--fsync`` every write is on the disks of a majority before its answer: ours with
``store.fsync = "always"`` and the queue's durability ``fsync``, NATS with ``sync_interval always``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import gaps, machine
from benchmarks.connections import CONNECTIONS, PAYLOAD, Broken, Cycle, Fill, Round, connected
from benchmarks.disconnect import Heir, Holder, Seat, in_a_process
from benchmarks.machine import median
from benchmarks.targets import Missing, Target
from benchmarks.trios import nats, rabbitmq, tidewarden
from benchmarks.trios.trio import HOSTS, Trio, rate_of

LIMIT_RATE, LIMIT_CPU, LIMIT_BYTES = 1.8, 0.5, 1000
LIMIT_FSYNC_RATE = {"rabbitmq": 1.3}
ROUNDS = 3
FILLED_S, WARM_S = 300.0, 1.0
WATCHED_S = 3.0
STARTS: dict[str, Callable[..., contextlib.AbstractContextManager[Trio]]] = {
    "tidewarden": tidewarden.started,
    "nats": nats.started,
    "rabbitmq": rabbitmq.started,
}


@dataclass
class Found:
    """A system's figures."""

    version: str
    at_leader: list[Round] = field(default_factory=list)
    everywhere: list[Round] = field(default_factory=list)
    message_bytes: float = 0.0
    passing_bytes: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    redelivery_ms: list[float] = field(default_factory=list)


class Successor(Heir):
    """Takes at once, and acknowledges."""

    def begin(self) -> None:
        self.take()


async def redelivery_ms(target: Target) -> float:
    """
    From the end of a consumer's process until another has what it held.

    Raises: Broken, TimeoutError.
    """
    held, seat = Seat(stopping=True), Seat()
    async with connected(target, Holder, held) as (holder,), asyncio.timeout(30):
        await held.task
        async with connected(target, Successor, seat):
            await asyncio.sleep(0.1)  # it waits
            with in_a_process(holder) as end:
                await asyncio.sleep(0.01)
                began = time.perf_counter()
                end()
                taken = (await seat.task - began) * 1000
            await asyncio.sleep(0.05)  # it has acknowledged
    return taken


async def fill(trio: Trio, count: int, into: Found) -> None:
    """Put so many messages; the bytes that each takes in all servers. Raises: Broken."""
    passing, before = trio.passing(), await asyncio.to_thread(trio.resident)
    leader = [trio.leader()]
    put = await rate_of(trio, leader, Fill, CONNECTIONS, FILLED_S, rounds_max=count, warm_s=0)
    grown = await asyncio.to_thread(trio.resident) - before
    into.passing_bytes = (trio.passing() - passing) / max(1, put.count)
    into.message_bytes = grown / max(1, put.count) - into.passing_bytes


async def kill_the_leader(trio: Trio) -> float:
    """
    Seconds without an answered put at the other hosts, after the SIGKILL of the leader's.

    Raises: Broken.
    """
    await asyncio.to_thread(trio.settle)
    victim = await asyncio.to_thread(trio.leader)
    rest = {number: trio.target(number) for number in range(HOSTS) if number != victim}
    async with gaps.writing(rest) as logs:
        await asyncio.sleep(1)
        since = time.perf_counter()
        trio.servers[victim].kill()
        found = await gaps.gap(logs, since, WATCHED_S)
    trio.servers[victim].start()
    await asyncio.to_thread(trio.servers[victim].listens)
    return found


async def measure(trios: list[Trio], options: Any) -> dict[str, Found]:
    """Everything of each, rates in turns. Raises: Broken."""
    found = {trio.name: Found(trio.version) for trio in trios}
    for trio in trios:  # while it is fresh: what rounds leave behind is given back late
        await rate_of(trio, [trio.leader()], Cycle, options.connections, WARM_S)
        if options.pending:
            await fill(trio, options.pending, found[trio.name])
        trio.purge()
    for number in range(ROUNDS):
        for trio in trios if number % 2 == 0 else trios[::-1]:
            mine, share_s = found[trio.name], options.seconds / ROUNDS
            at = [trio.leader()]
            mine.at_leader.append(await rate_of(trio, at, Cycle, options.connections, share_s))
            everywhere = list(range(HOSTS))
            spread = await rate_of(trio, everywhere, Cycle, options.connections, share_s)
            mine.everywhere.append(spread)
    for trio in trios:
        if not trio.redelivery:
            trio.purge()  # an ack may be lost with a connection that is closed behind it
            leader = trio.target(trio.leader())
            mine = found[trio.name]
            mine.redelivery_ms = [await redelivery_ms(leader) for _ in range(options.deaths)]
    for trio in trios:
        for _ in range(options.kills):
            found[trio.name].gaps_s.append(await kill_the_leader(trio))
    return found


def middle(values: list[float], digits: int) -> str:
    """Their median, or that there is none."""
    return f"{median(values):,.{digits}f}" if values else "-"


def report(found: dict[str, Found], trios: list[Trio], options: Any) -> None:
    """The table and the limits."""
    print(
        f"\n{'':10}  {'at the leader':>23}  {'at all hosts':>23}  {'bytes':>7}  {'gap s':>13}"
        f"  {'redelivery':>12}\n{'':10}  {'cycles/s':>11} {'servers µs':>11}  {'cycles/s':>11}"
        f" {'servers µs':>11}  {'pending':>7}  {'median  worst':>13}  {'ms':>12}"
    )
    for trio in trios:
        mine = found[trio.name]
        cells = [
            f"{middle([one.rate for one in rounds], 0):>11}"
            f" {middle([one.cpu_us['servers'] for one in rounds], 0):>11}"
            for rounds in (mine.at_leader, mine.everywhere)
        ]
        worst = f"{max(mine.gaps_s):.2f}" if mine.gaps_s else "-"
        print(
            f"{trio.name:10}  {cells[0]}  {cells[1]}  {mine.message_bytes or 0:>7,.0f}"
            f"  {middle(mine.gaps_s, 2):>6} {worst:>6}"
            f"  {trio.redelivery or middle(mine.redelivery_ms, 1):>12}"
        )
    if "tidewarden" not in found:
        return
    ours = found["tidewarden"]
    for place, rounds in (("the leader", ours.at_leader), ("all hosts", ours.everywhere)):
        parts = {name: median([one.cpu_us[name] for one in rounds]) for name in rounds[0].cpu_us}
        shown = ", ".join(f"{name} {us:.0f}" for name, us in parts.items())
        print(f"ours, µs of a cycle at {place}: {shown}")
    for name, peer in found.items():
        if peer is not ours:
            compare(ours, name, peer, options.fsync)
    if options.pending and not options.fsync:
        print(
            f"ours fills backlogs of replication besides, to their size, with"
            f" {ours.passing_bytes:,.0f} bytes of each put"
        )
        print(
            f"pending: {machine.against(LIMIT_BYTES, ours.message_bytes, least=False, unit=' B')}"
        )


def compare(ours: Found, name: str, peer: Found, fsync: bool) -> None:
    """The ratios to one peer, for both placements, beside the limits."""
    for place, mine, theirs in (
        ("at the leader", ours.at_leader, peer.at_leader),
        ("at all hosts", ours.everywhere, peer.everywhere),
    ):
        rate = median([one.rate for one in mine]) / median([one.rate for one in theirs])
        cpu_us = [median([one.cpu_us["servers"] for one in rounds]) for rounds in (mine, theirs)]
        cpu = cpu_us[0] / cpu_us[1]
        limit = LIMIT_FSYNC_RATE.get(name) if fsync else LIMIT_RATE
        of_rate = machine.against(limit, rate, least=True, unit=" ×") if limit else ""
        of_cpu = "" if fsync else machine.against(LIMIT_CPU, cpu, least=False, unit=" ×")
        print(
            f"of {name}, {place}: {rate:.2f} × the cycles/s  {of_rate}; {cpu:.2f} × the servers'"
            f" µs  {of_cpu}".rstrip()
        )


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("queues on three hosts of one machine, beside NATS and RabbitMQ")
    parser.add_argument("--only", default="", help=f"some, by commas: {', '.join(STARTS)}")
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="of each system's cycles at one placement"
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of the cycles")
    parser.add_argument("--pending", type=int, default=200_000, help="messages; 0: none")
    parser.add_argument("--kills", type=int, default=3, help="of each leader's host; 0: none")
    parser.add_argument("--deaths", type=int, default=10, help="of consumers, of each system")
    parser.add_argument(
        "--fsync", action="store_true", help="every write on a majority's disks before its answer"
    )
    options = parser.parse_args(argv)
    names = [name for name in options.only.split(",") if name] or list(STARTS)
    if unknown := set(names) - STARTS.keys():
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(STARTS)}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(machine.own_folder(options.folder)))
        if options.fsync and machine.file_system(folder) in ("tmpfs", "ramfs"):
            parser.error(f"{folder} lies in memory, where fsync costs nothing: name a --folder")
        trios: list[Trio] = []
        try:
            for name in names:
                try:
                    trios.append(stack.enter_context(STARTS[name](folder, fsync=options.fsync)))
                except Missing as missing:
                    print(missing)
            machine.print_machine(folder, *(trio.version for trio in trios))
            print(f"payload {len(PAYLOAD)} bytes; {HOSTS} hosts on this machine", flush=True)
            report(machine.run(measure(trios, options)), trios, options)
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
