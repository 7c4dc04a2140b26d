"""
Many grants at once: rows of a table, checked one by one; the good ones are put, the bad ones named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidewarden import errors

from . import accounts

AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that was left out: ``line`` counts from 1, the first row of the table."""

    line: int
    account: str
    reason: str


@dataclass(slots=True)
class Imported:
    """How far an import is."""

    added: int = 0
    """New accounts, and new grants of known ones."""
    unchanged: int = 0
    """Accounts that held this grant already."""
    problems: list[Problem] = field(default_factory=list)
    """Of this step alone."""

    @property
    def seen(self) -> int:
        """Rows read so far, the bad ones of this step included."""
        return self.added + self.unchanged + len(self.problems)


PutOne = Callable[[str, str, Mapping[str, Any]], Awaitable[bool]]
"""Puts the fields of one account (provider, name); True: it was new."""


async def import_rows(
    put: PutOne, provider: str, rows: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
) -> AsyncIterator[Imported]:
    """
    Put each row, ``account`` beside the fields of a grant; yields after every few hundred.

    A row's ``account`` is a name within the provider, or ``provider/name``. Only what concerns a row becomes a problem;
    an error that concerns all (the store is away) is raised, and what was put before stays.
    """
    total = Imported()
    line, batch = 0, []
    async for row in _each(rows):
        line += 1
        batch.append((line, row))
        if len(batch) == AT_ONCE:
            yield await _step(put, provider, batch, total)
            batch = []
    if batch:
        yield await _step(put, provider, batch, total)


async def _step(put: PutOne, provider: str, batch: list[tuple[int, Mapping[str, Any]]], total: Imported) -> Imported:
    step = Imported()
    names: dict[str, int] = {}
    waiting = []
    for line, row in batch:
        fields = dict(row)
        name = fields.pop("account", "")
        name = name if isinstance(name, str) else str(name)
        name = name.removeprefix(f"{provider}/")
        if name in names:
            step.problems.append(Problem(line, name, f"account stands on line {names[name]} already"))
            continue
        names[name] = line
        waiting.append((line, name, _one(put, provider, name, fields)))
    results = await asyncio.gather(*(one for _, _, one in waiting))
    for (line, name, _), result in zip(waiting, results, strict=True):
        if isinstance(result, errors.Error):
            step.problems.append(Problem(line, name[: accounts.ACCOUNT_BYTES_MAX], str(result)))
        elif result:
            total.added += 1
        else:
            total.unchanged += 1
    return Imported(total.added, total.unchanged, sorted(step.problems, key=lambda problem: problem.line))


async def _one(put: PutOne, provider: str, name: str, fields: Mapping[str, Any]) -> bool | errors.Error:
    try:
        return await put(provider, name, fields)
    except (errors.BadArg, errors.TooBig) as error:
        return error


async def _each(
    rows: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
) -> AsyncIterator[Mapping[str, Any]]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
