"""
Finds the shared Lua that a script needs.

A server builds every function anew at each call, used or not.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

_FUNCTION = re.compile(r"local function (\w+)")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class _Block:
    """
    Holds lines of the shared file: a top-level function, or (nameless) a statement that stays.
    """

    name: str
    text: str
    words: frozenset[str]


@lru_cache(maxsize=8)  # one shared file goes before every script of its rooms
def _blocks(shared: str) -> tuple[_Block, ...]:
    """
    Split Lua into its top-level functions and the statements between them.

    Comment lines are left out. A top-level function begins with ``local function`` and ends with
    ``end`` at the line's beginning, or on its first line.
    """
    blocks: list[_Block] = []
    name, lines = "", list[str]()
    for line in shared.splitlines():
        if line.startswith("--") or not line.strip():
            continue
        found = _FUNCTION.match(line)
        if found and not name:
            name, lines = found[1], [line]
            done = line.rstrip().endswith(" end")
        elif name:
            lines.append(line)
            done = line.rstrip() == "end"
        else:
            blocks.append(_block("", line))
            continue
        if done:
            blocks.append(_block(name, "\n".join(lines)))
            name, lines = "", []
    if name:
        raise ValueError(f"the Lua function {name} has no end at the beginning of a line")
    names = Counter(block.name for block in blocks if block.name)
    if twice := [one for one, times in names.items() if times > 1]:
        raise ValueError(
            f"two Lua functions of one script are called {twice[0]}: who calls it would get the"
            " second alone"
        )
    return tuple(blocks)


def _block(name: str, text: str) -> _Block:
    return _Block(name, text, frozenset(_WORD.findall(text)))


def trim(shared: str, body: str) -> str:
    """
    Remove the top-level functions from ``shared`` that ``body`` does not use.

    Uses through other functions count. Raises: ValueError: a function of ``body`` has the name of
    one of ``shared``, or two of these have the same: a reader would take one for the other.
    """
    blocks = _blocks(shared)
    functions = {block.name: block for block in blocks if block.name}
    for name in _FUNCTION.findall(body):
        if name in functions:
            raise ValueError(
                f"a Lua script has a function {name} of its own, and so have the files before it"
            )
    wanted: set[str] = set()
    unread = [frozenset(_WORD.findall(body)), *(block.words for block in blocks if not block.name)]
    while unread:
        for word in unread.pop() & functions.keys() - wanted:
            wanted.add(word)
            unread.append(functions[word].words)
    kept = [block.text for block in blocks if not block.name or block.name in wanted]
    return "\n".join(kept) + "\n" if kept else ""
