"""
Follows a call to a Redis Cluster that is under way.

The call is sent again where the server said that it has executed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidewarden.errors import StoreDown
from tidewarden.store.connection import StoreConnection
from tidewarden.store.reply_errors import NotRun
from tidewarden.store.reply_sink import ReplySink, fail_reply


class Redirector(Protocol):
    """
    Decides where a call goes next.

    See :class:`tidewarden.store.redis_cluster.cluster_client.ClusterClient`.
    """

    def astray(
        self, call: RedirectedCall, link: StoreConnection, error: NotRun, *, first: bool
    ) -> None:
        """
        Take back a call that the server at the end of ``link`` has not executed.

        ``first``: it was sent to try for the calls that wait.
        """

    def through(self, slot: int) -> None:
        """Note that the probe of a slot was answered."""


class RedirectedCall:
    """
    Passes the reply on to ``receiver``, or sends the call again where nothing was executed.

    ``until`` (the loop's time, 0: it has met with nothing) it is tried again, ``hops`` is how often
    it was sent on at once, ``why`` the server's last words. As a probe it is the first of those
    that wait for one slot, sent to see whether the slot is served again.
    """

    __slots__ = (
        "_guide",
        "_probes",
        "_receiver",
        "_sent_by",
        "done",
        "hops",
        "link",
        "packed",
        "set_result",
        "slot",
        "until",
        "why",
    )

    def __init__(self, guide: Redirector, slot: int, packed: bytes, receiver: ReplySink) -> None:
        self._guide = guide
        self._receiver = receiver
        self._sent_by: Callable[[StoreConnection], None] | None = getattr(receiver, "sent_by", None)
        self.slot = slot
        self.packed = packed
        self.link: StoreConnection | None = None
        self.until = 0.0
        self.hops = 0
        self.why = ""
        self._probes = False
        self.done = receiver.done
        self.set_result = receiver.set_result

    def probe(self) -> None:
        """Send the call as a probe, whose answer is needed although its caller may have gone."""
        self._probes = True
        self.done = _never
        self.set_result = self._probed

    def _probed(self, result: Any, /) -> None:
        self._end_probe()
        if not self.done():
            self.set_result(result)
        self._guide.through(self.slot)

    def _end_probe(self) -> None:
        self._probes = False
        self.done = self._receiver.done
        self.set_result = self._receiver.set_result

    def goes_by(self, link: StoreConnection) -> None:
        """Note the connection that the call goes by next, and tell another call to go before it."""
        self.link = link
        if self._sent_by is not None:
            self._sent_by(link)

    def give_up(self, error: BaseException) -> None:
        """Fail the call: there will be no reply."""
        fail_reply(self._receiver, error)

    def set_exception(self, exception: BaseException, /) -> None:
        probe = self._probes
        self._end_probe()
        if isinstance(exception, NotRun) and self.link is not None:
            self._guide.astray(self, self.link, exception, first=probe)
        elif probe:
            self.give_up(exception)
            self._guide.through(self.slot)
        elif isinstance(exception, StoreDown):
            fail_reply(self._receiver, exception)
        else:
            self._receiver.set_exception(exception)


def _never() -> bool:
    return False
