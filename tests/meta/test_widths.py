"""
Lines end at 100 columns, documents stay short, docstrings begin with a sentence, those of functions
with a verb, and say nothing twice.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.run.trees import statements

ROOT = Path(__file__).parents[2]
WIDTH_MAX = 100
LINES_MAX = {"ARCHITECTURE.md": 300, "CHANGELOG.md": 80, "README.md": 220}
PRAGMA = re.compile(r"  # (?:noqa|type: ignore)\b.*")
NO_VERB = re.compile(
    r"`|(?:An?|The|One|As|At|By|For|From|In|Of|On|With|Without|How|What|When|Where|Whether|Which"
    r"|Who|Whose|Why|Likewise|Else)\b"
)
"""So fragments begin, such as "Whether it is open" and "The name of it"."""
SENTENCE_WORDS = 6
"""Shorter ones ("See :meth:`run`.") may be said again."""


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
    """Python and Lua, and the examples and settings that people copy; JSON cannot be wrapped."""
    for folder in ("tidewarden", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")
        yield from (ROOT / folder).rglob("*.lua")
    for folder in ("deploy", "examples"):
        found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        yield from (path for path in found if path.suffix != ".json")
    yield ROOT / "config.toml"
    yield ROOT / "docs" / "site_source.py"
    yield ROOT / "mkdocs.yml"


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


@functools.cache
def docstrings(path: Path) -> list[tuple[ast.AST, int, str]]:
    """Each docstring with what it is of, and its line."""
    return [
        (node, getattr(node, "lineno", 1), text)
        for node in statements(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node))
    ]


def first_lines(path: Path) -> Iterator[tuple[str, int, str]]:
    """Name, line and first line of the docstring of a module, its public classes and functions."""
    for node, number, text in docstrings(path):
        name = getattr(node, "name", "module")
        if not name.startswith("_"):
            yield name, number, text.splitlines()[0]


def is_sentence(line: str) -> bool:
    """Whether a docstring's first line ends as a sentence, not in the middle of the next one."""
    return len(line) <= WIDTH_MAX and line.endswith(".")


def test_docstrings_begin_with_one_sentence_on_one_line() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {name}: {line}"
        for folder in ("tidewarden", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for name, number, line in first_lines(path)
        if not is_sentence(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {text.splitlines()[0]}"
        for path in (ROOT / "tidewarden").rglob("*.py")
        for node, number, text in docstrings(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if NO_VERB.match(text)
    ]
    assert not wrong, "\n".join(wrong)


def said_twice(text: str) -> list[str]:
    """The sentences that a docstring has more than once."""
    sentences = re.split(r"(?<=\.)\s+", " ".join(text.split()))
    counted = Counter(one for one in sentences if len(one.split()) >= SENTENCE_WORDS)
    return [one for one, times in counted.items() if times > 1]


def test_docstrings_say_nothing_twice() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {sentence}"
        for path in (ROOT / "tidewarden").rglob("*.py")
        for _, number, text in docstrings(path)
        for sentence in said_twice(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_said_twice() -> None:
    once, broken = (f"Any answer closes it,{gap}wherever it came from." for gap in " \n")
    assert said_twice(f"{once} {broken}") == [once]
    assert said_twice(f"{once} See this. See this.") == []


def test_what_is_a_sentence() -> None:
    assert is_sentence("Return the shard of an id.")
    assert not is_sentence("Return the shard of an id, or, where there is none, what")
    assert not is_sentence("Return the shard of an id. Raises:")
    assert not is_sentence(f"{'Word ' * 20}.")
