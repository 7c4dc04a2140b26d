"""
Bounds the bytes that are read ahead of one peer, and the replies that lie unread for it.

Past the first bound of each the peer's socket is left alone, so that TCP holds the peer back; past
the last of the replies' it is cut off.
"""

from __future__ import annotations

import asyncio
import logging

from tidewarden.server.access.admission import UnauthenticatedPeer
from tidewarden.server.access.peer import UNAUTHENTICATED, Peer

log = logging.getLogger("tidewarden.server")

# requests read ahead; past it, or past AHEAD_BYTES, the peer's next bytes stay in its socket
PIPELINE_MAX = 1000
AHEAD_BYTES = 16 << 20
SHORT_BYTES = 4096  # of a reply in the mean
OUTPUT_BYTES = 1 << 20  # unread replies past which nothing more is read or begun for the peer
OUTPUT_BYTES_MAX = 64 << 20  # unread replies past which it is cut off
# of a peer that has not been let in: none has to send so much before it knows
UNAUTHENTICATED_PIPELINE_MAX = 16
UNAUTHENTICATED_BYTES = 16_384  # longest request of one, and most unread replies
STALL_S = 60.0  # how long replies may lie unread past OUTPUT_BYTES before it is cut off


class Backpressure:
    """
    Holds back the bytes of one peer, in and out.

    Args:
        transport: the peer's.
        peer: what is at its other end; less is read ahead of it while it is nobody.
        unauthenticated: pays for what is read, until it has logged in.
        loop: for the time that a peer may leave its replies unread.
    """

    __slots__ = (
        "_loop",
        "_peer",
        "_reads",
        "_stall",
        "_transport",
        "ahead",
        "out",
        "paused",
        "reading",
        "short",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        peer: Peer,
        unauthenticated: UnauthenticatedPeer | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._peer = peer
        self._reads: UnauthenticatedPeer | asyncio.Transport = unauthenticated or transport
        self._loop = loop
        self.ahead = 0  # bytes read since there were no requests left to begin
        self.out: list[bytes] = []  # replies that are ready
        self.short = False  # the last replies were
        self.paused = False  # the peer does not read
        self.reading = True
        self._stall: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(
            OUTPUT_BYTES if unauthenticated is None else UNAUTHENTICATED_BYTES
        )

    def authenticated(self, unauthenticated: UnauthenticatedPeer) -> None:
        """Note that the peer's bytes are a user's from now on."""
        self._reads = self._transport
        self._transport.set_write_buffer_limits(OUTPUT_BYTES)
        unauthenticated.authenticated()
        if not self.reading and not self._transport.is_closing():
            self._transport.pause_reading()

    def pause(self) -> None:
        """Read nothing of a peer that leaves its replies unread, and cut it off in a minute."""
        self.paused = True
        self.read(False)
        self._stall = self._loop.call_later(STALL_S, self._transport.abort)

    def resume(self) -> None:
        """Note that the peer reads again."""
        self.paused = False
        self.stop()

    def stop(self) -> None:
        """End the timer."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def read(self, on: bool) -> None:
        """Read the peer's socket, or leave it alone."""
        if on != self.reading and not self._transport.is_closing():
            self.reading = on
            (self._reads.resume_reading if on else self._reads.pause_reading)()

    def flush(self) -> None:
        """Write every reply that is ready, as one piece."""
        out = self.out
        if not out:
            return
        if self._transport.is_closing():
            out.clear()
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self.short = len(data) <= SHORT_BYTES * len(out)
        self._transport.write(data)
        out.clear()
        if self.paused and self._transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            log.warning(
                "peer cut off: it does not read its replies", extra={"peer": self._peer.address}
            )
            self._transport.abort()

    def has_room(self, unbegun: int) -> bool:
        """Return whether more may be read while so many requests are not begun."""
        if self._peer.may is UNAUTHENTICATED:
            return not unbegun
        return unbegun <= PIPELINE_MAX // 2 and self.ahead <= AHEAD_BYTES

    def is_full(self, unbegun: int) -> bool:
        """Return whether nothing more may be read while so many requests are not begun."""
        if self._peer.may is UNAUTHENTICATED:
            return unbegun > UNAUTHENTICATED_PIPELINE_MAX or self.ahead > UNAUTHENTICATED_BYTES
        return unbegun > PIPELINE_MAX or self.ahead > AHEAD_BYTES
