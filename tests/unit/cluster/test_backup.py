"""A backup on its node: made, fetched, dropped, and what refuses it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidewarden.clock import SystemClock
from tidewarden.cluster.backup import Backups
from tidewarden.errors import BadArg, Exists, Full, NotFound, StoreDown

BODY = b"0123456789" * 300_000


async def whole() -> AsyncIterator[bytes]:
    yield BODY[:10]
    await asyncio.sleep(0)
    yield BODY[10:]


async def broken() -> AsyncIterator[bytes]:
    yield BODY
    raise StoreDown("gone")


def backups(folder: Path, copy: object = whole) -> Backups:
    return Backups(folder / "backups", SystemClock(), copy, lambda: {"epoch": 7})  # type: ignore[arg-type]


async def test_it_is_fetched_in_pieces_and_dropped(tmp_path: Path) -> None:
    made = backups(tmp_path)
    header = await made.make()
    assert (header["bytes"], header["epoch"]) == (len(BODY), 7)
    assert header["sha256"] == hashlib.sha256(BODY).hexdigest()
    (file,) = (tmp_path / "backups").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    found = b""
    while piece := await made.read(header["backup"], len(found)):
        found += piece
    assert found == BODY
    assert (await made.drop(header["backup"]), await made.drop(header["backup"])) == (1, 0)
    with pytest.raises(NotFound, match="takes the place of the last"):
        await made.read(header["backup"], 0)


async def test_one_at_a_time_and_one_kept(tmp_path: Path) -> None:
    made = backups(tmp_path)
    first = await made.make()
    beginning = asyncio.ensure_future(made.make())
    await asyncio.sleep(0)
    with pytest.raises(Exists):
        await made.make()
    await beginning
    assert await made.drop(first["backup"]) == 0


async def test_a_broken_one_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreDown):
        await backups(tmp_path, broken).make()
    assert list((tmp_path / "backups").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(Full, match="cannot be kept"):
        await backups(tmp_path / "file").make()
    with pytest.raises(BadArg, match="The store is your own"):
        await backups(tmp_path, None).make()
    with pytest.raises(BadArg):
        await backups(tmp_path).read("../x", 0)
