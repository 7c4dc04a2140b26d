"""The place of one reply."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidewarden.errors import NotHeld
from tidewarden.server.resp import encoder
from tidewarden.server.resp.fast_path import AckSlot
from tidewarden.server.resp.reply_slot import PendingSlot, Slot
from tidewarden.server.verbs.command import Pending


class RecordingConnection:
    resp = 3

    def __init__(self, closing: bool) -> None:
        self.closing = closing
        self.answers: list[Slot] = []

    def refuse(self, error: Exception) -> bytes:
        return encoder.error_line(getattr(error, "code", "INTERNAL"), str(error))

    def answered(self, slot: Slot) -> None:
        self.answers.append(slot)


async def settle(result: object, *, closing: bool = False) -> bytes | None:
    """The reply that a future with ``result`` leaves in its slot."""
    connection = RecordingConnection(closing)
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    slot = PendingSlot(cast(Any, connection), Pending(future, encoder.encode), loop)
    slot.begun = True
    if result is None:
        future.cancel()
    elif isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    while not connection.answers:
        await asyncio.sleep(0)
    assert connection.answers == [slot]
    assert slot.work is None
    assert slot.done()
    return slot.reply


async def test_results_errors_cancels_and_defects() -> None:
    assert await settle({"a": 1.5}) == b"%1\r\n$1\r\na\r\n,1.5\r\n"
    assert await settle(NotHeld("gone")) == b"-NOTHELD gone\r\n"
    assert (await settle(None) or b"").startswith(b"-DRAINING")
    assert await settle(None, closing=True) == b""  # whoever called it off reads no error
    assert (await settle(object()) or b"").startswith(b"-INTERNAL")


def test_a_defect_in_one_connection_is_that_ones_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RecordingConnection):
        def answered(self, slot: Slot) -> None:
            raise RuntimeError("broken")

        def abort(self) -> None:
            self.cut = True

    connection = Broken(closing=False)
    slot = AckSlot(cast(Any, connection))
    slot.begun = True
    slot.set_result(1)
    assert slot.reply == b"+OK\r\n"
    assert connection.cut
    assert "broken" in caplog.text
