"""Runs the scripts that change the records of shared sessions in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidewarden.queue.catalog import Catalog
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg


class SessionRecords:
    """Runs ``lua/session_*.lua``, which alone change a session's record."""

    def __init__(self, catalog: Catalog, link: StoreClient, scripts: Scripts) -> None:
        self._catalog = catalog
        self._link = link
        self._scripts = scripts
        self._key = f"{{{catalog.cluster}}}:session"
        self._fence_key = f"{{{catalog.cluster}}}:fence"

    def run(self, name: str, *args: Arg) -> asyncio.Future[Any]:
        """Run ``queue.session_NAME``."""
        return self._run(name, (self._key,), args)

    def run_fenced(self, name: str, *args: Arg) -> asyncio.Future[Any]:
        """Run a script that only the leader may run."""
        return self._run(name, (self._key, self._fence_key), args)

    def _run(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> asyncio.Future[Any]:
        reply = self._scripts.run(
            self._link, f"queue.session_{name}", keys, (0, self._catalog.holder, *args)
        )
        reply.add_done_callback(self._replied)
        return reply

    def _replied(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._catalog.on_refused(error)
