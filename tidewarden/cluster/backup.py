"""
Makes backups: a copy of the store at one moment, kept on this node until it was fetched.

A header describes the copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Exists, Full, NotFound
from tidewarden.store.snapshot import CHUNK

FORMAT = 1
"""The version of the header; a greater one is not read."""
OWN_STORE = (
    "The store is your own, not an embedded one: back it up with its tools (its RDB and append-only"
    " files, `valkey-cli --rdb`)."
)


class Backups:
    """
    Makes one at a time and keeps one, in ``node.data_dir``/backups.

    Args:
        copy: gives the store's bytes; None: the store is not ours to copy.
        facts: what the header says beside the copy's own: the cluster's name, epoch, view, members,
            keys.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        copy: Callable[[], AsyncIterator[bytes]] | None,
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._folder, self._clock, self._copy, self._facts = folder, clock, copy, facts
        self._busy = False

    async def make(self) -> dict[str, Any]:
        """
        Copy the store.

        Returns: the header: ``backup`` (its name here), ``bytes``, ``sha256`` and the facts of
        before the copy began.

        Raises: BadArg: the store is not embedded. Exists: one is being made. Full: no room for it.
        StoreDown.
        """
        if self._copy is None:
            raise BadArg(OWN_STORE)
        if self._busy:
            raise Exists("A backup is being made here.")
        self._busy = True
        name = secrets.token_hex(8)
        try:
            await asyncio.to_thread(self.clear)
            facts = dict(self._facts())
            digest, size = await self._write(self._folder / name, self._copy())
        except OSError as error:
            await asyncio.to_thread(self.clear)
            raise Full(
                f"The copy cannot be kept in {self._folder}: {error.strerror or error}."
            ) from None
        except BaseException:
            await asyncio.to_thread(self.clear)
            raise
        finally:
            self._busy = False
        made = {
            "format": FORMAT,
            "made_at_ms": self._clock.unix_ms(),
            "bytes": size,
            "sha256": digest,
        }
        return {"backup": name, **made, **facts}

    async def read(self, name: str, offset: int) -> bytes:
        """
        Read at most a mebibyte of the copy from ``offset`` on; none at its end.

        Raises: NotFound: it is not here.
        """
        path = self._path(name)

        def piece() -> bytes:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(CHUNK)

        try:
            return await asyncio.to_thread(piece)
        except FileNotFoundError:
            raise NotFound(
                f"There is no backup {name!r} here; a new one takes the place of the last."
            ) from None

    async def drop(self, name: str) -> int:
        """Forget a copy; return 1, or 0 if it was not here."""
        path = self._path(name)
        there = await asyncio.to_thread(path.exists)
        await asyncio.to_thread(path.unlink, True)
        return int(there)

    def clear(self) -> None:
        """Forget all copies, those of a former run included."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink()

    def _path(self, name: str) -> Path:
        if not name.isascii() or not name.isalnum():
            raise BadArg(f"A backup's name: found {name[:80]!r}; allowed: what R.BACKUP answered.")
        return self._folder / name

    async def _write(self, path: Path, pieces: AsyncIterator[bytes]) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            async for piece in pieces:
                size += len(piece)
                await asyncio.to_thread(_keep, file, digest, piece)
        return digest.hexdigest(), size


def _keep(file: Any, digest: Any, piece: bytes) -> None:
    digest.update(piece)
    file.write(piece)
