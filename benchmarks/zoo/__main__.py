"""
What becomes of a fleet of accounts under providers that behave as real ones do.

    python -m benchmarks.zoo [SCENARIO …] [--seed 1] [--before TREE] [--quick | --long]

Each scenario is a scripted authorization server in a file of its own. The product is as users have
it: three nodes and a store, started by ``tidewarden up``, asked over RESP; the provider is asked
over HTTP and keeps the truth about each grant. All of them, the store too, read a clock that runs
faster than the machine's (``fast_clock.c``), so that every time keeps its proportion to every
other: how many times as fast stands beside each row. It runs slower where the machine has no
processor left.

- ``late``: healthy accounts that were without a living token, beyond what the provider made
  inevitable;
- ``ended``: healthy accounts that were ever given up;
- ``asked``, ``wasted``: requests, and those that brought no new pair;
- ``recovery``: seconds from the provider's being well again until every healthy account was fresh;
- ``live``: grants that live at the provider in the end, of those that the script did not end
  itself;
- ``events``: of providers, of accounts;
- ``lag``: the longest by which the machine kept the provider itself waiting, in the scenario's
  seconds: where that is more than a few, the machine was too busy for the row to count.

``--before``: each scenario also against another checkout (with its ``.venv``), in turns.
``--quick``: smaller fleets and shorter times. ``--long``: with three seeds each.
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
    "minute_of_refusals",
    "lost_then_refused",
    "all_429",
    "named_time_kept",
    "journal_broken",
    "spoilt_answers",
    "short_lives",
)
HERE = Path(__file__).parents[2]
SEEDS_LONG = 3


def scenario_of(name: str, *, quick: bool = False) -> Scenario:
    """The scenario of that module."""
    module = importlib.import_module(f"{__package__}.{name}")
    (found,) = [
        one
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, Scenario) and one.__module__ == module.__name__
    ]
    return found(quick=quick)


def row_of(label: str, found: Figures) -> str:
    """A line of the table."""
    recovery = "-" if found.recovery_s is None else f"{found.recovery_s:,.0f} s"
    accounts = sum(found.events.values()) - found.provider_events
    return (
        f"{found.scenario:24} {label:7} {found.fleet:>6,} {found.factor:>3.0f} × {found.late:>6,}"
        f" {found.given_up:>6,} {found.asked:>7,} {found.wasted:>7,} {recovery:>9}"
        f" {found.live:>6,}/{found.alive_of:<6,} {found.provider_events:>4}, {accounts:<6,}"
        f" {found.lag_s:>5.1f} s  {'kept' if found.kept else 'MISSED'}"
    )


HEAD = (
    f"{'scenario':24} {'':7} {'fleet':>6} {'clock':>5} {'late':>6} {'ended':>6} {'asked':>7}"
    f" {'wasted':>7} {'recovery':>9} {'live':>6}{'':7} {'events':12} {'lag':>7}  limits"
)


def show(label: str, found: Figures, wall_s: float, *, whole: bool) -> None:
    """The line, and below it each limit that was missed."""
    print(row_of(label, found))
    for check in found.checks:
        if whole or not check.kept:
            print(f"    {check}")
    if whole:
        print(
            f"    {wall_s:.0f} s of the machine's time; answers {found.answers}; states"
            f" {found.states}"
        )
        print(f"    events {found.events}; errors {found.errors}")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Play the scenarios, print the table; 1 when a limit was missed."""
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
        "--all", action="store_true", help="print the limits that were kept as well"
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
    """Every scenario with every seed against each tree, in turns."""
    machine.print_machine(
        options.folder or Path("/tmp"), *(f"{label}: {tree}" for label, tree in trees.items())
    )
    print(f"\n{HEAD}")
    missed = 0
    for name in options.scenarios or NAMES:
        for seed in seeds:
            for label, tree in trees.items():
                began = time.monotonic()
                try:
                    with machine.own_folder(options.folder) as folder:
                        found = asyncio.run(
                            scenario_of(name, quick=options.quick).run(tree, seed, folder)
                        )
                except Broken as broken:
                    print(f"{name:24} {label:7} {broken}", flush=True)
                    missed += label == "now"
                    continue
                show(label, found, time.monotonic() - began, whole=options.all)
                missed += label == "now" and not found.kept
                if options.json:
                    with options.json.open("a") as file:
                        checks = {
                            check.what: [check.found, check.limit, check.kept]
                            for check in found.checks
                        }
                        file.write(
                            json.dumps(vars(found) | {"label": label, "checks": checks}) + "\n"
                        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
