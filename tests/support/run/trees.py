"""Files of Python as syntax trees: each is parsed once in a process, whichever tests ask."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def statements_in(node: ast.AST) -> list[ast.AST]:
    """A node and all statements in it, those in other statements included; no expressions."""
    found = [node]
    for one in found:
        found += [part for part in ast.iter_child_nodes(one) if isinstance(part, HOLDS_STATEMENTS)]
    return found


@functools.cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """The module of a file and all its statements."""
    return tuple(statements_in(parsed(path)))
