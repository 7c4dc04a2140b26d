"""
Measures many accounts in one store: loading, memory, and whether a refresh costs more among them.

    python -m benchmarks.fleet [--accounts 200000] [--beside 10000] [--seconds 60]

Two stores, each under a node as ``tidewarden up`` runs it: one with ``--accounts``, the other with
``--beside``. Accounts have two sealed tokens of 64 characters and are refreshed once an hour,
spread evenly over it. In this order:

- *load*: by the product's own put script, in batches from one process that seals them; the rate;
- *memory*: the engine's ``used_memory`` an account, and how much of it are the rows alone, as
  ``MEMORY USAGE`` has it: the rest is the queue's, its index of due times and what tasks have of
  records by themselves apart from all else that the store holds;
- *steady*: ``--seconds`` of refreshing what falls due, against an endpoint that costs nothing: how
  far it is behind, processor time by part;
- *restart*: from the start of the processes until the node serves;
- *engine*: the scripts of a refresh driven straight, with a clock that runs as fast as needed:
  moving due tasks (what the sweep does), taking, intent and write-back; µs of the store an account,
  by its own count, in one store and in the other.

Ten million accounts take 3.6 GB of memory for the store, up to as much again while its log is
rewritten, 4 GB of disk, and half an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks import machine, token_endpoint
from benchmarks.accounts import CLUSTER, QUEUE, Fleet, Loader, fleet_up, name_of
from benchmarks.connections import Broken
from benchmarks.desk import Desk
from benchmarks.machine import median
from benchmarks.targets import engine_bytes
from benchmarks.token_endpoint import Endpoint
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.accounts.account_record import parse_row

LIMIT_ENGINE, LIMIT_ADDED, AIM_ADDED = 2.5, 35, 25
HOUR_MS = 3_600_000
LIFE_S = 3900  # of which five minutes are the margin: an account is refreshed once an hour
CHUNK = 20_000
STEP = 50
ROUNDS = 3
PHASES = ("due", "take", "intent", "stored")


@dataclass
class Store:
    """One store with its accounts, and what was found there."""

    name: str
    accounts: int
    folder: Path
    begin_ms: int = 0
    """When the first of them falls due."""
    loaded_s: float = 0.0
    whole_bytes: float = 0.0
    rows_bytes: float = 0.0
    index_bytes: float = 0.0
    ready_bytes: float = 0.0
    """
    Of tasks that fell due before all were loaded; each takes more there than while it was delayed.
    """
    records_bytes: float = 0.0
    ready_s: float = 0.0
    engine_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of the engine, µs an account, by phase, round by round."""


async def load(store: Store, fleet: Fleet, rate: float) -> None:
    """Put all accounts; ``rate``: how many a second that will be, about."""
    before = engine_bytes(fleet.url)
    loader, progress = Loader(fleet), Progress()
    await loader.start()
    began = time.perf_counter()
    store.begin_ms = int(time.time() * 1000 + (store.accounts / rate * 1.3 + 15) * 1000)
    try:
        for first in range(0, store.accounts, CHUNK):
            numbers = range(first, min(store.accounts, first + CHUNK))
            # In an order that has nothing to do with the names.
            places = [
                store.begin_ms + HOUR_MS * (n * 7919 % store.accounts) // store.accounts
                for n in numbers
            ]
            await loader.load([name_of(n) for n in numbers], places.__getitem__)
            passed_s = time.perf_counter() - began
            progress.say(
                f"{numbers.stop:,} of {store.accounts:,} accounts, {numbers.stop / passed_s:,.0f} a"
                " second"
            )
    finally:
        progress.end()
        await loader.stop()
    store.loaded_s = time.perf_counter() - began
    store.whole_bytes = (engine_bytes(fleet.url) - before) / store.accounts
    weigh(store, fleet)
    added = store.whole_bytes - store.rows_bytes
    rest = added - store.index_bytes - store.ready_bytes - store.records_bytes
    print(
        f"{store.accounts:,} accounts loaded in {store.loaded_s:,.1f} s,"
        f" {store.accounts / store.loaded_s:,.0f} a second; {store.whole_bytes:.1f} bytes each:"
        f" {store.rows_bytes:.1f} the row, {added:.1f} the queue, of these {store.index_bytes:.1f}"
        f" its index, {store.ready_bytes:.1f} what is due already, {store.records_bytes:.1f}"
        f" records of tasks, {rest:.1f} all else",
        flush=True,
    )


def weigh(store: Store, fleet: Fleet) -> None:
    """What the keys of a store say of their memory, as bytes an account."""
    found: dict[str, int] = defaultdict(int)
    with fleet.store() as client:
        prefix = f"{prefix_of(CLUSTER, QUEUE, 0)}:"
        names = list(client.scan_iter(f"{prefix}*", count=10_000))
        for first in range(0, len(names), 1000):
            pipeline = client.pipeline(transaction=False)
            for name in names[first : first + 1000]:
                pipeline.memory_usage(name, samples=0)
            for name, used in zip(names[first : first + 1000], pipeline.execute(), strict=True):
                found[name.decode().removeprefix(prefix).partition(":")[0]] += used or 0
    store.rows_bytes = found["accounts"] / store.accounts
    store.index_bytes = (found["delayed"] + found["pieces"]) / store.accounts
    store.ready_bytes = found["ready"] / store.accounts
    store.records_bytes = (found["tasks"] + found["tries"]) / store.accounts


class Progress:
    """How far it is: on a terminal always, in a file a line a minute."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """So far."""
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() > self._last + 60:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Nothing more: the line is the report's."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


async def steady(store: Store, fleet: Fleet, endpoint: Endpoint, seconds: float) -> None:
    """Refresh what falls due, for so long."""
    due = lambda: max(0.0, (time.time() * 1000 - store.begin_ms) / HOUR_MS * store.accounts)  # noqa: E731
    late_s = time.time() - store.begin_ms / 1000
    if late_s < 0:
        await asyncio.sleep(-late_s)
    else:
        print(
            f"loading took longer than was thought: {due():,.0f} accounts are due already",
            flush=True,
        )
    first, first_due, used, began = endpoint.answered(), due(), fleet.used_s(), time.perf_counter()
    behind: list[float] = []
    while time.perf_counter() < began + seconds:
        await asyncio.sleep(0.5)
        behind.append(due() - endpoint.answered())
    passed_s, done = time.perf_counter() - began, endpoint.answered() - first
    parts = {part: spent - used[part] for part, spent in fleet.used_s().items()}
    shown = ", ".join(f"{part} {spent / passed_s:.0%}" for part, spent in parts.items())
    wanted = (due() - first_due) / passed_s
    print(
        f"steady for {passed_s:.0f} s: {done / passed_s:,.1f} refreshes a second of {wanted:,.1f}"
        f" that fall due; behind by {max(0, median(behind)):,.0f} accounts, at most"
        f" {max(0, *behind):,.0f}; of a processor: {shown}",
        flush=True,
    )
    each = ", ".join(f"{part} {spent / max(1, done) * 1e6:.0f}" for part, spent in parts.items())
    print(f"  processor µs a refresh, with all that a node does beside: {each}")


class Engine:
    """The scripts of refreshes, driven straight at the shard, at a clock of its own."""

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self._store = store
        self._desk = Desk(fleet.url, QUEUE)
        self._now_ms = max(time.time() * 1000, store.begin_ms)

    def round(self, seconds: float) -> None:
        """Refreshes for so long; its figures are kept. Raises: Broken: nothing fell due."""
        spent: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        until, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            # So far that STEP accounts are due.
            self._now_ms += STEP * HOUR_MS / self._store.accounts
            count += self._turn(spent)
        if not count:
            raise Broken("no account fell due")
        for phase, used_us in spent.items():
            self._store.engine_us[phase].append(used_us / count)

    def _turn(self, spent: dict[str, float]) -> int:
        desk, now_ms = self._desk, int(self._now_ms)

        def run(phase: str, name: str, *args: Any) -> Any:
            used = desk.busy_us()
            found = desk.run(name, now_ms, *args)
            spent[phase] += desk.busy_us() - used
            return found

        # Moves what is due, then finds no task of that name.
        run("due", "queue.take", 200, 1, 0, 0, "nobody")
        (rows,) = run("take", "queue.take", 1, 4 * STEP, 40_000, 0, "")
        if not rows:
            return 0
        opened = run("intent", "tokens.intent", *_flat((row[0], row[1], 40_000) for row in rows))
        pairs: list[Any] = []
        for (account, *_), reply in zip(rows, opened, strict=True):
            # the steady minute's last refreshes were under way when their node ended
            if reply[0] != b"OK":
                continue
            old, due_ms = parse_row(reply[2]), now_ms + HOUR_MS
            new = replace(
                old, generation=old.generation + 1, due_ms=due_ms, expires_at_ms=due_ms + 300_000
            )
            pairs += (
                account,
                old.grant,
                old.generation,
                new.pack(),
                due_ms,
                new.expires_at_ms,
                b"",
            )
        if pairs:
            run("stored", "tokens.stored", *pairs)
        return len(rows)

    def close(self) -> None:
        """Disconnect."""
        self._desk.close()


def _flat(items: Iterable[Iterable[Any]]) -> list[Any]:
    return [word for item in items for word in item]


def engine(stores: list[Store], fleets: list[Fleet], seconds: float) -> None:
    """Rounds in turn."""
    engines = [Engine(store, fleet) for store, fleet in zip(stores, fleets, strict=True)]
    for number in range(ROUNDS):
        for one in engines[:: 1 if number % 2 == 0 else -1]:
            one.round(seconds)
    for one in engines:
        one.close()


def report(stores: list[Store]) -> None:
    """What the engine's scripts cost in each store, and the limits."""
    print(
        f"\n{'engine µs an account':22}  {'  '.join(f'{phase:>7}' for phase in PHASES)}  {'all':>7}"
    )
    sums = []
    for store in stores:
        found = [median(store.engine_us[phase]) for phase in PHASES]
        sums.append(sum(found))
        print(
            f"{store.accounts:>13,} accounts  {'  '.join(f'{us:>7.1f}' for us in found)} "
            f" {sums[-1]:>7.1f}"
        )
    few, many = stores
    ratio = sums[1] / sums[0]
    print(
        f"a refresh in the engine: {ratio:.2f} ×;"
        f" {machine.against(LIMIT_ENGINE, ratio, least=False, unit=' ×')}"
    )
    added = many.whole_bytes - many.rows_bytes
    limit = machine.against(LIMIT_ADDED, added, least=False, aim=f", aim {AIM_ADDED}")
    print(f"bytes that the queue adds to an account: {added:.0f}; {limit}")
    print(
        f"restart until it serves: {few.ready_s:.1f} s with {few.accounts:,} accounts,"
        f" {many.ready_s:.1f} s with {many.accounts:,}"
    )


def fill(store: Store, endpoint: Endpoint, seconds: float, rate: float, refreshers: int) -> None:
    """
    Load a store and, if ``seconds`` are given, refresh its accounts for that long.

    Its processes end with it.
    """
    # without a provider: nothing is refreshed before all are there
    with fleet_up(store.folder) as fleet:
        machine.run(load(store, fleet, rate))
    if seconds:
        with fleet_up(store.folder, refreshers=refreshers, token_url=endpoint.url) as fleet:
            machine.run(steady(store, fleet, endpoint, seconds))


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("many accounts in one store")
    parser.add_argument("--accounts", type=int, default=200_000, help="of the full store")
    parser.add_argument("--beside", type=int, default=10_000, help="of the other one")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="of steady refreshing, and half as long of the engine alone",
    )
    parser.add_argument("--refreshers", type=int, default=256, help="requests under way at most")
    options = parser.parse_args(argv)
    if min(options.accounts, options.beside) < 1000:
        parser.error("fewer than 1000 accounts tell nothing")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        stores = []
        for name, accounts in (("few", options.beside), ("many", options.accounts)):
            (folder / name).mkdir()
            stores.append(Store(name, accounts, folder / name))
        few, many = stores
        try:
            endpoint = stack.enter_context(token_endpoint.started(folder, LIFE_S))
            fill(few, endpoint, 0, 1000.0, options.refreshers)
            fill(many, endpoint, options.seconds, few.accounts / few.loaded_s, options.refreshers)
            # Without a provider: nothing else works at the accounts while the engine is measured.
            fleets = [stack.enter_context(fleet_up(store.folder)) for store in stores]
            for store, fleet in zip(stores, fleets, strict=True):
                store.ready_s = fleet.ready_s
            machine.print_machine(folder, fleets[0].version())
            engine(stores, fleets, options.seconds / (4 * ROUNDS))
            report(stores)
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
