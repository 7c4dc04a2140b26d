"""Python's ``re`` backtracks, so it gets patterns alone that stand in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.run.trees import parsed

ROOT = Path(__file__).parents[2]
OURS = {'limits["pattern"]': "of a field of the settings, beside it in the code"}
CALLS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}


def foreign(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of ``re`` whose pattern is made of something else than literals and constants."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in CALLS
            and not _is_ours(node.args[0])
        ):
            yield node


def _is_ours(pattern: ast.AST) -> bool:
    if ast.unparse(pattern).replace("'", '"') in OURS:
        return True
    if isinstance(pattern, ast.Name):
        return pattern.id.isupper()
    if isinstance(pattern, ast.Constant):
        return True
    if isinstance(pattern, ast.JoinedStr):
        return all(
            _is_ours(one.value) if isinstance(one, ast.FormattedValue) else True
            for one in pattern.values
        )
    # Words joined by | are as much ours as the words are.
    return (
        isinstance(pattern, ast.Call)
        and ast.unparse(pattern.func) in ("'|'.join", "map")
        and all(isinstance(one, ast.Attribute) or _is_ours(one) for one in pattern.args)
    )


def test_no_foreign_pattern_is_given_to_python() -> None:
    """:mod:`tidewarden.foreign_pattern` takes those."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted((ROOT / "tidewarden").rglob("*.py"))
        if re.search(r"\bre\b", path.read_text("utf-8"))
        for call in foreign(parsed(path))
    ]
    assert found == []


def test_a_pattern_from_elsewhere_is_noticed() -> None:
    for text in (
        "re.compile(pattern)",
        "re.fullmatch(settings['x'], name)",
        "re.sub(f'{p}+', '', x)",
    ):
        assert list(foreign(ast.parse(text))), text
    for text in ("re.compile(r'a+')", "re.fullmatch(NAME, name)", "re.sub(rf'{NAME}+', '', x)"):
        assert not list(foreign(ast.parse(text))), text
