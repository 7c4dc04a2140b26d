"""
Fleets under scripted providers (``benchmarks.zoo``): a few short ones here, all of them at full
size in ``make soak``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.zoo.__main__ import HERE, scenario_of
from benchmarks.zoo.fast_clock import missing_compiler

pytestmark = [pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())]
SHORT = ("bad_imported_first", "limit_per_account")
"""
Those that show within seconds whether one account's answer is held against others, and whether a
wait for all ends. Each takes some twenty seconds of processor.
"""


@pytest.mark.parametrize("name", SHORT)
def test_a_short_one_keeps_its_limits(name: str, tmp_path: Path) -> None:
    found = asyncio.run(scenario_of(name, quick=True).run(HERE, 1, tmp_path))
    print(f"{name}: {'; '.join(map(str, found.checks))}")
    print(f"lag {found.lag_s:.1f} s; processor time of nodes and stores {found.used_s:.0f} s")
    assert not [str(check) for check in found.checks if not check.kept], f"{found}"
