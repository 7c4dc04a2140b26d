"""
How much is read from a peer and kept for it: what a peer that sends too much, or does not read, may
use up here.

Requests read ahead and unread replies have bounds; past the first of each the peer's socket is left
alone, so that TCP holds the peer back, and past the last of the replies' it is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from tidewarden.errors import Error, TooBig
from tidewarden.server.access.lobby import Stranger
from tidewarden.server.access.peer import STRANGER, Peer
from tidewarden.server.verbs.command import Request

from .parser import RequestReader

if TYPE_CHECKING:
    from .server import RespServer

log = logging.getLogger("tidewarden.server")

# requests read ahead; past it, or past AHEAD_BYTES, the peer's next bytes stay in its socket
PIPELINE_MAX = 1000
AHEAD_BYTES = 16 << 20
SHORT_BYTES = 4096  # of a reply in the mean
OUTPUT_BYTES = 1 << 20  # unread replies past which nothing more is read or begun for the peer
OUTPUT_BYTES_MAX = 64 << 20  # unread replies past which it is cut off
TURNED_AWAY_S = 1.0  # how long one for whom there is no room may take to read that, and to hang up
TURNED_AWAY_MAX = 200  # of those at a time; further ones are hung up on at once
# of a peer that has not been let in: none has to send so much before it knows
STRANGER_PIPELINE_MAX = 16
STRANGER_BYTES = 16_384  # longest request of one, and most unread replies
STALL_S = 60.0  # how long replies may lie unread past OUTPUT_BYTES before it is cut off


class Backpressure(asyncio.Protocol):
    """
    The bytes of one peer. A subclass says what to do with its requests (``_pump``) and errors
    (``refuse``).
    """

    __slots__ = (
        "_ahead",
        "_closing",
        "_flush_due",
        "_held_up",
        "_last_said",
        "_lingers",
        "_out",
        "_paused",
        "_reading",
        "_requests",
        "_short",
        "_stall",
        "_stay",
        "_transport",
        "peer",
        "server",
        "stranger",
    )

    _transport: asyncio.Transport
    _parses: bool
    _reader: RequestReader
    peer: Peer

    def __init__(self, server: RespServer, stranger: Stranger | None = None) -> None:
        self.server: RespServer = server
        self.stranger = stranger  # until it is let in
        self._requests: deque[Request] = deque()
        self._ahead = 0  # bytes read since there were none
        self._out: list[bytes] = []
        self._short = False  # the last replies were
        self._flush_due = False
        self._held_up = False  # a request waits
        self._paused = False  # the peer does not read
        self._reading = True
        self._closing = False
        self._last_said = False  # nothing follows any more, not even that its stream cannot be read
        self._lingers = False  # has been told the last, and may read it
        self._stall: asyncio.TimerHandle | None = None
        # the end of the time that a stranger, or one too many, may stay
        self._stay: asyncio.TimerHandle | None = None

    def refuse(self, error: BaseException) -> bytes:
        """The reply for ``error``."""
        raise NotImplementedError

    def _pump(self) -> None:
        """Begin what may begin, then send what is ready."""
        raise NotImplementedError

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(OUTPUT_BYTES if self.stranger is None else STRANGER_BYTES)

    def pause_writing(self) -> None:
        self._paused = True
        self._read(False)
        self._stall = self.server.loop.call_later(STALL_S, self._transport.abort)

    def resume_writing(self) -> None:
        self._paused = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._read(self._roomy())
        self._pump()

    @property
    def closing(self) -> bool:
        """Whether nothing more is read: it ends when what is under way is answered."""
        return self._closing

    def hang_up(self) -> None:
        """Read nothing more; close when what is under way is answered."""
        self._closing = self._last_said = True
        self._requests.clear()
        self._reader.drop()

    def close(self) -> None:
        """Send what is ready and hang up now."""
        self.hang_up()
        self.flush()
        self._transport.close()

    def turn_away(self, error: Error) -> None:
        """Say why there is no room, and hang up."""
        self._out.append(self.refuse(error))
        self.hang_up()
        self.linger()

    def linger(self) -> None:
        """
        Send what is ready, and hang up when the peer has, or soon.

        It has sent something already: a socket closed with that unread is reset, and it might never
        read why.
        """
        self.flush()
        server, transport = self.server, self._transport
        if self._lingers:
            return
        if self._stay is not None:
            self._stay.cancel()
        plain = transport.can_write_eof()
        if server.turned_away < TURNED_AWAY_MAX:
            self._lingers = True
            server.turned_away += 1
            # with TLS it takes the peer's goodbye, too
            (transport.write_eof if plain else transport.close)()
            self._stay = server.loop.call_later(TURNED_AWAY_S, transport.abort)
        else:
            (transport.close if plain else transport.abort)()

    def abort(self) -> None:
        """Hang up at once, whatever the peer has not read yet."""
        self._transport.abort()

    def flush(self) -> None:
        """Write every reply that is ready, as one piece."""
        self._flush_due = False
        out = self._out
        if not out:
            return
        if self._transport.is_closing():
            out.clear()
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._short = len(data) <= SHORT_BYTES * len(out)
        self._transport.write(data)
        out.clear()
        if self._paused and self._transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            log.warning(
                "peer cut off: it does not read its replies", extra={"peer": self.peer.address}
            )
            self._transport.abort()

    def _roomy(self) -> bool:
        if self.peer.may is STRANGER:
            return not self._requests
        return (
            len(self._requests) <= PIPELINE_MAX // 2
            and self._ahead <= AHEAD_BYTES
            and not self._parses
        )

    def _read_ahead(self, size: int) -> None:
        """
        Requests stay unbegun after ``size`` bytes more were read. When they are too many, the peer
        is held back.
        """
        self._ahead += size
        if self.peer.may is STRANGER:
            if len(self._requests) > STRANGER_PIPELINE_MAX or self._ahead > STRANGER_BYTES:
                self._read(False)
            return
        if len(self._requests) <= PIPELINE_MAX and self._ahead <= AHEAD_BYTES:
            return
        if self._held_up:
            # With its socket unread we would not see it go, and a task could be handed to a peer
            # that is gone.
            self._out.append(
                self.refuse(
                    TooBig(
                        f"At most {PIPELINE_MAX} requests or {AHEAD_BYTES} bytes may stand behind"
                        " one that waits."
                    )
                )
            )
            self.close()
        else:
            self._read(False)

    def _read(self, on: bool) -> None:
        if on != self._reading and not self._transport.is_closing():
            self._reading = on
            source = self.stranger or self._transport
            (source.resume_reading if on else source.pause_reading)()
