"""The end of a connection is told to everybody who waits on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import transport_of

from tidewarden.clock import SystemClock
from tidewarden.errors import StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store.connection import pack


class Faulty:
    """One who cannot bear to be told."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        raise AssertionError("it is never answered")

    def set_exception(self, exception: BaseException, /) -> None:
        raise ValueError("a defect of ours")


async def test_one_who_cannot_be_told_keeps_nobody_waiting(
    valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    link = StoreConnection(valkey.url, "test", SystemClock())
    await link.start(wait_s=60)
    try:
        link.send(pack(("BLPOP", "nothing", 60)), Faulty())
        after = link.call("PING")
        transport_of(link).abort()  # type: ignore[union-attr]
        with pytest.raises(StoreDown, match="was lost"):
            async with asyncio.timeout(20):
                await after
        assert "a call's end could not be told" in caplog.text
        assert await link.call("PING") == b"PONG"
    finally:
        await link.stop()
