"""Gathers the items of one verb for one shard, and receives the replies of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tidewarden.errors import Internal, NoQuorum
from tidewarden.store.connection import Arg, ReplyError, ReplySink, StoreConnection, fail_reply
from tidewarden.store.reply_errors import error_of
from tidewarden.store.scripts.loader import ScriptRun

from .call_sequence import END_REFUSED, OVER, PUT_REFUSED, applied
from .reply_durability import PendingReply, Unconfirmed

WIDTH_OF_END = {"ack": 3, "end": 5}
"""
The number of an item's arguments, by the verbs that end leases; the first two are id and lease.
"""


class Batch:
    """
    Holds items of one verb that wait to be sent: their arguments, and each item's receiver.

    ``first`` is how many of them go before the others.
    """

    __slots__ = ("args", "bytes", "first", "head", "name", "receivers", "verb")

    def __init__(self, name: str, head: Sequence[Arg] = ()) -> None:
        self.name = name
        self.verb = name.rpartition(".")[2]
        self.head = head
        self.bytes = 0
        self.first = 0
        self.args: list[Arg] = []
        self.receivers: list[ReplySink] = []

    def add_first(self, args: Sequence[Arg], receiver: ReplySink) -> None:
        """Add an item that goes before the others, behind earlier items of its kind."""
        at, width = self.first, len(args)
        self.args[at * width : at * width] = args
        self.receivers.insert(at, receiver)
        self.first += 1

    def answer_of_applied(self, said: int) -> list[int] | None:
        """
        Return the answers of a batch that ran, and whose answers were lost; None: unknown.

        ``said`` tells whether some of them were refusals.
        """
        sure = self.verb == "put" and not said & PUT_REFUSED
        sure = sure or (self.verb in ("ack", "end") and not said & END_REFUSED)
        return [1] * len(self.receivers) if sure else None

    def ends(self) -> Iterator[tuple[str, int]]:
        """List ids and numbers of the leases that the call is to end."""
        width = WIDTH_OF_END.get(self.verb, 0)
        for at in range(0, len(self.args), width) if width else ():
            yield str(self.args[at]), int(self.args[at + 1])

    def answer(self, items: Any) -> None:
        """Hand out the script's answer to each item, or its refusal of them all."""
        if isinstance(items, ReplyError):
            self.fail(error_of(str(items)))
        elif len(items) != len(self.receivers):
            self.fail(Internal(f"a script answered {len(items)} items for {len(self.receivers)}"))
        else:
            for receiver, item in zip(self.receivers, items, strict=True):
                if not receiver.done():
                    receiver.set_result(item)

    def fail(self, error: BaseException) -> None:
        """Fail every item: none was done, or the outcome is unknown."""
        for receiver in self.receivers:
            fail_reply(receiver, error)


class CallOwner(Protocol):
    """Declares what a call needs of its owner, the shard that sent it."""

    @property
    def part_refused(self) -> Callable[[str], None]: ...
    @property
    def refused(self) -> Callable[[BaseException], object]: ...

    def on_reply(self, now_ms: int, next_ms: int, woke: bool) -> None: ...
    def on_error(self, batches: Sequence[Batch], error: BaseException) -> None: ...
    def on_shard_state(self, now_ms: int, next_ms: int, woke: bool) -> None: ...
    def refused_alone(self, receiver: ReplySink, error: BaseException, *, final: bool) -> None: ...
    def send_next(self) -> None: ...
    def takes_back(
        self, call: BatchCall, error: BaseException, parts: Sequence[Any] | None = None
    ) -> BaseException | None: ...
    def ended(self, call: BatchCall) -> None: ...
    def answered(self) -> None: ...
    def missed(self) -> None: ...


class BatchCall:
    """
    Receives the script's reply to one call of one or several batches.

    ``serial`` and the attributes that follow are those of :class:`.call_sequence.SequencedCall`.
    """

    __slots__ = (
        "_batches",
        "_shard",
        "answered",
        "args",
        "doubt",
        "in_order",
        "name",
        "order",
        "parts",
        "pending",
        "run",
        "serial",
        "until",
    )

    def __init__(
        self, shard: CallOwner, name: str, args: Sequence[Arg], batches: Sequence[Batch]
    ) -> None:
        self._shard = shard
        self.name = name
        self.args = args
        self._batches = batches
        self.answered = False
        self.in_order = False  # the shard hears of its end
        self.pending: PendingReply | None = None  # what holds the answers back
        self.run: ScriptRun | None = None  # once it was sent
        self.serial: tuple[int, int] | None = None
        self.order = 0
        self.until = 0.0
        self.doubt: BaseException | None = None
        self.parts: Sequence[Any] | None = None

    @property
    def sent_by(self) -> Callable[[StoreConnection], None] | None:
        """Return the callback that hears by which connection the call goes."""
        return None if self.pending is None else self.pending.sent_by

    def done(self) -> bool:
        return self.answered

    def set_result(self, result: Any, /) -> None:
        if self.run is not None:
            self.run.ended()
        # The head goes before the items: a take that finds nothing and parks has to see what this
        # reply says of the shard.
        pending, self.pending = self.pending, None  # no cycle: the cycle collector runs rarely
        if pending is not None:
            parts = self._landed(result)
            self._shard.send_next()
            pending.hold(parts)
            return
        self.deliver(self._landed(result))
        self._shard.send_next()

    def _landed(self, result: Any) -> Sequence[Any]:
        """Pass the shard's state in the reply on; return each batch's part of the reply."""
        self.answered = True
        now_ms, next_ms, woke, items = result
        self._shard.on_reply(now_ms, next_ms, bool(woke))
        if self.in_order:
            self._shard.answered()
        return items if self.name == "queue.batch" else (items,)

    def leases(self, parts: Sequence[Any], /) -> Iterator[tuple[str, int]]:
        """List ids and lease numbers of the tasks that were taken."""
        for batch, part in zip(self._batches, parts, strict=True):
            if batch.name == "queue.take" and not isinstance(part, ReplyError):
                for rows in part:
                    yield from ((row[0].decode("utf-8", "surrogateescape"), row[1]) for row in rows)

    def ends(self) -> Iterator[tuple[str, int]]:
        """List ids and numbers of the leases that the call is to end."""
        for batch in self._batches:
            yield from batch.ends()

    def deliver(self, parts: Sequence[Any], /) -> None:
        """Hand out the answers."""
        if self.order:
            self._shard.ended(self)
        for batch, part in zip(self._batches, parts, strict=True):
            if isinstance(part, ReplyError):  # which the connection did not see
                self._shard.part_refused(str(part))
                self._shard.refused(error_of(str(part)))
            batch.answer(part)

    def unconfirmed(self, parts: Sequence[Any], error: NoQuorum, /) -> None:
        """Send the call again if that may help; else tell that its answers are unconfirmed."""
        told = self._shard.takes_back(self, error, parts)
        if told is not None:
            self._tell(told, parts)
        self._shard.send_next()

    def _tell(self, told: BaseException, parts: Sequence[Any]) -> None:
        """Tell the receivers why it is not known whether these answers last."""
        for batch, part in zip(self._batches, parts, strict=True):
            if isinstance(part, ReplyError):
                batch.fail(told)
                continue
            for receiver, item in zip(batch.receivers, part, strict=True):
                fail_reply(receiver, Unconfirmed(str(told), item))

    def set_exception(self, exception: BaseException, /) -> None:
        if self.run is not None and self.run.again(exception, self):
            return
        pending, self.pending = self.pending, None
        self.answered = True
        if self.in_order:
            self._shard.answered()
        said = applied(exception)
        if said is not None and self.doubt is not None:
            self._ran_before(said, pending)
        else:
            self._failed(exception)
        self._shard.send_next()

    def _failed(self, error: BaseException) -> None:
        told = self._shard.takes_back(self, error)
        if told is None:
            self._shard.on_error((), error)
        else:
            self.give_up(told)

    def give_up(self, error: BaseException) -> None:
        """
        Tell the receivers that the call was refused, or why its outcome is unknown.

        If it has run, each error has the item's answer, by which the taken tasks are known.
        """
        if self.parts is not None and error is self.doubt:
            self._shard.on_error((), error)
            self._tell(error, self.parts)
        else:
            self._shard.refused(error)
            self._shard.on_error(self._batches, error)

    def _ran_before(self, said: int, pending: PendingReply | None) -> None:
        """Answer a call that was sent again and had run before: most answers follow from that."""
        assert self.doubt is not None
        lost: list[Batch] = []
        if self.parts is None:
            parts = [batch.answer_of_applied(said) for batch in self._batches]
            lost = [one for one, part in zip(self._batches, parts, strict=True) if part is None]
            self._batches = [one for one in self._batches if one not in lost]
            self.parts = [part for part in parts if part is not None]
        parts_known, self.parts = self.parts, None
        if lost:  # the call is sent no more: its arguments are those of all batches
            self.until = OVER
        self._shard.on_error(lost, self.doubt)
        if pending is not None:
            pending.hold(parts_known)
        else:
            self.deliver(parts_known)


class SingleCall:
    """
    Receives the reply to one script by itself, or to one item of a batch that is run again.

    ``receiver`` gets the whole answer, or that of the item. A refusal of an item is ``final``.
    """

    __slots__ = ("_final", "_item", "_receiver", "_shard", "done", "in_order", "pending", "run")
    order = 0  # it is never sent again as batches are

    def __init__(
        self, shard: CallOwner, receiver: ReplySink, *, item: bool, final: bool = False
    ) -> None:
        self._shard = shard
        self._receiver = receiver
        self._item = item
        self._final = item or final
        self.done = never
        self.in_order = False  # the shard hears of its end
        self.pending: PendingReply | None = None  # what holds the answer back
        self.run: ScriptRun | None = None  # once it was sent

    @property
    def sent_by(self) -> Callable[[StoreConnection], None] | None:
        """Return the callback that hears by which connection the call goes."""
        return None if self.pending is None else self.pending.sent_by

    def set_result(self, result: Any, /) -> None:
        if self.run is not None:
            self.run.ended()
        answers = self.heard(result)
        pending, self.pending = self.pending, None  # no cycle: the cycle collector runs rarely
        if pending is not None:
            pending.hold(answers)
        else:
            self.deliver(answers)

    def heard(self, result: Any, /) -> Any:
        """Pass the shard's state in the reply on; return the reply's items."""
        now_ms, next_ms, woke, items = result
        self._shard.on_shard_state(now_ms, next_ms, bool(woke))
        if self.in_order:
            self._shard.answered()
        return items

    def leases(self, _items: Any, /) -> tuple[()]:
        """Return no leases, because no take goes alone."""
        return ()

    def deliver(self, items: Any, /) -> None:
        """Hand out the answer."""
        if not self._receiver.done():
            self._receiver.set_result(items[0] if self._item else items)

    def unconfirmed(self, items: Any, error: NoQuorum, /) -> None:
        """Tell the receiver that the answer missed its durability."""
        fail_reply(self._receiver, Unconfirmed(str(error), items[0] if self._item else items))

    def set_exception(self, exception: BaseException, /) -> None:
        run = self.run
        if run is not None and (run.again(exception, self) or run.later(exception, self)):
            return
        self.pending = None
        if self.in_order:
            self._shard.answered()
        self._shard.refused(exception)
        self._shard.refused_alone(self._receiver, exception, final=self._final)


class Whole(SingleCall):
    """Receives the reply to a script by itself, all of which ``receiver`` gets."""

    __slots__ = ()

    def heard(self, result: Any, /) -> Any:
        super().heard(result)
        return result

    def set_exception(self, exception: BaseException, /) -> None:
        # The script ran, and the route withheld its reply.
        if isinstance(exception, NoQuorum):
            self._shard.missed()
        super().set_exception(exception)


def never() -> bool:
    """Return False: the shard learns from a reply even if no caller wants it."""
    return False
