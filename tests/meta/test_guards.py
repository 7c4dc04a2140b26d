"""
The guards that `tests/meta/guards.py` switches off stand where it says, those of scenarios, too,
and docs/testing.md tells of each.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from meta.guards import GUARDS, ROOT, SCENARIOS, Guard, without

TEXT = (ROOT / "docs" / "testing.md").read_text("utf-8")


@pytest.mark.parametrize("guard", [*GUARDS, *SCENARIOS], ids=lambda guard: guard.name)
def test_a_guard_can_be_switched_off_and_is_told_of(guard: Guard, tmp_path: Path) -> None:
    for file, _, _ in guard.edits:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tidewarden" / file, tmp_path / file)
    without(guard, tmp_path)
    assert all((ROOT / file).exists() for file in guard.files(with_live=True))
    row = next((line for line in TEXT.splitlines() if line.startswith(f"| `{guard.name}` |")), "")
    assert row, f"docs/testing.md has no row for {guard.name}"
    missing = [
        one
        for one in guard.files(with_live=True)
        if f"`{one.removeprefix('tests/').removesuffix('.py')}`" not in row
    ]
    assert not missing
    assert all(file.rpartition("/")[2] in row for file, _, _ in guard.edits)


def test_a_guard_that_does_not_stand_there_any_more_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("if x then return end\n")
    with pytest.raises(ValueError, match=r"a\.lua has 0 of: if y"):
        without(Guard("gone", (("a.lua", "if y", "if z"),), ()), tmp_path)
