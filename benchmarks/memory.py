"""
Bytes of memory per stored task, beside Tarantool and beanstalkd.

    python -m benchmarks.memory [--tasks 200000] [--body 136]

A body of 136 bytes under an id of 16, delayed and ready. Ours goes through the product's own
scripts into the embedded store of a node, as the daemon starts it, and is the difference of
``used_memory``; Tarantool's is tuples and indexes; beanstalkd, which has no figure of its own, is
judged by resident memory. *The queue adds* is the difference to the same record stored without a
queue in the same engine: here in hashes of 64 records (the tightest plain way of the store; one big
hash is printed beside it), there in a space with a primary key.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks import machine
from benchmarks.desk import Desk
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.targets import Missing, Target
from tidewarden.queue import TaskSpec

LIMIT_WHOLE, LIMIT_ADDED, AIM_ADDED = 231, 35, 25
BATCH = 2000
TIGHT_ENTRIES = 64
DAY_MS = 86_400_000


@dataclass
class Memory:
    """Bytes a task: delayed, ready, and the record alone (0: not known)."""

    name: str
    delayed: float
    ready: float
    record: float
    version: str
    note: str = ""


def id_of(number: int) -> str:
    """16 characters, in no order."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def batches(count: int) -> Iterator[range]:
    """The numbers below ``count``, in pieces."""
    for begin in range(0, count, BATCH):
        yield range(begin, min(count, begin + BATCH))


def spread(dice: random.Random, body: bytes, numbers: Iterable[int]) -> list[TaskSpec]:
    """Tasks that are due some time tomorrow."""
    return [
        TaskSpec(payload=body, id=id_of(n), delay_ms=DAY_MS + dice.randrange(DAY_MS))
        for n in numbers
    ]


def fill_queue(target: Target, state: str, count: int, body: bytes) -> float:
    """
    Put ``count`` tasks into a queue of their own.

    Returns the bytes that each takes. They are removed again.
    """
    desk = Desk(target.engine, f"bench.memory-{state}")
    dice = random.Random(1)
    desk.put([TaskSpec(payload=body, id="first")])
    desk.ack(desk.take(1))
    before = tidewarden.memory_bytes(target)
    for numbers in batches(count):
        desk.put(
            spread(dice, body, numbers)
            if state == "delayed"
            else [TaskSpec(payload=body, id=id_of(number)) for number in numbers]
        )
    found = (tidewarden.memory_bytes(target) - before) / count
    remove(desk.client, desk.keys[0])
    desk.close()
    return found


def remove(client: redis.Redis, prefix: str) -> None:
    """Every key that begins so."""
    names = list(client.scan_iter(f"{prefix}*", count=10_000))
    for begin in range(0, len(names), BATCH):
        client.delete(*names[begin : begin + BATCH])


def fill_plain(target: Target, count: int, body: bytes, entries: int) -> float:
    """Records without a queue, so many to a hash; the bytes that each takes."""
    settings = ("hash-max-listpack-value", "hash-max-listpack-entries")
    with redis.Redis.from_url(target.engine) as client:
        old = {name: client.config_get(name)[name] for name in settings}
        client.config_set(settings[0], 4096)
        client.config_set(settings[1], TIGHT_ENTRIES)
        before = tidewarden.memory_bytes(target)
        for numbers in batches(count):
            pipeline = client.pipeline(transaction=False)
            for number in numbers:
                pipeline.hset(f"plain:{number // entries}", id_of(number), body)
            pipeline.execute()
        found = (tidewarden.memory_bytes(target) - before) / count
        remove(client, "plain:")
        for name, value in old.items():
            client.config_set(name, value)
    return found


def ours(folder: Path, count: int, body: bytes) -> Memory:
    with tidewarden.started(folder) as target:
        tight, big = (
            fill_plain(target, count, body, TIGHT_ENTRIES),
            fill_plain(target, count, body, count),
        )
        return Memory(
            target.name,
            fill_queue(target, "delayed", count, body),
            fill_queue(target, "ready", count, body),
            tight,
            target.version,
            f"in one big hash {big:.0f}",
        )


def of_tarantool(folder: Path, count: int, body: bytes) -> Memory:
    with tarantool.started(folder, wal="none") as target:
        seen = [tarantool.memory_bytes(target)]
        for delay_ms, plain in ((0, True), (DAY_MS, False), (0, False)):
            tarantool.ask(target, "fill", count, len(body), delay_ms, plain)
            seen.append(tarantool.memory_bytes(target))
        record, delayed, ready = (
            (after - before) / count for before, after in itertools.pairwise(seen)
        )
        return Memory(target.name, delayed, ready, record, target.version)


def of_beanstalkd(folder: Path, count: int, body: bytes) -> Memory:
    found = []
    for delay_s in (DAY_MS // 1000, 0):
        with beanstalkd.started(folder) as target:
            before = beanstalkd.memory_bytes(target)
            beanstalkd.fill(target, count, body, delay_s)
            found.append((beanstalkd.memory_bytes(target) - before) / count)
            version = target.version
    return Memory(
        "beanstalkd", found[0], found[1], 0, version, "resident memory, its ids are numbers"
    )


def report(rows: list[Memory]) -> None:
    print(
        f"\n{'bytes a task':12}  {'record alone':>12}  {'delayed':>8}  {'it adds':>8}  {'ready':>8}"
        f"  {'it adds':>8}"
    )
    for row in rows:
        adds = [
            f"{whole - row.record:>8.0f}" if row.record else f"{'-':>8}"
            for whole in (row.delayed, row.ready)
        ]
        record = f"{row.record:>12.0f}" if row.record else f"{'-':>12}"
        print(
            f"{row.name:12}  {record}  {row.delayed:>8.0f}  {adds[0]}  {row.ready:>8.0f}  {adds[1]}"
            f"  {row.note}".rstrip()
        )
    mine = rows[0]
    for peer in rows[1:]:
        print(
            f"{'ratio':12}  {'':12}  {mine.delayed / peer.delayed:>8.2f}  {'':8} "
            f" {mine.ready / peer.ready:>8.2f}  of {peer.name}"
        )
    added = mine.delayed - mine.record
    print(
        f"whole, delayed: {machine.against(LIMIT_WHOLE, mine.delayed, least=False)};"
        " the queue adds:"
        f" {machine.against(LIMIT_ADDED, added, least=False, aim=f', aim {AIM_ADDED}')}"
    )


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("bytes of memory per stored task")
    parser.add_argument("--tasks", type=int, default=200_000, help="tasks of each kind")
    parser.add_argument("--body", type=int, default=136, help="bytes of a payload")
    options = parser.parse_args(argv)
    body = b"x" * options.body
    rows: list[Memory] = []
    with machine.own_folder(options.folder) as folder:
        for measure in (ours, of_tarantool, of_beanstalkd):
            with contextlib.ExitStack() as stack:
                inside = Path(stack.enter_context(machine.own_folder(folder)))
                try:
                    rows.append(measure(inside, options.tasks, body))
                except Missing as missing:
                    print(missing)
        machine.print_machine(folder, *(row.version for row in rows))
    print(f"{options.tasks:,} tasks, body {options.body} bytes, id 16")
    report(rows)


if __name__ == "__main__":
    main()
