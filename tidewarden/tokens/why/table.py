"""
Reads the table of all that is told of accounts and providers, ``table.txt``. Pure.

A section begins with ``== NAME: what it is about``. In one marked ``one code`` the first code whose
first row holds is told alone. A row begins with ``CODE | CONDITION``; of several codes it stands
for each. Its indented lines are a sentence, then fields: see :class:`Row`. The sentences of rows of
one code that follow each other are one text.

A condition is a list of facts that are all true; ``!fact`` is the contrary, ``fact=word`` says that
the fact is that word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from .facts import Facts
from .wording import fill


@dataclass(slots=True, kw_only=True)
class Row:
    """Says one thing, by sentences with names of facts in braces."""

    code: str
    """The code for programs; docs/protocol.md names all codes that have a sentence."""
    condition: tuple[str, ...]
    sentence: str = ""
    figures: str = ""
    """Facts that programs get; ``of=hold.asked`` gives one under another name."""
    advice: str = ""
    """The advice to a person, without the stop at its end."""
    summary: str = ""
    """The summary; that of the first row that holds is the story's."""
    at: str = ""
    """The fact that says when it happens."""
    shared: str = ""
    """The code, after ``provider_``, under which an account's story has the summary."""
    state: str = ""
    """The state of a provider for ``T.STATS``, as are the next two fields."""
    since: str = ""
    """The fact that says since when."""
    error: str = ""
    """The class of failure that it is."""
    message: str = ""

    def holds(self, facts: Facts) -> bool:
        """Return whether the row's condition is met."""
        for word in self.condition:
            path, _, value = word.removeprefix("!").partition("=")
            found = value_of(path, facts)
            if bool(found == value if value else found) == word.startswith("!"):
                return False
        return True

    def numbers(self, facts: Facts) -> dict[str, Any]:
        """Return the row's figures by their names."""
        named = [figure.rpartition("=")[::2] for figure in self.figures.split()]
        return {name or path.rpartition(".")[2]: value_of(path, facts) for name, path in named}


def value_of(path: str, facts: Facts) -> Any:
    """
    Return the fact of that name; None where a part of the path is None.

    Raises: AttributeError.
    """
    found: Any = facts
    for name in path.split("."):
        if found is None:
            return None
        found = getattr(found, name)
    return found


def told(section: str, facts: Facts) -> Iterator[Row]:
    """Yield the rows of a section that hold; only those of one code if the section says so."""
    rows, one_code = sections()[section]
    taken, seen = "", set()
    for row in rows:
        if one_code and (row.code != taken if taken else row.code in seen):
            continue
        seen.add(row.code)
        if row.holds(facts):
            taken = row.code
            yield row


def advised(rows: list[Row], facts: Facts) -> list[str]:
    """Return the rows' advice, each once, without the stop at its end."""
    return [text for text in dict.fromkeys(fill(row.advice, facts) for row in rows) if text]


@cache
def sections() -> dict[str, tuple[list[Row], bool]]:
    """
    Read the rows by section, and whether one code of it is told.

    Raises: ValueError, TypeError.
    """
    known = {one.name for one in fields(Row)} - {"code", "condition"}
    found: dict[str, tuple[list[Row], bool]] = {}
    rows: list[Row] = []
    begun: list[Row] = []
    at = ""
    text = (resources.files(__package__) / "table.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("== "):
            name, _, mark = line[3:].partition(":")[0].partition(", ")
            rows = found.setdefault(name, ([], bool(mark)))[0]
        elif line.startswith("    "):
            word, colon, rest = line.strip().partition(":")
            if colon and word in known:
                at, line = word, rest
            for row in begun:
                setattr(row, at, f"{getattr(row, at)} {line.strip()}".strip())
        elif line and not line.startswith("#"):
            codes, _, condition = line.partition("|")
            begun = [Row(code=code, condition=tuple(condition.split())) for code in codes.split()]
            at = "sentence"
            rows += begun
    return found
