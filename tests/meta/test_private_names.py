"""Tests leave what the product keeps private to one test face, ``support/inspect.py``."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from support.run.trees import parsed

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
WORD = re.compile(r"(?<!\w)_[a-zA-Z]\w*")
USED = re.compile(r"\._[a-zA-Z]|[\"']_[a-zA-Z]")
USES_MAX = 39
"""Of private attributes outside ``support``: what a test builds on, or takes the place of, once."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_replace"


@functools.cache
def private_names() -> frozenset[str]:
    """The private names that the product defines or uses."""
    found: set[str] = set()
    for path in (ROOT / "tidewarden").rglob("*.py"):
        found.update(WORD.findall(path.read_text("utf-8")))
    return frozenset(filter(is_private, found))


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def uses(tree: ast.Module, private: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each private attribute of others, those named in a text included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in private and not is_own(node.value):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call):
            for word in node.args[1:2]:
                if isinstance(word, ast.Constant) and word.value in private:
                    yield word.lineno, word.value


def test_tests_leave_private_names_to_the_test_face() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if not path.is_relative_to(TESTS / "support") and USED.search(path.read_text("utf-8"))
        for line, name in uses(parsed(path), private_names())
    ]
    assert len(found) <= USES_MAX, "\n".join(found)


def test_the_test_face_names_what_there_is() -> None:
    """A name in a text, that of an attribute of another library aside, is one of the product's."""
    face = ast.parse((TESTS / "support" / "inspect.py").read_text("utf-8"))
    texts = {node.value for node in ast.walk(face) if isinstance(node, ast.Constant)}
    named = {
        part
        for text in texts
        if isinstance(text, str) and text.startswith("_")
        for part in text.split(".")
        if is_private(part)
    }
    assert len(named) > 50
    assert not named - private_names() - {"_runner"}


def test_what_is_a_use() -> None:
    text = (
        "a._x\nself._x\nb._y\nsetattr(a, '_x', 1)\nmonkeypatch.setattr(a.b, '_x', f)\nprint('_x')\n"
    )
    private = frozenset({"_x"})
    assert list(uses(ast.parse(text), private)) == [(1, "_x"), (4, "_x"), (5, "_x")]
    assert len(private_names()) > 500
