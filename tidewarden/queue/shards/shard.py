"""
Sends the calls of one shard of one queue.

Requests that arrive together become one script call. Waiting takes are woken, never polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidewarden.errors import BadArg, Error, StoreDown
from tidewarden.queue.partitioning import split_prefix
from tidewarden.store import Scripts
from tidewarden.store.client import CallSender, StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.set_commit import Flight
from tidewarden.store.memory import StoreMemory
from tidewarden.store.reply_errors import unanswered
from tidewarden.store.reply_sink import ReplySink, fail_reply

from .batch import Batch, BatchCall, SingleCall, Whole
from .call_sequence import CallSequence
from .known_empty import KnownEmpty
from .lease_clock import LeaseClock
from .reply_durability import DurabilityGate
from .resharding import Resharded, repeat, resharded_error
from .waitlist import Waiter, Waitlist

ITEMS_MAX = 500  # items of one verb in one script call
# Bytes of one verb in one script call: more would keep the store and the other items waiting.
BYTES_MAX = 4_000_000
TASK_BYTES = 1000  # counted for each task that may be taken: one script takes at most 4000
# Calls of one shard under way: the store works at one while the other's answers are handed out.
FLYING_MAX = 2
# The same where calls go by several lanes, which have no order: see docs/decisions/0054-flights.md.
IN_ORDER_MAX = 1
# When takes look again after a lost answer: the store may run the call late, or never.
LOOKS_S = (1.0, 5.0)
# These verbs go in one call, in this order: see lua/batch.lua.
TOGETHER = ("queue.put", "queue.ack", "queue.take")
# A reply is read within this time. A reply that seems to be older, by the store's clock, was given
# after that clock had stepped back.
LATE_MS = 15_000
PROMOTED_MAX = 200  # due tasks that one take moves before it takes


class Shard:
    """
    Runs the scripts of one shard, in batches.

    Most methods return a future of the item's own reply (see ``lua/*.lua``).

    ``holder`` is asked anew for each call, because a node may register again. ``on_next(shard,
    delay_ms)`` is told the next event. ``layout`` is the number of the queue's layout. Where the
    store knows a newer one, ``on_resharded(shard, layout)`` says where an id lies now, and the
    calls that can be repeated are repeated. ``on_lost(shard)`` is called when the answer of a take,
    or of a call that gives a task back, was lost. ``on_refused(error)`` is told each refusal.
    """

    # CPython shares the attribute names of objects that have at most 30. With thousands of queues
    # of sixteen shards each, the attributes were a third of a node's memory.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_behind",
        "_flight",
        "_flying",
        "_looks",
        "_next_at",
        "_retired",
        "_scheduled",
        "_sequence",
        "_timer",
        "_timer_at",
        "_told_at",
        "_unanswered",
        "_woken",
        "now_ms",
        "wakes",
    )

    def __init__(
        self,
        link: StoreClient,
        scripts: Scripts,
        keys: tuple[str, ...],
        holder: Callable[[], str],
        on_next: Callable[[Shard, int], None],
        *,
        layout: int = 0,
        lease_clock: LeaseClock | None = None,
        store_memory: StoreMemory | None = None,
        on_resharded: Callable[[Shard, int], asyncio.Future[Any]] | None = None,
        on_lost: Callable[[Shard], None] | None = None,
        on_refused: Callable[[BaseException], object] = bool,
    ) -> None:
        self.keys = keys
        self.layout = f"/{layout}" if layout else ""  # as scripts are told it
        self.lease_clock = lease_clock
        self._store_memory = store_memory or StoreMemory()
        self._on_resharded = on_resharded
        self._on_lost = on_lost
        self.refused = on_refused
        _, self.queue, self.index = split_prefix(keys[0])
        self._link = link
        self.part_refused = link.refused  # told of refused parts of calls, unseen by the link
        self._scripts = scripts
        self.holder = holder
        self.gate = DurabilityGate()
        self._on_next = on_next
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._batches: dict[str, Batch] = {}
        self._scheduled = False
        self._flying = 0  # calls of batches under way
        self._unanswered = 0  # calls under way whose order counts: all but those of run_by
        self._flight: Flight | None = None  # these calls went by it; None: by the link
        self._sequence: CallSequence | None = None  # made with the first call that flies
        # Calls that wait for these answers: few, and a deque would be 0.6 KB for each shard.
        self._behind: list[tuple[str, Sequence[Arg], BatchCall | SingleCall, int]] = []
        self._waitlist = Waitlist(self)
        self._woken = False  # by an answer that is being handed out
        self.parked = self._waitlist.parked
        self.wakes = 0
        self.known_empty = KnownEmpty()
        self.now_ms = 0  # the store's clock at the latest answer
        self._retired = False
        self._looks: list[asyncio.TimerHandle] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._next_at: float | None = None  # by the latest reply
        self._told_at: float | None = None  # by messages, which no reply revokes

    # --- verbs, one item each

    def put(self, task_id: str, options: str, payload: bytes) -> asyncio.Future[Any]:
        return self._ask("queue.put", (task_id, options, payload), size=len(payload))

    def take(
        self,
        receiver: ReplySink,
        count: int,
        lease_ms: int,
        wait: int,
        task_id: str = "",
        session: str = "",
        *,
        first: bool = False,
    ) -> None:
        args = (count, lease_ms, f"{wait}{session}" if session else wait, task_id)
        self.add("queue.take", args, receiver, (PROMOTED_MAX,), count * TASK_BYTES, first=first)

    def ack(self, task_id: str, lease: int, result: bytes = b"") -> asyncio.Future[Any]:
        return self._ask("queue.ack", (task_id, lease, result), size=len(result))

    def wait(self, task_id: str, note: bool) -> asyncio.Future[Any]:
        return self._ask("queue.wait", (task_id, int(note)))

    def end(
        self, task_id: str, lease: int, how: str, delay_ms: int = -1, reason: str = ""
    ) -> asyncio.Future[Any]:
        return self._ask("queue.end", (task_id, lease, how, delay_ms, reason))

    def touch(self, task_id: str, lease: int, lease_ms: int) -> asyncio.Future[Any]:
        return self._ask("queue.touch", (task_id, lease, lease_ms))

    def batched(self, name: str, *args: Arg) -> asyncio.Future[Any]:
        """Add an item of any script that takes a list of items and answers each."""
        return self._ask(name, args)

    def run(
        self, name: str, args: Sequence[Arg], now_ms: int = 0, *, final: bool = False
    ) -> asyncio.Future[Any]:
        """
        Run any script of this shard by itself, after the items that are batched so far.

        Where a newer layout of the queue refuses it, its error comes after the settings were read;
        ``final``: the error comes at once, for a caller that reads the settings.
        """
        self._send_all()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._call(name, args, SingleCall(self, future, item=False, final=final), now_ms)
        return future

    def run_by(
        self, link: CallSender, name: str, args: Sequence[Arg]
    ) -> asyncio.Future[tuple[int, int, int, Any]]:
        """
        Run any script of this shard by itself on another connection.

        Its reply comes whole, and is held back for no durability. The shard's state is updated
        even if the caller cancels.
        """
        future: asyncio.Future[tuple[int, int, int, Any]] = self._loop.create_future()
        self._call(name, args, Whole(self, future, item=False), link=link)
        return future

    # --- batching

    def _ask(
        self, name: str, args: tuple[Arg, ...], head: tuple[Arg, ...] = (), size: int = 0
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.add(name, args, future, head, size)
        return future

    def add(
        self,
        name: str,
        args: tuple[Arg, ...],
        receiver: ReplySink,
        head: tuple[Arg, ...] = (),
        size: int = 0,
        *,
        first: bool = False,
    ) -> None:
        """
        Add an item of the verb ``name`` to the next call.

        ``size`` is what the item counts for, in bytes. ``first``: it goes before the other items.
        """
        batch = self._batches.get(name)
        if batch is not None and batch.bytes + size > BYTES_MAX:
            self._send_all()
            batch = None
        if batch is None:
            batch = self._batches[name] = Batch(name, head)
        batch.bytes += size
        if first:
            batch.add_first(args, receiver)
        else:
            batch.args += args
            batch.receivers.append(receiver)
        if len(batch.receivers) >= ITEMS_MAX:
            self._send_all()
        elif not self._scheduled and self._may_send:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """
        Send the gathered items, at the end of a turn of the loop.

        While a call is under way its answer sends the items that gather until then.
        """
        self._scheduled = False
        if self._batches and self._may_send:
            self._send_all()

    @property
    def _may_send(self) -> bool:
        """Return whether a batch may go without the answer of one before it."""
        if self._repeats:
            return False
        if self._flying == 0:
            return True
        return self._flying < (IN_ORDER_MAX if self.gate.flies else FLYING_MAX)

    def _take_along(self, puts: Batch) -> None:
        """
        Add waiting takes to the puts that make tasks ready, as many as there are tasks.

        No node has to be woken for these tasks.
        """
        ready = sum(not options or options[0] == "0" for options in puts.args[1::3])  # type: ignore[index]
        takes, room = self._batches.get("queue.take"), ITEMS_MAX - 1
        if takes is not None:
            ready, room = ready - takes.first, room - len(takes.receivers)
        size = sum(
            batch.bytes for name in TOGETHER if (batch := self._batches.get(name)) is not None
        )
        scheduled, self._scheduled = self._scheduled, True
        self._waitlist.go_along(puts.args[::3], min(ready, room), (BYTES_MAX - size) // TASK_BYTES)
        self._scheduled = scheduled

    def _send_all(self) -> None:
        if self.parked and "queue.put" in self._batches and not self._store_memory.full:
            self._take_along(self._batches["queue.put"])
        batches, self._batches = self._batches, {}
        together = [batch for name in TOGETHER if (batch := batches.get(name)) is not None]
        if (
            len(together) > 1
            and not self._store_memory.full
            and sum(batch.bytes for batch in together) <= BYTES_MAX
        ):
            for batch in together:
                del batches[batch.name]
            args: list[Arg] = []
            for batch in together:
                args += (batch.verb, len(batch.head) + len(batch.args), *batch.head, *batch.args)
            self._fly("queue.batch", args, together)
        for batch in batches.values():
            self._fly(batch.name, (*batch.head, *batch.args), (batch,))

    def _fly(self, name: str, args: Sequence[Arg], batches: Sequence[Batch]) -> None:
        self._flying += 1
        self._call(name, args, BatchCall(self, name, args, batches))

    def on_reply(self, now_ms: int, next_ms: int, woke: bool) -> None:
        """Note the answer to a call of batches."""
        self._flying -= 1
        self.on_shard_state(now_ms, next_ms, woke=False)
        if woke:
            self.wakes += 1
            self._woken = True

    def on_error(self, batches: Sequence[Batch], error: BaseException) -> None:
        """
        Fail the items of a call of batches that was refused, or whose outcome is unknown.

        Items that a newer layout of the queue refused are repeated there.
        """
        self._flying -= 1
        if unanswered(error):
            self.missed()
        if not batches:  # all is sent again
            return
        error = resharded_error(self.queue, error)
        for batch in batches:
            if isinstance(error, Resharded) and self._on_resharded is not None:
                args = () if batch.name == "queue.take" else batch.args  # a take is of no one id
                repeat(
                    self._on_resharded(self, error.layout), error, batch.receivers, batch.name, args
                )
            else:
                batch.fail(error)
                if batch.name == "queue.take" and isinstance(error, StoreDown):
                    self.lost_take()

    def lost_take(self) -> None:
        """Report that the shard may have a lease whose holder does not know of it."""
        if self._on_lost is not None:
            self._on_lost(self)

    def send_next(self) -> None:
        """
        Try the waiting takes after an answer, and send the items that have gathered meanwhile.
        """
        if self._woken:
            self._woken = False
            if self.parked:
                self._waitlist.wake()
        if self._sequence is not None and self._sequence.repeats:
            self._sequence.go_on()
            return
        self._send_behind()
        if self._batches and self._may_send:
            self._send_all()

    # --- calls that are sent again

    @property
    def idle(self) -> bool:
        """Return whether no batch is under way, except for batches that wait behind other calls."""
        waiting = [one for _, _, one, _ in self._behind if type(one) is BatchCall and not one.order]
        return self._flying == len(waiting)

    @property
    def _repeats(self) -> bool:
        """Return whether calls are to be sent again, for which every new call waits."""
        return self._sequence is not None and self._sequence.repeats

    @property
    def retired(self) -> bool:
        """Return whether the queue is resharded."""
        return self._retired

    def takes_back(
        self, call: BatchCall, error: BaseException, parts: Sequence[Any] | None = None
    ) -> BaseException | None:
        """See :meth:`CallSequence.take_back`."""
        return error if self._sequence is None else self._sequence.take_back(call, error, parts)

    def ended(self, call: BatchCall) -> None:
        """Note that the caller of a call that is in the sequence knows its outcome."""
        assert self._sequence is not None
        self._sequence.ended(call)

    def send_again(self, call: BatchCall) -> None:
        """Send a call that was sent before."""
        self._flying += 1
        call.answered = False
        self._call(call.name, call.args, call)

    def give_up(self, call: BatchCall, error: BaseException) -> None:
        """Note that a call is not sent again."""
        self._flying += 1
        call.give_up(error)

    def leases(self) -> Iterator[tuple[str, int]]:
        """
        List ids and numbers of leases that are in answers not handed out yet, or are to end.

        No other part knows whose leases these are.
        """
        yield from self.gate.leases()
        if self._sequence is not None:
            yield from self._sequence.leases()
        for batch in self._batches.values():
            yield from batch.ends()
        for _, _, landing, _ in self._behind:
            if type(landing) is BatchCall:
                yield from landing.ends()

    # --- the order of calls

    @property
    def flies(self) -> bool:
        """Return whether calls are under way that may run after a call that the link sends now."""
        return self._flight is not None

    def sent(self) -> None:
        """
        Note that a call of this shard goes by the link.

        Until :meth:`answered`, later calls go by the link, too, and so stay behind it.
        """
        self._unanswered += 1

    def answered(self) -> None:
        """Note the answer of such a call, or its end; send the calls that had to stay behind it."""
        self._unanswered -= 1
        if self._unanswered == 0:
            self._flight = None
        self._send_behind()

    def _send_behind(self) -> None:
        """Send the calls that no longer have to stay behind others."""
        while self._behind and (self._flight is None or self._flight.boards):
            if self._repeats and not self._behind[0][2].order:
                return
            self._call(*self._behind.pop(0))

    def _call(
        self,
        name: str,
        args: Sequence[Arg],
        landing: BatchCall | SingleCall,
        now_ms: int = 0,
        link: CallSender | None = None,
    ) -> None:
        flight = self._flight
        again = landing.order > 0
        held = flight is not None and not flight.boards
        if link is None and (held or (self._repeats and not again)):
            self._behind.insert(0 if again else len(self._behind), (name, args, landing, now_ms))
            return
        try:
            script = self._scripts[name]
            if script.grows:
                self._store_memory.check(self.keys[0])
            if link is None:
                if not self._unanswered:
                    flight = self.gate.flight(script.durability)
                landing.pending = self.gate.pending(script.durability, landing, flight)
                link = flight or self._link
                landing.in_order = True
            holder = self.holder()
            if type(landing) is BatchCall and (self.gate.flies or again):
                if self._sequence is None:
                    self._sequence = CallSequence(self)
                holder += self._sequence.begun(landing)
            said = (self.stamped(now_ms), holder, *args)
            self._scripts.send(link, name, self.keys, said, landing)
            if landing.in_order:
                self._flight = flight
                self._unanswered += 1
        except UnicodeEncodeError as error:
            self._refuse(landing, BadArg(f"not every id or reason is UTF-8 text: {error.reason}"))
        except Error as error:
            self._refuse(landing, error)

    def _refuse(self, receiver: BatchCall | SingleCall, error: Error) -> None:
        """
        Refuse a call that was not sent, in a turn of the loop of its own.

        The caller that adds an item is not done with it yet, and items of others are refused, too.
        """
        receiver.in_order = False  # nothing was sent
        self._loop.call_soon(receiver.set_exception, error)

    # --- a queue that was resharded

    def stamped(self, now_ms: int) -> Arg:
        """
        Return the first argument of every script.

        It has the time (0: the store's), the lease clock, and the queue's layout.
        """
        if now_ms == 0 and self.lease_clock is not None:
            return self.lease_clock.stamp(self.layout)
        return f"{now_ms}{self.layout}" if self.layout else now_ms

    def repeat(self, name: str, item: Sequence[Arg], receiver: ReplySink) -> None:
        """Run one item of a batch that was refused elsewhere; a second refusal is final."""
        self._call(name, item, SingleCall(self, receiver, item=True))

    def refused_alone(self, receiver: ReplySink, error: BaseException, *, final: bool) -> None:
        """Fail a script by itself that was refused, or whose outcome is unknown."""
        if unanswered(error):
            self.missed()
        error = resharded_error(self.queue, error)
        if isinstance(error, Resharded) and self._on_resharded is not None and not final:
            repeat(self._on_resharded(self, error.layout), error, [receiver], "", ())
        else:
            fail_reply(receiver, error)

    # --- waiting

    def on_shard_state(self, now_ms: int, next_ms: int, woke: bool) -> None:
        """
        Note the head of every reply.

        It has the store's clock, the time of the next event (-1: none), and whether tasks became
        ready.
        """
        # A reply by another connection (the sweep's) that was given before the latest knows less.
        kept = self._next_at if 0 < self.now_ms - now_ms < LATE_MS else None
        self.now_ms = now_ms if kept is None else self.now_ms
        if next_ms < 0:
            self._next_at = None
        else:
            delay_ms = max(0, next_ms - now_ms)
            self.expect(delay_ms)
            self._on_next(self, delay_ms)
        if (
            kept is not None
            and self._loop.time() < kept
            and (self._next_at is None or kept < self._next_at)
        ):
            self._next_at = kept
        if woke:
            self.wake()

    def missed(self) -> None:
        """
        Make up for a lost answer.

        It may have said that tasks are ready, or that an event comes sooner, and no message tells
        this node. Waiting takes look now, and again later: the store may run the call after what is
        asked now on another connection.
        """
        self._look()
        for look in self._looks:
            look.cancel()
        self._looks = [self._loop.call_later(after_s, self._look) for after_s in LOOKS_S]

    def _look(self) -> None:
        self.wake()
        self._on_next(self, 0)

    def expect(self, delay_ms: int) -> None:
        """Note that an event comes in ``delay_ms``, at which waiting takes are tried."""
        self._next_at = self._loop.time() + delay_ms / 1000
        if self.parked:
            self._arm(self._next_at)

    def on_earlier_event(self, delay_ms: int) -> None:
        """
        Note a message: an event earlier than was known comes in ``delay_ms``.

        Messages come on another connection than replies do. A reply that was given before the
        message, and is read after it, does not know of the event.
        """
        at = self._loop.time() + delay_ms / 1000
        if self._told_at is None or at < self._told_at:
            self._told_at = at
            if self.parked:
                self._arm(at)

    def _arm(self, at: float | None) -> None:
        if at is None:
            return
        if self._timer is not None:
            if self._timer_at <= at:
                return  # it fires soon enough, and looks again then
            self._timer.cancel()
        # uvloop's handle for a moment that has come already cannot be asked for its time.
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._told_at is not None:
            if self._told_at <= self._timer_at:
                self._told_at = None
            else:
                self._arm(self._told_at)
        self.wake()

    def due_by(self, at: float) -> bool:
        """Return whether an event is known to come by ``at`` (the loop's time)."""
        return any(event is not None and event <= at for event in (self._next_at, self._told_at))

    def park(self, waiter: Waiter) -> None:
        """
        Note that ``waiter`` found nothing here and waits.

        The script that found nothing has registered this node.
        """
        if self._retired:
            waiter.stop_waiting()
            return
        self.parked[waiter] = None
        self._arm(self._next_at)
        self._arm(self._told_at)

    def retire(self, error: Error | None = None) -> None:
        """
        Note that the queue is resharded, or dropped, which ``error`` says then.

        No take is woken through this object any more, so all that wait here ask again, or are told.
        """
        self._retired = True
        for waiter in list(self.parked):
            if error is None:
                waiter.stop_waiting()
            else:
                waiter.fail(error)

    def unpark(self, waiter: Waiter) -> None:
        self.parked.pop(waiter, None)
        if not self.parked and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Try the waiting takes, oldest first, because tasks may be ready here."""
        self.wakes += 1
        if self.parked:
            self._waitlist.wake()
