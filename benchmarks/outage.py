"""
How many accounts expire when a provider is away: bands and earliest-deadline-first, beside the least that any order allows.

    python -m benchmarks.outage [--quick] [--accounts 18000] [--outages 10 30 50] [--capacities 1.1 1.25 1.5 2] [--svg FILE]

Accounts with one-hour tokens, refreshed five minutes before they expire. For so many minutes nothing can be refreshed; then
refreshes are done at ``capacity`` times the rate at which tokens fall due in quiet times. Time is compressed: the product's own
scripts run in the embedded store of a node, with a clock that the benchmark hands in, and the product's own policy says
when each token is due next. *Spread*: expiries lie evenly. *Clustered*: seven in ten lie in three crowds of four minutes.

- ``ever`` counts the accounts whose token had expired at any time before it was refreshed;
- ``minutes`` are the token-minutes that they were without one.

Orders: ``tokens`` is what token queues have; ``bands`` the default of all other queues; ``edf`` the earliest deadline first.
``live`` is of this benchmark alone: the living first, the earliest first, whatever it costs the dead: no order lets fewer expire.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import machine, outage_chart
from benchmarks.desk import Desk
from benchmarks.peers import tidewarden
from tidewarden.config import Provider
from tidewarden.queue import NewTask
from tidewarden.queue.settings import QueueSettings, settings_of_new
from tidewarden.tokens.policy import due_after, due_before

LIFE_S, MARGIN_S = 3600, 300
PROVIDER = Provider(name="bench", margin_s=MARGIN_S, default_life_s=LIFE_S)
BEGIN_MS = 2_000_000_000_000
LIMIT_EVER, LIMIT_MINUTES = 1.05, 1.10
JUDGED_FROM = 1.25
"""Capacity from which the limits are meant: below it nearly everything that comes in is needed for the living alone."""
STEP_MS = 1000
WEEK_MS = 7 * 86_400_000

TOKENS = settings_of_new("_tokens:provider:client")
ORDERS = {
    "tokens": TOKENS,
    "bands": QueueSettings(dedup_ms=0),
    "edf": QueueSettings(dedup_ms=0, order="edf"),
    "live": QueueSettings(dedup_ms=0, urgent_ms=WEEK_MS, late_share=0, early_share=0),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One outage: minutes, capacity (times the load), and whether expiries lie in crowds."""

    outage_min: int
    capacity: float
    clustered: bool


QUICK = [Case(10, 1.25, False), Case(30, 1.25, False), Case(30, 2, False), Case(30, 1.25, True)]


@dataclasses.dataclass
class Fleet:
    """Accounts and when their tokens expire (ms); what became of them."""

    expires_ms: list[int]
    dice: random.Random
    ever: set[int] = dataclasses.field(default_factory=set)
    minutes: float = 0.0

    def task(self, number: int, due_ms: int) -> NewTask:
        """An account's task."""
        return NewTask(id=f"u{number}", at_ms=due_ms, deadline_ms=self.expires_ms[number])

    def refreshed(self, number: int, now_ms: int) -> NewTask:
        """Its token was refreshed; the next one."""
        late_ms = now_ms - self.expires_ms[number]
        if late_ms > 0:
            self.ever.add(number)
            self.minutes += late_ms / 60_000
        self.expires_ms[number], due_ms = due_after(now_ms, LIFE_S, PROVIDER, self.dice.random())
        return self.task(number, due_ms)


def fleet_of(accounts: int, clustered: bool) -> Fleet:
    """Accounts as they are before the outage: none is overdue."""
    dice = random.Random(7)
    span_ms, first_ms = (LIFE_S - MARGIN_S) * 1000, BEGIN_MS + MARGIN_S * 1000
    crowds = [first_ms + int(share * span_ms) for share in (0.15, 0.5, 0.8)]
    expires = []
    for number in range(accounts):
        if clustered and number % 10 < 7:
            expires.append(crowds[number % 3] + dice.randrange(-120_000, 120_000))
        else:
            expires.append(first_ms + dice.randrange(span_ms))
    return Fleet(expires, dice)


def run(desk: Desk, case: Case, settings: QueueSettings, accounts: int) -> Fleet:
    """One outage, until nothing is late any more; the fleet and what became of it."""
    desk.client.delete(*(list(desk.client.scan_iter(f"{desk.keys[0]}*")) or ["-"]))
    desk.run("queue.configure", 0, *settings.shard_fields())
    fleet = fleet_of(accounts, case.clustered)
    numbers = list(range(accounts))
    for begin in range(0, accounts, 1000):
        tasks = [
            fleet.task(n, due_before(fleet.expires_ms[n], LIFE_S, PROVIDER, fleet.dice.random()))
            for n in numbers[begin : begin + 1000]
        ]
        desk.put(tasks, BEGIN_MS)
    rate = case.capacity * accounts / (LIFE_S - MARGIN_S)
    return _recover(desk, fleet, BEGIN_MS + case.outage_min * 60_000, rate * STEP_MS / 1000)


def _recover(desk: Desk, fleet: Fleet, now_ms: int, per_step: float) -> Fleet:
    """Refresh ``per_step`` accounts a step from ``now_ms`` on, until everybody was refreshed in time for a whole life."""
    credit, calm_since = 0.0, now_ms
    while now_ms - calm_since < LIFE_S * 1000:
        credit += per_step
        rows = desk.take(int(credit), now_ms) if credit >= 1 else []
        if len(rows) < int(credit):
            credit = 0.0  # a refresher that has nothing to do saves nothing up
        else:
            credit -= len(rows)
        before = fleet.minutes
        if rows:
            desk.ack(rows, now_ms)
            desk.put([fleet.refreshed(int(row[0][1:]), now_ms) for row in rows], now_ms)
        if fleet.minutes > before:
            calm_since = now_ms
        now_ms += STEP_MS
    return fleet


def cases_of(outages: Sequence[int], capacities: Sequence[float]) -> Iterator[Case]:
    """Every combination, spread first."""
    for clustered in (False, True):
        for outage_min in outages:
            for capacity in capacities:
                yield Case(outage_min, capacity, clustered)


def row_of(case: Case, found: dict[str, Fleet]) -> str:
    """A line of the table."""
    least, edf = len(found["live"].ever), found["edf"].minutes
    words = [f"{case.outage_min:>4} min  {case.capacity:>5} ×  {'clustered' if case.clustered else 'spread':9}"]
    for name in ORDERS:
        ever, minutes = len(found[name].ever), found[name].minutes
        words.append(f"{ever:>7,} {ever / max(1, least):>5.2f}  {minutes:>9,.0f} {minutes / max(1.0, edf):>5.2f}")
    return " │ ".join(words)


def measure(desk: Desk, cases: Sequence[Case], accounts: int) -> dict[Case, dict[str, Fleet]]:
    """Every case under every order; a line each as they come."""
    head = " │ ".join(
        [f"{'outage  capacity  expiries':29}", *(f"{name + ': ever × live, minutes × edf':29}" for name in ORDERS)]
    )
    print(head)
    results: dict[Case, dict[str, Fleet]] = {}
    for case in cases:
        results[case] = {name: run(desk, case, settings, accounts) for name, settings in ORDERS.items()}
        print(row_of(case, results[case]), flush=True)
    return results


def judge(results: dict[Case, dict[str, Fleet]]) -> None:
    """The worst of ``tokens`` where the limits are meant."""
    meant = [found for case, found in results.items() if case.capacity >= JUDGED_FROM]
    if not meant:
        return
    ever = max(len(found["tokens"].ever) / max(1, len(found["live"].ever)) for found in meant)
    minutes = max(found["tokens"].minutes / max(1.0, found["edf"].minutes) for found in meant)
    print(f"worst of tokens at capacity ≥ {JUDGED_FROM:g} ×:")
    print(f"  ever expired: {ever:.3f} × live; {machine.against(LIMIT_EVER, ever, least=False, unit=' ×')}")
    print(f"  token-minutes: {minutes:.3f} × edf; {machine.against(LIMIT_MINUTES, minutes, least=False, unit=' ×')}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("accounts that expire after an outage, by the order of the queue")
    parser.add_argument("--quick", action="store_true", help="four of the runs")
    parser.add_argument("--accounts", type=int, default=18_000)
    parser.add_argument("--outages", type=int, nargs="+", default=[10, 30, 50], metavar="MINUTES")
    parser.add_argument("--capacities", type=float, nargs="+", default=[1.1, 1.25, 1.5, 2], metavar="TIMES")
    parser.add_argument("--svg", type=Path, default=None, help="write a chart there")
    options = parser.parse_args(argv)
    if options.accounts < 1000:
        parser.error("fewer than 1000 accounts tell nothing")
    if min(options.capacities) <= 1:
        parser.error("with a capacity of 1 or less an outage is never made good")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        target = stack.enter_context(tidewarden.started(folder))
        machine.print_machine(folder, target.version)
        print(f"{options.accounts:,} accounts, tokens of {LIFE_S} s, margin {MARGIN_S} s")
        desk = Desk(target.engine, "bench.outage")
        stack.callback(desk.close)
        cases = QUICK if options.quick else list(cases_of(options.outages, options.capacities))
        results = measure(desk, cases, options.accounts)
    judge(results)
    if options.svg is not None:
        outage_chart.write(options.svg, results)
        print(f"chart in {options.svg}", file=sys.stderr)


if __name__ == "__main__":
    main()
