"""Lines end at 100 columns, and documents that are read in one go stay short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH_MAX = 100
LINES_MAX = {"ARCHITECTURE.md": 300, "CHANGELOG.md": 80, "README.md": 220}
UNWRAPPED: set[str] = set()
PRAGMA = re.compile(r"  # (?:noqa|type: ignore)\b.*")


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of Markdown with their numbers, without fenced blocks and tables."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith("|"):
            yield number, line


def too_wide(line: str) -> bool:
    """Whether a line is wider than it must be: one word (a URL, a link) may not be broken."""
    words = line.split()
    return len(line) > WIDTH_MAX and max(map(len, words)) < WIDTH_MAX - 20 and "](" not in words[-1]


def test_lines_of_documents_end_at_100_columns() -> None:
    wide = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
        for path in documents()
        for number, line in prose(path.read_text("utf-8"))
        if too_wide(line)
    ]
    assert not wide


def code() -> Iterator[Path]:
    """Python and Lua, and the examples and settings that people copy."""
    for folder in ("tidewarden", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")
        yield from (ROOT / folder).rglob("*.lua")
    yield from (path for path in (ROOT / "examples").rglob("*") if path.is_file())
    yield ROOT / "config.toml"


def test_lines_of_code_end_at_100_columns() -> None:
    """Without the notes for linters and type checkers at a line's end, which may not be wrapped."""
    wide = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
        for path in code()
        if path.suffix != ".pyc"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if not line.lstrip().startswith("|") and too_wide(PRAGMA.sub("", line))
    ]
    assert not wide


def test_what_is_too_wide() -> None:
    assert too_wide("word " * 21)
    assert not too_wide("word " * 20)
    assert not too_wide(f"see {'x' * 100}")
    text = "a\n```\nb\n```\n| c |\nd"
    assert [line for _, line in prose(text)] == ["a", "d"]


def test_documents_that_are_read_in_one_go_are_short() -> None:
    long = {
        name: lines
        for name, most in LINES_MAX.items()
        if (lines := len((ROOT / name).read_text("utf-8").splitlines())) > most
    }
    assert not long
