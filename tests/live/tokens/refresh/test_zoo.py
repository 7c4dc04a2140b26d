"""
Fleets under scripted providers (``benchmarks.zoo``): a few short ones here, all of them with seeds
in ``make soak``.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.zoo.__main__ import HERE, NAMES, scenario_of
from benchmarks.zoo.fast_clock import missing_compiler

pytestmark = [pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())]
SHORT = ("bad_imported_first", "a_few_unauthorized", "limit_per_account")
"""
Those that show within seconds whether one account's answer is held against others, and whether a
wait for all ends.
"""
SEED = int(os.environ.get("SOAK_SEED", "1"))


def play(name: str, folder: Path, seed: int, *, quick: bool) -> None:
    """Play a scenario against this checkout; every limit has to be kept."""
    found = asyncio.run(scenario_of(name, quick=quick).run(HERE, seed, folder))
    print(f"{name}: {'; '.join(map(str, found.checks))}; lag {found.lag_s:.1f} s")
    assert not [str(check) for check in found.checks if not check.kept], f"{found}"


@pytest.mark.parametrize("name", SHORT)
def test_a_short_one_keeps_its_limits(name: str, tmp_path: Path) -> None:
    play(name, tmp_path, 1, quick=True)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
@pytest.mark.parametrize("name", NAMES)
def test_every_one_keeps_its_limits(name: str, seed: int, tmp_path: Path) -> None:
    play(name, tmp_path, seed, quick=True)
