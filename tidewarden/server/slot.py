"""The place of one reply in the order of its connection's replies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tidewarden.errors import Draining

from .verbs import Render

if TYPE_CHECKING:
    from .connection import Connection


class Slot:
    """Empty until its result has come; ``done`` is the callback of the future that brings it."""

    __slots__ = ("_connection", "_render", "future", "muted", "reply", "waits")

    def __init__(self, connection: Connection, render: Render | None, waits: bool, muted: bool) -> None:
        self._connection = connection
        self._render = render
        self.waits = waits
        self.muted = muted
        self.reply: bytes | None = None
        self.future: asyncio.Future[Any] | None = None

    def done(self, future: asyncio.Future[Any]) -> None:
        """The result is there."""
        connection = self._connection
        try:
            self.reply = cast(Render, self._render)(future.result(), connection.resp)
        except asyncio.CancelledError:
            self.reply = connection.refuse(Draining("This node is going down. Connect to another."))
        except Exception as error:
            self.reply = connection.refuse(error)
        self.future = None
        connection.answered(self)
