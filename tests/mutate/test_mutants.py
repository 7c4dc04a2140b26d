"""The mutants of `tests/mutate` are code, one place apart from the product's, and areas exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from meta.guards import ROOT
from mutate.__main__ import drawn
from mutate.areas import AREAS
from mutate.mutants import mutants_of

PACKAGE = ROOT / "tidewarden"


@pytest.mark.parametrize("name", AREAS)
def test_mutants_are_drawn_from_all_files_of_an_area_and_each_is_code(name: str) -> None:
    area = AREAS[name]
    files = {path for glob in area.sources for path in PACKAGE.glob(glob)}
    chosen = drawn(area, PACKAGE, 2 * len(files), seed=1)
    assert chosen == drawn(area, PACKAGE, 2 * len(files), seed=1)
    assert chosen != drawn(area, PACKAGE, 2 * len(files), seed=2)
    assert all((ROOT / "tests" / one).exists() for one in (*area.tests, *area.live))
    for path, mutant in chosen:
        source = path.read_text("utf-8")
        mutated = mutant.of(source)
        assert mutated != source
        assert mutant.line == source.count("\n", 0, mutant.begin) + 1
        if path.suffix == ".py":
            compile(mutated, path, "exec")


def test_what_python_is_changed_to() -> None:
    source = """\
def found(rows: dict[str, int], least: int = 3) -> int:
    \"\"\"Return 1.\"\"\"
    log.info("%s", 1)
    if (rows or least) != 2 and not rows:
        rows.clear()
        raise ValueError(f"{1 + 1}")
    return least - 1
"""
    assert [(one.line, one.told(source)) for one in mutants_of("a.py", source)] == [
        (1, "'3' -> '4'"),
        (4, "'(rows or least) != 2 and not rows' -> '(((rows or least) != 2))'"),
        (4, "'(rows or least) != 2 and not rows' -> '((not rows))'"),
        (4, "'(rows or least) != 2 and not rows' -> '(not ((rows or least) != 2 and not rows))'"),
        (4, "'rows or least' -> '((least))'"),
        (4, "'rows or least' -> '((rows))'"),
        (4, "'!=' -> '=='"),
        (4, "'2' -> '3'"),
        (4, "'not rows' -> 'bool(rows)'"),
        (5, "'rows.clear()' -> 'pass'"),
        (6, "'raise ValueError(f\"{1 + 1}\")' -> 'pass'"),
        (7, "'return least - 1' -> 'return None'"),
        (7, "'-' -> '+'"),
        (7, "'1' -> '2'"),
    ]


def test_what_lua_is_changed_to() -> None:
    source = """\
-- if a == b then
if not held and lease == 5 then
  redis.call('DEL', key)
end
"""
    assert [(one.line, one.told(source)) for one in mutants_of("a.lua", source)] == [
        (2, "'not held and' -> ''"),
        (2, "'==' -> '~='"),
        (2, "'5' -> '6'"),
        (3, "\"redis.call('DEL', key)\" -> ''"),
    ]


def test_a_file_without_a_place_has_no_mutant() -> None:
    assert not mutants_of("a.py", '"""Nothing."""\n')
    assert not mutants_of(str(Path("a.lua")), "-- nothing\n")
