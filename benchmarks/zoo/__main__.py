"""
What becomes of a fleet of accounts under providers that behave as real ones do.

    python -m benchmarks.zoo [SCENARIO …] [--seed 1] [--before TREE] [--quick | --long]

Each scenario is a scripted authorization server in a file of its own, which says, too, which rule
of the product it guards. The product is as users have it: three nodes, each with a store, started
by ``tidewarden up``, asked over RESP; the provider is asked over HTTP and keeps the truth about
each grant. All of them, the stores too, read a clock that runs faster than the machine's
(``fast_clock.c``), so that every time keeps its proportion to every other: how many times as fast
stands in each row. It runs slower where the machine has no processor left, and while a backlog is
worked off.

- ``late``: healthy accounts that were without a living token, beyond what the provider made
  inevitable;
- ``given up``: healthy accounts that were ever given up;
- ``asked``, ``beyond need``: requests, and those that brought no new pair;
- ``recovery``: seconds from the provider's being well again until every healthy account was fresh;
- ``live``: grants that live at the provider in the end, of those that the script did not end
  itself;
- ``events``: of providers, of accounts;
- ``lag``: the longest by which the machine kept the provider itself waiting, in the scenario's
  seconds;
- ``limits``: kept, or which were missed. BUSY: others used the machine, or the lag was more than a
  few seconds; then the row shows more of the machine than of the product.

``--before``: each scenario also against another checkout (with its ``.venv``), in turns.
``--quick``: smaller fleets and shorter times. ``--long``: with three seeds each.

Exit code: 0 when every limit was kept, 1 when one was missed, 2 when a scenario could not be
played.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.connections import Broken

from .fast_clock import missing_compiler
from .scenario import Figures, Scenario

NAMES = (
    "imported",
    "away_with_bad_accounts",
    "bad_imported_first",
    "all_refused",
    "refused_by_other_words",
    "a_few_unauthorized",
    "wrong_secret",
    "random_429",
    "true_limit",
    "limit_per_account",
    "lost_answers",
    "mixed_504_refusals",
    "slow_beside_fast",
    "odd_error_shapes",
    "mass_revoked",
    "many_providers",
    "part_refused",
    "slow_and_small",
    "minute_of_refusals",
    "lost_then_refused",
    "single_refusals",
    "never_well_here",
    "named_time_kept",
    "all_429",
    "journal_broken",
    "journal_flipped",
    "spoilt_answers",
    "short_lives",
    "stores_away",
)
HERE = Path(__file__).parents[2]
SEEDS_LONG = 3
LAG_S_MAX = 5.0


def scenario_of(name: str, *, quick: bool = False) -> Scenario:
    """The scenario of that module."""
    module = importlib.import_module(f"{__package__}.{name}")
    (found,) = [
        one
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, Scenario) and one.__module__ == module.__name__
    ]
    return found(quick=quick)


HEAD = (
    f"| {'scenario':24} |  fleet | clock |   late | given up |   asked | beyond need | recovery |"
    f" {'live':>13} | events    |    lag | limits |\n|{' --- |' * 12}"
)


def row_of(label: str, found: Figures, *, busy: bool) -> str:
    """A line of the table, as docs/performance.md has it."""
    recovery = "" if found.recovery_s is None else f"{found.recovery_s:,.0f} s"
    name = f"{found.scenario} {label}".strip()
    missed = "; ".join(str(check) for check in found.checks if not check.kept)
    said = ["kept" if found.kept else f"**missed**: {missed}"]
    if busy or found.lag_s > LAG_S_MAX:
        said.append("BUSY")
    return (
        f"| {name:24} | {found.fleet:>6,} | {found.factor:>3.0f} × | {found.late:>6,}"
        f" | {found.given_up:>8,} | {found.asked:>7,} | {found.wasted:>11,} | {recovery:>8}"
        f" | {found.live:>6,}/{found.alive_of:<6,}"
        f" | {found.provider_events:>3}, {found.account_events:<4,} | {found.lag_s:>4.1f} s"
        f" | {', '.join(said)} |"
    )


def show(found: Figures, wall_s: float) -> None:
    """Print each limit of a run, and what else was counted."""
    for check in found.checks:
        print(f"    {check}")
    print(
        f"    {wall_s:.0f} s, of processor {found.used_s:.0f} s; answers {found.answers}; states"
        f" {found.states}"
    )
    print(f"    events {found.events}; errors {found.errors}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Play the scenarios and print the table; returns the exit code."""
    parser = machine.arguments("a fleet of accounts under providers that behave as real ones do")
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help=f"of {', '.join(NAMES)}; all when none is named",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn")
    parser.add_argument(
        "--before", type=Path, default=None, metavar="TREE", help="another checkout, with its .venv"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=None,
        metavar="FILE",
        help="add a line of JSON for each run there",
    )
    parser.add_argument(
        "--all", action="store_true", help="print every limit below its row, and what was counted"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller fleets, shorter times")
    size.add_argument("--long", action="store_true", help=f"{SEEDS_LONG} seeds each")
    options = parser.parse_args(argv)
    if unknown := set(options.scenarios) - set(NAMES):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if problem := missing_compiler():
        parser.error(problem)
    trees = {"now": HERE} | ({"before": options.before.resolve()} if options.before else {})
    seeds = range(options.seed, options.seed + (SEEDS_LONG if options.long else 1))
    return play(options, trees, seeds)


def play(options: argparse.Namespace, trees: dict[str, Path], seeds: range) -> int:
    """Play every scenario with every seed against each tree, in turns; returns the exit code."""
    machine.print_machine(
        options.folder or Path("/tmp"), *(f"{label}: {tree}" for label, tree in trees.items())
    )
    print(f"\n{HEAD}", flush=True)
    code = 0
    for name in options.scenarios or NAMES:
        for seed in seeds:
            for label, tree in trees.items():
                busy, began = machine.is_busy(), time.monotonic()
                scenario = scenario_of(name, quick=options.quick)
                try:
                    with machine.own_folder(options.folder) as folder:
                        found = asyncio.run(scenario.run(tree, seed, folder))
                except Broken as broken:
                    print(f"| {name:24} | not played: {broken} |", flush=True)
                    code = 2
                    continue
                busy = busy or machine.is_busy()
                print(row_of(label if len(trees) > 1 else "", found, busy=busy), flush=True)
                if options.all:
                    show(found, time.monotonic() - began)
                if label == "now" and not found.kept:
                    code = code or 1
                if options.json:
                    _note(options.json, label, found)
    return code


def _note(file: Path, label: str, found: Figures) -> None:
    checks = {check.what: [check.found, check.limit, check.kept] for check in found.checks}
    with file.open("a") as out:
        out.write(json.dumps(vars(found) | {"label": label, "checks": checks}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
