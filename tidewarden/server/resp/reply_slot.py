"""Keeps the place of one reply in the order of its connection's replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tidewarden.errors import Draining

from . import encoder

log = logging.getLogger("tidewarden.server")


Render = Callable[[Any, int], bytes]


@dataclass(slots=True)
class Pending:
    """
    Holds an answer that is still to come.

    ``render(result, resp)`` makes the reply of it, ``resp`` being 2 or 3. ``waits``: it may take as
    long as the caller said, holds up what follows on its connection, and ends with the connection.
    """

    result: Awaitable[Any]
    render: Render
    waits: bool = False


class ReplyOrder(Protocol):
    """Stands for the connection whose replies the slots keep in order."""

    @property
    def resp(self) -> int: ...
    @property
    def closing(self) -> bool: ...
    def refuse(self, error: BaseException) -> bytes: ...
    def answered(self, slot: Slot) -> None: ...
    def abort(self) -> None: ...


class Slot:
    """
    Keeps the place of a reply, empty until its result has come.

    The result comes as a future's (``come``), or directly (``set_result``).

    ``begun``: the connection counts it among what is under way, and has to be told; from then on
    ``began`` (seconds of the monotonic clock), ``verb``, ``name`` and ``bytes_in`` are what is to
    be noted of the request when it is answered. ``work``: what to cancel when the reply is not
    wanted any longer.
    """

    __slots__ = (
        "began",
        "begun",
        "bytes_in",
        "connection",
        "muted",
        "name",
        "reply",
        "verb",
        "waits",
        "work",
    )

    began: float
    bytes_in: int
    name: bytes
    verb: str

    def __init__(self, connection: ReplyOrder, waits: bool = False) -> None:
        self.connection = connection
        self.waits = waits
        self.muted = False
        self.begun = False
        self.reply: bytes | None = None
        self.work: Any = None

    def render(self, result: Any) -> bytes:
        """Make the reply for a result. Raises what the caller is to read as an error."""
        raise NotImplementedError

    def done(self) -> bool:
        return self.reply is not None

    def set_result(self, result: Any, /) -> None:
        try:
            self.reply = self.render(result)
        except Exception as error:
            self.reply = self.connection.refuse(error)
        # it knows us: a ring, and with it the payload, would last until the rare collection
        self.work = None
        if self.begun:
            self._tell()

    def set_exception(self, error: BaseException, /) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.reply = self.connection.refuse(error)
        elif self.connection.closing:
            # the peer has gone, or has said that it will say no more: it called this off itself
            self.reply = b""
        else:
            self.reply = self.connection.refuse(
                Draining("This node is going down. Connect to another.")
            )
        self.work = None
        if self.begun:
            self._tell()

    def _tell(self) -> None:
        try:
            self.connection.answered(self)
        except Exception:
            # Other peers' replies come in the same call, which must not end here.
            log.exception("a defect in sending a reply; its peer is cut off")
            self.connection.abort()

    def cancel(self) -> None:
        """End the work: its reply is not wanted any longer."""
        if self.work is not None:
            self.work.cancel()


class PendingSlot(Slot):
    """Keeps the place of a reply whose result a future brings."""

    __slots__ = ("_render",)

    def __init__(
        self, connection: ReplyOrder, pending: Pending, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(connection, pending.waits)
        self._render, result = pending.render, pending.result
        if self._render is encoder.encode and asyncio.iscoroutine(result):
            self._render, result = encoder.encoded, self._encoded(result)
        self.work = result if asyncio.isfuture(result) else asyncio.ensure_future(result, loop=loop)
        self.work.add_done_callback(self.come)

    async def _encoded(self, result: Coroutine[Any, Any, Any]) -> bytes:
        return await encoder.encode_in_turns(await result, self.connection.resp)

    def render(self, result: Any) -> bytes:
        return self._render(result, self.connection.resp)

    def come(self, future: asyncio.Future[Any]) -> None:
        """Take the result from its future."""
        self.work = None
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())
