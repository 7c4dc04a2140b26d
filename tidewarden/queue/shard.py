"""One shard of one queue: requests that arrive together become one script call; waiting takes are woken, never polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidewarden.errors import BadArg, Error, Internal
from tidewarden.store import Link, Scripts
from tidewarden.store.link import Arg, Receiver

ITEMS_MAX = 500  # of one verb in one script call
BYTES_MAX = 4_000_000  # likewise, so that a call keeps neither the store nor the other items waiting for long
TASK_BYTES = 1000  # what a task that may be taken counts as: one script takes at most 4000
WAKE_MAX = 16  # waiting takes tried at a time: when one of them finds nothing, the rest would too
PROMOTED_MAX = 200  # due tasks that one take moves before it takes


class Parked(Protocol):
    """A waiting take, as a shard sees it."""

    @property
    def named(self) -> bool:
        """Whether it wants one task alone: that it finds nothing says nothing of the others."""

    def try_shard(self, shard: Shard) -> asyncio.Future[bool] | None:
        """Take from ``shard`` now; the future tells whether anything came. None: it is busy elsewhere and will come back."""

    def stop_waiting(self) -> None:
        """End with what there is."""


class _Batch:
    """Items of one verb that go out in one script call: their arguments, and who wants each reply. It receives the script's."""

    __slots__ = ("_shard", "_single", "answered", "args", "bytes", "receivers")

    def __init__(self, shard: Shard, head: Sequence[Arg] = (), *, single: bool = False) -> None:
        self._shard = shard
        self._single = single  # one item, whose reply is all that the script answers
        self.answered = False
        self.args: list[Arg] = [*head]
        self.bytes = 0
        self.receivers: list[Receiver] = []

    def done(self) -> bool:
        return self.answered

    def set_result(self, result: Any, /) -> None:
        self.answered = True
        now_ms, next_ms, woke, items = result
        # Before its items: a take that finds nothing and parks must see what this reply says of the shard.
        self._shard.heard(now_ms, next_ms, bool(woke))
        if self._single:
            items = (items,)
        if len(items) != len(self.receivers):
            self._refuse(Internal(f"a script answered {len(items)} items for {len(self.receivers)}"))
            return
        for receiver, item in zip(self.receivers, items, strict=True):
            if not receiver.done():
                receiver.set_result(item)

    def set_exception(self, exception: BaseException, /) -> None:
        self.answered = True
        self._refuse(exception)

    def _refuse(self, error: BaseException) -> None:
        for receiver in self.receivers:
            if not receiver.done():
                receiver.set_exception(error)
                if isinstance(receiver, asyncio.Future):
                    _ = receiver.exception()  # who has gone leaves no warning


class Shard:
    """
    The scripts of one shard, batched. Every method returns a future of the item's own reply (see ``lua/*.lua``).

    ``holder`` is asked anew for each call, for a node may register again; ``on_next(shard, delay_ms)`` hears the next event.
    """

    def __init__(
        self,
        link: Link,
        scripts: Scripts,
        keys: tuple[str, ...],
        holder: Callable[[], str],
        on_next: Callable[[Shard, int], None],
    ) -> None:
        self.keys = keys
        _, self.queue, index = split_prefix(keys[0])
        self.index = index
        self._link = link
        self._scripts = scripts
        self._holder = holder
        self._on_next = on_next
        self._loop = asyncio.get_running_loop()
        self._batches: dict[str, _Batch] = {}
        self._scheduled = False
        self.parked: dict[Parked, None] = {}
        self.wakes = 0
        self.now_ms = 0  # the store's clock at the latest answer
        self._serving = False
        self._retired = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._next_at: float | None = None

    # --- verbs, one item each

    def put(self, task_id: str, options: str, payload: bytes) -> asyncio.Future[Any]:
        return self._ask("queue.put", (task_id, options, payload), size=len(payload))

    def take(self, count: int, lease_ms: int, wait: bool, task_id: str = "") -> asyncio.Future[Any]:
        args = (count, lease_ms, int(wait), task_id)
        return self._ask("queue.take", args, head=(PROMOTED_MAX,), size=count * TASK_BYTES)

    def ack(self, task_id: str, lease: int, result: bytes = b"") -> asyncio.Future[Any]:
        return self._ask("queue.ack", (task_id, lease, result), size=len(result))

    def wait(self, task_id: str, note: bool) -> asyncio.Future[Any]:
        return self._ask("queue.wait", (task_id, int(note)))

    def end(self, task_id: str, lease: int, how: str, delay_ms: int = -1, reason: str = "") -> asyncio.Future[Any]:
        return self._ask("queue.end", (task_id, lease, how, delay_ms, reason))

    def touch(self, task_id: str, lease: int, lease_ms: int) -> asyncio.Future[Any]:
        return self._ask("queue.touch", (task_id, lease, lease_ms))

    def run(self, name: str, args: Sequence[Arg], now_ms: int = 0) -> asyncio.Future[Any]:
        """Run any script of this shard by itself, after what is batched so far."""
        self._flush()
        future: asyncio.Future[Any] = self._loop.create_future()
        batch = _Batch(self, args, single=True)
        batch.receivers.append(future)
        self._send(name, batch, now_ms)
        return future

    # --- batching

    def _ask(self, name: str, args: tuple[Arg, ...], head: tuple[Arg, ...] = (), size: int = 0) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.add(name, args, future, head, size)
        return future

    def add(
        self, name: str, args: tuple[Arg, ...], receiver: Receiver, head: tuple[Arg, ...] = (), size: int = 0
    ) -> None:
        """Let an item of the verb ``name`` go along with the next script call; ``size`` is what it counts for, in bytes."""
        batch = self._batches.get(name)
        if batch is not None and batch.bytes + size > BYTES_MAX:
            self._flush()
            batch = None
        if batch is None:
            batch = self._batches[name] = _Batch(self, head)
        batch.bytes += size
        batch.args += args
        batch.receivers.append(receiver)
        if len(batch.receivers) >= ITEMS_MAX:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        batches, self._batches = self._batches, {}
        for name, batch in batches.items():
            self._send(name, batch)

    def _send(self, name: str, batch: _Batch, now_ms: int = 0) -> None:
        try:
            self._scripts.send(self._link, name, self.keys, (now_ms, self._holder(), *batch.args), batch)
        except UnicodeEncodeError as error:
            batch.set_exception(BadArg(f"not every id or reason is UTF-8 text: {error.reason}"))
        except Error as error:
            batch.set_exception(error)

    # --- waiting

    def heard(self, now_ms: int, next_ms: int, woke: bool) -> None:
        """What every reply says: the store's clock, when anything happens next (-1: nothing), whether tasks became ready."""
        self.now_ms = now_ms
        if next_ms < 0:
            self._next_at = None
        else:
            delay_ms = max(0, next_ms - now_ms)
            self.expect(delay_ms)
            self._on_next(self, delay_ms)
        if woke:
            self.wake()

    def expect(self, delay_ms: int) -> None:
        """Something happens in the shard in ``delay_ms``: waiting takes are tried then."""
        self._next_at = self._loop.time() + delay_ms / 1000
        if self.parked:
            self._arm()

    def _arm(self) -> None:
        if self._next_at is None:
            return
        if self._timer is not None:
            if self._timer_at <= self._next_at:
                return  # it fires soon enough, and looks again then
            self._timer.cancel()
        # uvloop's handle for a moment that has come already cannot be asked for its time.
        self._timer_at = self._next_at
        self._timer = self._loop.call_at(self._next_at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.wake()

    def park(self, waiter: Parked) -> None:
        """``waiter`` found nothing here and waits; the script that told it so has registered this node."""
        if self._retired:
            waiter.stop_waiting()
            return
        self.parked[waiter] = None
        self._arm()

    def retire(self) -> None:
        """The queue is cut anew: nobody is woken through this object any more, so whoever waits here asks again."""
        self._retired = True
        for waiter in list(self.parked):
            waiter.stop_waiting()

    def unpark(self, waiter: Parked) -> None:
        self.parked.pop(waiter, None)
        if not self.parked and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Tasks may be ready here: try the waiting takes, oldest first."""
        self.wakes += 1
        if self.parked and not self._serving:
            self._serve()

    def _serve(self) -> None:
        tries: list[asyncio.Future[bool]] = []
        named: set[asyncio.Future[bool]] = set()
        for waiter in list(self.parked):
            attempt = waiter.try_shard(self)
            if attempt is not None:
                tries.append(attempt)
                if waiter.named:
                    named.add(attempt)
            if len(tries) - len(named) >= WAKE_MAX:
                break
        if not tries:
            return
        self._serving = True
        left, seen, found = len(tries), self.wakes, len(tries) > len(named)

        def one_done(done: asyncio.Future[bool]) -> None:
            nonlocal left, found
            left -= 1
            if done not in named:
                found = found and not done.cancelled() and done.exception() is None and done.result()
            if left == 0:
                self._serving = False
                if self.parked and (found or self.wakes != seen):
                    self._serve()

        for attempt in tries:
            attempt.add_done_callback(one_done)


def prefix_of(cluster: str, queue: str, shard: int) -> str:
    """The beginning of every key of a shard, with its hash tag."""
    return f"{{{cluster}:{queue}:{shard}}}"


def split_prefix(prefix: str) -> tuple[str, str, int]:
    """Cluster, queue and shard number of a prefix."""
    inner = prefix[1:-1]
    cluster, _, rest = inner.partition(":")
    queue, _, index = rest.rpartition(":")
    return cluster, queue, int(index)
