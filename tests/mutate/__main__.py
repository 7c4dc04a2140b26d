"""
Changes the product at one place at a time, as a slip of the hand would, and runs the tests that
have to notice.

    python -m tests.mutate --area lua-tasks judgement     40 mutants of each
    python -m tests.mutate --area commit --mutants 200 --seed 2 --minutes 60
    python -m tests.mutate --list                         the areas

The places are drawn by the seed, equally from each file of an area. Each mutant runs in a copy of
the code, against the tests of its area, until the first of them fails. What nobody noticed is
printed with its place: read it, for some mutants behave as the code did.

Exit code: 0 when of each safety area 95 % were noticed, else 1.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.meta.guards import ROOT, copy_code

from .areas import AREAS, Area
from .mutants import Mutant, mutants_of

PYTEST = "-q -x --tb=no -p no:cacheprovider -p no:rerunfailures --timeout 60"
LIMIT_S, SLACK = 60.0, 4.0
"""A mutant whose tests take so many times as long, and so long besides, hangs: it is noticed."""
NOTICED_SHARE = 0.95


def main() -> int:
    """Mutate the areas that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Change the product at one place at a time, and see whether a test notices."
    )
    parser.add_argument("--area", nargs="+", choices=AREAS, default=[], metavar="AREA")
    parser.add_argument("--list", action="store_true", help="print the areas")
    parser.add_argument("--mutants", type=int, default=40, help="so many of each area")
    parser.add_argument("--minutes", type=float, default=30.0, help="no longer than that, an area")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn")
    parser.add_argument("--live", action="store_true", help="what is unnoticed: by clusters, too")
    asked = parser.parse_args()
    if asked.list or not asked.area:
        for name, area in AREAS.items():
            print(f"{name:12} {len(drawn(area, ROOT / 'tidewarden', 10**9, 0)):6,} mutants")
        return 0
    unsafe = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_code(Path(folder))
        for name in asked.area:
            noticed, run = Trial(name, Path(folder), asked).run()
            share = noticed / max(1, run)
            limit = f" (limit {NOTICED_SHARE:.0%})" if AREAS[name].safe else ""
            print(f"{name}: {noticed} of {run} noticed, {share:.0%}{limit}", flush=True)
            unsafe += AREAS[name].safe and share < NOTICED_SHARE
    return 1 if unsafe else 0


def drawn(area: Area, package: Path, count: int, seed: int) -> list[tuple[Path, Mutant]]:
    """Draw mutants of an area: one of each file in turn, so that no long file is all there is."""
    dice = random.Random(seed)
    files = sorted({path for glob in area.sources for path in package.glob(glob)})
    rest = {}
    for path in files:
        found = list(mutants_of(path.name, path.read_text("utf-8")))
        dice.shuffle(found)
        rest[path] = found
    chosen: list[tuple[Path, Mutant]] = []
    while len(chosen) < count and any(rest.values()):
        dice.shuffle(files)
        chosen += [(path, rest[path].pop()) for path in files if rest[path]]
    return chosen[:count]


class Trial:
    """Runs an area's tests against its mutants, in one copy of the code."""

    def __init__(self, name: str, folder: Path, asked: argparse.Namespace) -> None:
        self._name = name
        self._area = AREAS[name]
        self._folder = folder
        self._asked = asked
        self._limit_s = 1800.0
        self._stamp_s = time.time()

    def run(self) -> tuple[int, int]:
        """Return how many mutants were noticed, and of how many. Raises: RuntimeError: all are."""
        began = time.monotonic()
        if not self._passes(self._area.tests):
            raise RuntimeError(f"{self._name}: its tests fail without any mutant")
        self._limit_s = LIMIT_S + SLACK * (time.monotonic() - began)
        noticed = count = 0
        for path, mutant in drawn(
            self._area, self._folder / "tidewarden", self._asked.mutants, self._asked.seed
        ):
            if time.monotonic() - began > 60 * self._asked.minutes:
                print(f"{self._name}: {self._asked.minutes:.0f} minutes are over", flush=True)
                break
            count += 1
            noticed += self._notices(path, mutant)
        return noticed, count

    def _notices(self, path: Path, mutant: Mutant) -> bool:
        source = path.read_text("utf-8")
        self._write(path, mutant.of(source))
        try:
            unnoticed = self._passes(self._area.tests) and not (
                self._asked.live and self._area.live and not self._passes(self._area.live)
            )
        finally:
            self._write(path, source)
        if unnoticed:
            file = path.relative_to(self._folder)
            print(f"  unnoticed: {file}:{mutant.line}: {mutant.told(source)}", flush=True)
        return not unnoticed

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a time of its own: a compiled one counts as old by second and size."""
        path.write_text(text, "utf-8")
        self._stamp_s += 2
        os.utime(path, (self._stamp_s, self._stamp_s))

    def _passes(self, tests: tuple[str, ...]) -> bool:
        """Return whether all tests pass; one that hangs, or cannot begin, does not."""
        words = [*PYTEST.split(), "-m", "not soak", *(f"tests/{one}" for one in tests)]
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as tested:
            try:
                return tested.wait(self._limit_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:  # Servers of tests that were broken off, too.
                with suppress(ProcessLookupError):
                    os.killpg(tested.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
