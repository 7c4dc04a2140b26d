"""
Counts accounts that expire during a provider's outage, by order of the queue.

The fewest possible stand beside them.

    python -m benchmarks.outage [--quick] [--accounts 18000] [--outages 10 30 50] [--capacities 1.1
    1.25 1.5 2] [--svg FILE]

Accounts with one-hour tokens, refreshed five minutes before they expire. For so many minutes
nothing can be refreshed; then refreshes are done at ``capacity`` times the rate at which tokens
fall due in quiet times. Time is compressed: the product's own scripts run in the embedded store of
a node, with a clock that the benchmark hands in, and the product's own policy says when each token
is due next. *Spread*: expiries lie evenly. *Clustered*: seven in ten lie in three crowds of four
minutes.

- ``ever`` counts the accounts whose token had expired at any time before it was refreshed;
- ``minutes`` are the token-minutes that they were without one.

Orders: ``tokens`` is what token queues have, with the leveller that every node runs: where there is
nothing to do, it has what will fall due together refreshed ahead. ``order`` is the same without it.
``bands`` is the default of all other queues, ``edf`` the earliest deadline first. ``live`` is of
this benchmark alone: the living first, the earliest first, whatever it costs the dead: among what
is due no order lets fewer expire.

Then what levelling before an outage gains: a fleet imported in three crowds goes on for two cycles
of 55 minutes with and without it, at five times the load, for in quiet times there is room; then
the outage comes. Its beginning is moved by fifths of a cycle, because an outage between two crowds
harms little, and one that meets a crowd much: the mean of the five, and the worst.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import machine, outage_chart
from benchmarks.desk import Desk
from benchmarks.outage_fleet import (
    BEGIN_MS,
    CYCLE_MS,
    LIFE_S,
    MARGIN_S,
    STEP_MS,
    Fleet,
    Levelling,
    Run,
    fleet_of,
)
from benchmarks.peers import tidewarden
from tidewarden.config.provider import QUEUE_PREFIX
from tidewarden.queue.settings import QueueSettings
from tidewarden.tokens.system_queues import system_queues

LIMIT_EVER, LIMIT_MINUTES = 1.05, 1.10
JUDGED_FROM = 1.25
"""
Capacity from which the limits are meant: below it nearly everything that comes in is needed for the
living alone.
"""
WEEK_MS = 7 * 86_400_000
ACCOUNTS, ACCOUNTS_QUICK = 18_000, 3_000

TOKENS = system_queues()[QUEUE_PREFIX]
ORDERS = {
    "tokens": TOKENS,
    "order": TOKENS,
    "bands": QueueSettings(dedup_ms=0),
    "edf": QueueSettings(dedup_ms=0, order="edf"),
    "live": QueueSettings(dedup_ms=0, urgent_ms=WEEK_MS, late_share=0, early_share=0),
}
LEVELLED = {"tokens"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One outage: minutes, capacity (times the load), and whether expiries lie in crowds."""

    outage_min: int
    capacity: float
    clustered: bool

    def __str__(self) -> str:
        kind = "clustered" if self.clustered else "spread"
        return f"{self.outage_min:>4} min  {self.capacity:>5} ×  {kind:9}"


QUICK = [Case(10, 1.25, False), Case(30, 1.25, False), Case(30, 2, False), Case(30, 1.25, True)]
LEVELLING = [Case(10, 1.25, True), Case(30, 1.25, True), Case(30, 2, True)]
CYCLES, PHASES, QUIET_CAPACITY = 2, 5, 5.0
ACCOUNTS_LEVELLING = 3_000
"""At most: there are many runs, and ratios hardly depend on it."""


class Bench:
    """A store, and so many accounts."""

    def __init__(self, desk: Desk, accounts: int, loop: asyncio.AbstractEventLoop) -> None:
        self._desk = desk
        self._accounts = accounts
        self._loop = loop

    def run(self, case: Case, order: str, quiet_ms: int = 0) -> Fleet:
        """One outage, so long after the import; what became of the fleet."""
        levelling = Levelling(self._desk, self._loop) if order in LEVELLED else None
        accounts = min(self._accounts, ACCOUNTS_LEVELLING) if quiet_ms else self._accounts
        mine = Run(self._desk, fleet_of(accounts, case.clustered), ORDERS[order], levelling)
        begin_ms = BEGIN_MS + quiet_ms // STEP_MS * STEP_MS
        mine.quiet(begin_ms, QUIET_CAPACITY)
        return mine.recover(begin_ms + case.outage_min * 60_000, case.capacity)


def cases_of(outages: Sequence[int], capacities: Sequence[float]) -> Iterator[Case]:
    """Every combination, spread first."""
    for clustered in (False, True):
        for outage_min in outages:
            for capacity in capacities:
                yield Case(outage_min, capacity, clustered)


def row_of(case: Case, found: dict[str, Fleet]) -> str:
    """A line of the table."""
    least, edf = len(found["live"].ever), found["edf"].minutes
    words = [str(case)]
    for name in ORDERS:
        ever, minutes = len(found[name].ever), found[name].minutes
        words.append(
            f"{ever:>7,} {ever / max(1, least):>5.2f}  {minutes:>9,.0f}"
            f" {minutes / max(1.0, edf):>5.2f}"
        )
    return " │ ".join(words)


def measure(bench: Bench, cases: Sequence[Case]) -> dict[Case, dict[str, Fleet]]:
    """Every case under every order; a line each as they come."""
    heads = (f"{name + ': ever × live, minutes × edf':29}" for name in ORDERS)
    print(" │ ".join([f"{'outage  capacity  expiries':29}", *heads]))
    results: dict[Case, dict[str, Fleet]] = {}
    for case in cases:
        results[case] = {name: bench.run(case, name) for name in ORDERS}
        print(row_of(case, results[case]), flush=True)
    return results


def judge(results: dict[Case, dict[str, Fleet]]) -> None:
    """The worst where the limits are meant."""
    meant = [found for case, found in results.items() if case.capacity >= JUDGED_FROM]
    if not meant:
        return
    print(f"the worst at capacity ≥ {JUDGED_FROM:g} ×:")
    for name in ("tokens", "order"):
        ever = max(len(found[name].ever) / max(1, len(found["live"].ever)) for found in meant)
        minutes = max(found[name].minutes / max(1.0, found["edf"].minutes) for found in meant)
        print(
            f"  {name}, ever expired: {ever:.3f} × live;"
            f" {machine.against(LIMIT_EVER, ever, least=False, unit=' ×')}"
        )
        limit = machine.against(LIMIT_MINUTES, minutes, least=False, unit=" ×")
        print(f"  {name}, token-minutes: {minutes:.3f} × edf; {limit}")


def show_levelling(bench: Bench, cases: Sequence[Case]) -> None:
    """What levelling before an outage gains a fleet that was imported in crowds."""
    print(f"\n{'levelling before an outage':29} │ ever: mean, worst │ minutes: mean, worst")
    for case in cases:
        means = []
        for name in ("order", "tokens"):
            fleets = [
                bench.run(case, name, CYCLES * CYCLE_MS + n * CYCLE_MS // PHASES)
                for n in range(PHASES)
            ]
            ever, minutes = (
                [len(fleet.ever) for fleet in fleets],
                [fleet.minutes for fleet in fleets],
            )
            means.append((sum(ever) / PHASES, sum(minutes) / PHASES))
            words = (
                f"{means[-1][0]:>9,.0f} {max(ever):>7,}",
                f"{means[-1][1]:>11,.0f} {max(minutes):>9,.0f}",
            )
            print(
                " │ ".join([f"{case if name == 'order' else '  levelled'!s:29}", *words]),
                flush=True,
            )
        (ever_plain, minutes_plain), (ever_level, minutes_level) = means
        saved = (1 - ever_level / max(1, ever_plain), 1 - minutes_level / max(1.0, minutes_plain))
        print(f"  saved{'':22} │ {saved[0]:>9.0%} {'':7} │ {saved[1]:>11.0%}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("accounts that expire after an outage, by the order of the queue")
    parser.add_argument("--quick", action="store_true", help="four of the runs")
    parser.add_argument(
        "--accounts", type=int, default=None, help=f"{ACCOUNTS}, with --quick {ACCOUNTS_QUICK}"
    )
    parser.add_argument("--outages", type=int, nargs="+", default=[10, 30, 50], metavar="MINUTES")
    parser.add_argument(
        "--capacities", type=float, nargs="+", default=[1.1, 1.25, 1.5, 2], metavar="TIMES"
    )
    parser.add_argument("--svg", type=Path, default=None, help="write a chart there")
    options = parser.parse_args(argv)
    accounts: int = options.accounts or (ACCOUNTS_QUICK if options.quick else ACCOUNTS)
    if accounts < 1000:
        parser.error("fewer than 1000 accounts tell nothing")
    if min(options.capacities) <= 1:
        parser.error("with a capacity of 1 or less an outage is never made good")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        target = stack.enter_context(tidewarden.started(folder))
        machine.print_machine(folder, target.version)
        print(f"{accounts:,} accounts, tokens of {LIFE_S} s, margin {MARGIN_S} s")
        desk = Desk(target.engine, "bench.outage")
        stack.callback(desk.close)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        bench = Bench(desk, accounts, loop)
        cases = QUICK if options.quick else list(cases_of(options.outages, options.capacities))
        results = measure(bench, cases)
        judge(results)
        if not options.quick:
            show_levelling(bench, LEVELLING)
    if options.svg is not None:
        outage_chart.write(options.svg, results)
        print(f"chart in {options.svg}", file=sys.stderr)


if __name__ == "__main__":
    main()
