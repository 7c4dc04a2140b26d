"""
Mutants of a file: each is its text with one place changed, as a slip of the hand would change it.

The operators are those that Offutt et al. found sufficient (ACM TOSEM 5(2), 1996), as far as they
apply to a language without types: relational and logical operators replaced, conditions negated,
statements deleted, and numbers shifted by one.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

RELATIONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATOR = re.compile(r"not\s+in|is\s+not|[<>=!]=|[<>+-]|\bin\b|\bis\b")
SAID = ("log", "_log", "logging", "warnings")
"""What is called on these is read by people: no test has to hold it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces the characters from ``begin`` to ``end`` of a file by ``text``."""

    line: int
    begin: int
    end: int
    text: str

    def of(self, source: str) -> str:
        """Return the mutant's text."""
        return source[: self.begin] + self.text + source[self.end :]

    def told(self, source: str) -> str:
        """Describe it in one line: what stands there, and what takes its place."""
        was = " ".join(source[self.begin : self.end].split())
        return f"{was[:60]!r} -> {self.text.strip()[:60]!r}"


@functools.cache
def mutants_of(name: str, source: str) -> tuple[Mutant, ...]:
    """Return all mutants of a file of Python or Lua, in its order, each of them only once."""
    found = _of_python(source) if name.endswith(".py") else _of_lua(source)
    return tuple(sorted(set(found), key=lambda one: (one.begin, one.end, one.text)))


def _of_python(source: str) -> Iterator[Mutant]:
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.AST) -> tuple[int, int]:
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return len(raw[:begin].decode()), len(raw[:end].decode())

    def changed(node: ast.AST, text: str) -> Mutant:
        return Mutant(node.lineno, *place(node), text)  # type: ignore[attr-defined]

    def text_of(node: ast.AST) -> str:
        begin, end = place(node)
        return source[begin:end]

    def between(left: ast.AST, right: ast.AST, operator: str) -> Mutant:
        begin, end = place(left)[1], place(right)[0]
        found = OPERATOR.search(source, begin, end)
        assert found is not None, source[begin:end]
        line = source.count("\n", 0, found.start()) + 1
        return Mutant(line, *found.span(), operator)

    for node in _walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield between(node.left, node.comparators[0], RELATIONS[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            for gone in node.values:
                kept = [f"({text_of(one)})" for one in node.values if one is not gone]
                yield changed(node, "(" + word.join(kept) + ")")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield changed(node, f"bool({text_of(node.operand)})")
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            if not isinstance(node.test, ast.Constant):
                yield changed(node.test, f"(not ({text_of(node.test)}))")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield changed(node, str(node.value + 1))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            if not any(isinstance(one, ast.JoinedStr) for one in (node.left, node.right)):
                yield between(node.left, node.right, "-" if isinstance(node.op, ast.Add) else "+")
        elif isinstance(node, (ast.Expr, ast.Raise, ast.AugAssign, ast.Delete)):
            yield changed(node, "pass")
        elif isinstance(node, ast.Return) and not _is_nothing(node.value):
            yield changed(node, "return None")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over what runs: no annotations, docstrings, log lines, or texts of errors."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_said(child):
                continue
            yield child
            if not isinstance(child, (ast.Raise, ast.Import, ast.ImportFrom)):
                yield from _walk(child)


def _is_nothing(value: ast.AST | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _is_said(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if not isinstance(node, ast.Expr):
        return False
    found = node.value
    if isinstance(found, ast.Constant):
        return True
    while isinstance(found, (ast.Call, ast.Attribute, ast.Await)):
        if isinstance(found, ast.Attribute) and found.attr in SAID:
            return True
        found = found.func if isinstance(found, ast.Call) else found.value
    return isinstance(found, ast.Name) and found.id in SAID


LUA_WORDS = {
    " == ": " ~= ",
    " ~= ": " == ",
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " + ": " - ",
    " - ": " + ",
}
LUA_LOGIC = re.compile(r"(?<=\b(?:if|or) )([^()\n]+?) (and|or) (?=\S)|(?<= )not (?=\w)")
LUA_CALL = re.compile(r"^[ \t]*[\w.:\[\]]+\([^\n]*\)$", re.MULTILINE)
LUA_COMMENT = re.compile(r"--[^\n]*|'[^'\n]*'|\"[^\"\n]*\"")


def _of_lua(source: str) -> Iterator[Mutant]:
    """Mutants of Lua by its words: comments and strings are blank in what is searched."""
    bare = LUA_COMMENT.sub(lambda found: " " * len(found[0]), source)

    def changed(begin: int, end: int, text: str) -> Mutant:
        return Mutant(source.count("\n", 0, begin) + 1, begin, end, text)

    for word, instead in LUA_WORDS.items():
        for found in re.finditer(re.escape(word), bare):
            yield changed(*found.span(), instead)
    for found in LUA_LOGIC.finditer(bare):
        yield changed(*found.span(), "")  # Without its first operand, or not negated.
    for found in LUA_CALL.finditer(bare):
        begin = found.start() + len(found[0]) - len(found[0].lstrip())
        yield changed(begin, found.end(), "")
    for found in re.finditer(r"(?<![\w.])\d+(?![\w.])", bare):
        yield changed(*found.span(), str(int(found[0]) + 1))
