"""
Reads and writes accounts in the store.

Each method runs one script of ``tokens/lua``, batched with what else is asked of that shard.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tidewarden import errors
from tidewarden.config.error_classes import ERROR_CLASSES, Kind
from tidewarden.queue import Taken

from .account_record import (
    AccountRow,
    Intent,
    RefreshTroubles,
    Step,
    parse_intent,
    parse_row,
    parse_troubles,
)

log = logging.getLogger("tidewarden.tokens")

ITEMS_MAX = 200
ROUSED_MAX = 500  # Accounts that one script looks at.
ORPHAN = b"drop"  # In the place of a previous row: what has no place any more is no spare.

RunScript = Callable[[str, str, int, Sequence[str | bytes | int]], Awaitable[Any]]
"""``Queues.script``: name, queue, shard, arguments; returns the script's items."""
RunEach = Callable[[str, str, Sequence[str | bytes | int]], Awaitable[list[Any]]]
"""``Queues.script_each``: name, queue, arguments; returns each shard's items."""


class Shards(Protocol):
    """Knows how queues are cut into shards; the catalog of queues does."""

    def shard_of(self, queue: str, task_id: str, /) -> int:
        """Return the number of the shard in which an account of a known queue lies."""

    async def shard_count(self, queue: str, /) -> int:
        """Return how many shards a queue has. Raises: what the store raises."""


@dataclass(frozen=True, slots=True)
class AccountReading:
    """Holds an account as it was at ``now_ms`` of the store's clock."""

    now_ms: int
    floor: int
    """
    Highest grant of any account deleted from its shard; a new account's first grant is one more.
    """
    row: AccountRow | None
    troubles: RefreshTroubles | None
    began: int = 0
    """
    The grant that the account began with; a lesser one belongs to a former account of the same
    name. 0: there is no account.
    """

    @property
    def grant(self) -> int:
        """Return the grant that the account has; 0: there is no account."""
        return self.row.grant if self.row is not None else 0


class Opened(msgspec.Struct, frozen=True):
    """Holds what a written intent found: the account that is to be refreshed."""

    now_ms: int
    row: AccountRow
    troubles: RefreshTroubles
    spare: AccountRow | None
    found: Intent | None
    """An intent that was left open before."""


@dataclass(frozen=True, slots=True)
class RefusedAccount:
    """
    Says why no intent was written.

    ``why``: ``NOTHELD``, ``GONE``, or ``OPEN`` with the end of another's intent.
    """

    why: str
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds one account of a page; its row has no tokens."""

    account: str
    row: AccountRow
    troubles: RefreshTroubles | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Holds the sealed pairs of one account, as they lie in the store."""

    account: str
    row: bytes = field(repr=False)
    spare: bytes = field(repr=False)
    """Empty: there is none."""
    troubles: RefreshTroubles | None
    details: bytes = b""
    """Empty: there are none."""


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """Holds what the store knows of a provider's accounts as a whole."""

    counts: dict[str, int]
    """See :meth:`AccountStore.stats`."""
    client: bytes = field(repr=False)
    """The record of its client."""
    clock_ms: int
    """The time now by the leases' clock."""
    lag_ms: int
    """How far unix time is ahead of the leases' clock."""


Batch = tuple[int, int, list[Entry]]
"""The next cursor or 0, the store's now_ms, some accounts."""


class AccountStore:
    """
    Reads and writes accounts.

    Every method raises what the store raises: StoreDown leaves a write undecided.
    """

    def __init__(self, script: RunScript, shards: Shards, each: RunEach | None = None) -> None:
        """
        Run scripts that change nothing on all shards of a queue by ``each``.

        Without it, run them by ``script`` on one shard after the other.
        """
        self.script = script
        self._script_each = each
        self.shards = shards.shard_count
        """How many shards a queue has: see :meth:`Shards.shard_count`."""
        self._shard_of = shards.shard_of
        self._batches: dict[
            tuple[str, str, int], list[tuple[tuple[str | bytes | int, ...], asyncio.Future[Any]]]
        ] = {}
        self._calls: set[asyncio.Task[None]] = set()
        # To ask for it is a system call before Python 3.12.
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, queue: str, account: str) -> AccountReading:
        """Read one account."""
        now_ms, floor, raw, troubles, began, details = await self._item("get", queue, account, ())
        row = parse_row(raw, details) if raw is not None else None
        first = int(began or row.grant) if row is not None else 0
        return AccountReading(now_ms, floor, row, parse_troubles(troubles), first)

    async def sealed(self, queue: str, account: str) -> list[AccountRow]:
        """Read the account's row and its spare, those that are there and can be read."""
        return _readable(account, await self._item("pair", queue, account, ()))

    async def put(
        self,
        queue: str,
        account: str,
        base: tuple[int, int],
        row: AccountRow,
        deadline_ms: int,
        connected: bytes = b"",
    ) -> int:
        """
        Store a new grant if grant and generation are still ``base`` (floor and 0: no such account).

        ``connected``: what the event that it was connected tells; empty: there is none. Returns 1:
        it is stored; 2: that, and :meth:`tell` has something to tell of it; 0: it is not.
        """
        args = (*base, row.pack_all(), row.due_ms, deadline_ms, connected)
        return int(await self._item("put", queue, account, args))

    async def detail(self, queue: str, account: str, row: AccountRow) -> bool:
        """Note the details of a row that stays as it is; False: the row has changed meanwhile."""
        return bool(
            await self._item("detail", queue, account, (row.grant, row.generation, row.pack_all()))
        )

    async def intend(
        self, queue: str, account: str, lease: int, lease_ms: int
    ) -> Opened | RefusedAccount:
        """
        Write down that the holder of ``lease`` is about to refresh.

        The lease runs ``lease_ms`` from now and sticks.
        """
        reply = await self._item("intent", queue, account, (lease, lease_ms))
        if reply[0] != b"OK":
            return RefusedAccount(reply[0].decode(), reply[1] if len(reply) > 1 else 0)
        now_ms, row, troubles, spare, found, details = reply[1:]
        return Opened(
            now_ms,
            parse_row(row, details),
            parse_troubles(troubles) or RefreshTroubles(),
            _spare(account, spare),
            parse_intent(found),
        )

    async def renew(self, queue: str, account: str, lease: int, lease_ms: int) -> bool:
        """
        Have the intent under ``lease`` run on, as :meth:`intend` wrote it.

        False: nothing may be sent under it any more.
        """
        return bool(await self._item("renew", queue, account, (lease, lease_ms)))

    async def stored(
        self,
        queue: str,
        account: str,
        base: tuple[int, int],
        row: bytes,
        due_ms: int,
        deadline_ms: int,
        previous: bytes = b"",
    ) -> str:
        """
        Write a refreshed pair back, with ``previous`` kept beside it.

        Returns: ``STORED``, ``RECOVERED`` (that, and :meth:`tell` tells of it), ``ALREADY``,
        ``SPARE``, ``PAST``, ``GONE``; or ``MOVED`` where it would be a spare and ``previous`` is
        :data:`ORPHAN`.
        """
        return bytes(
            await self._item("stored", queue, account, (*base, row, due_ms, deadline_ms, previous))
        ).decode()

    async def failed(self, queue: str, account: str, lease: int, step: Step) -> bool:
        """
        Close the intent and send the task back as ``step`` says; False: the lease is not current.
        """
        args = (
            lease,
            step.what,
            int(step.delay_s * 1000),
            step.troubles.pack(),
            step.spare,
            step.event,
            step.until_ms,
        )
        return bool(await self._item("failed", queue, account, args))

    async def refresh(
        self, queue: str, account: str, *, force_ms: int = 0, seen: tuple[int, int] = (0, 0)
    ) -> str:
        """
        Have the account refreshed now: ``QUEUED``, ``LEASED``, ``BACKOFF``, ``DEAD`` or ``GONE``.
        ``MOVED`` when its grant and generation are not those that were ``seen`` any more (0:
        whichever it is).

        ``force_ms`` above 0 forces it before its next try is due, and a dead one; ``RECENT`` when
        that was done less than so long ago: it will be again when that time has passed.
        """
        return bytes(await self._item("refresh", queue, account, (force_ms, *seen))).decode()

    async def delete(self, queue: str, account: str) -> list[AccountRow] | None:
        """
        Forget an account, and return its row and its spare; None: there was none.

        An unreadable row or spare is left out.
        """
        found = await self._item("delete", queue, account, ())
        return _readable(account, found) if found else None

    async def page(
        self, queue: str, shard: int, cursor: int, count: int, *, troubled: bool
    ) -> Batch:
        """Read about ``count`` accounts: ``(next cursor or 0, the store's now_ms, entries)``."""
        kind = "troubled" if troubled else "all"
        return _batch(await self.script("tokens.page", queue, shard, (cursor, count, kind)))

    async def first_pages(self, queue: str, count: int, *, troubled: bool) -> list[Batch]:
        """Read the first page of each shard, as :meth:`page` does."""
        kind = "troubled" if troubled else "all"
        return [_batch(found) for found in await self._each("tokens.page", queue, (0, count, kind))]

    async def pairs(
        self, queue: str, shard: int, cursor: int, count: int
    ) -> tuple[int, list[Pairs]]:
        """
        Read about ``count`` accounts of a shard with what is sealed of them.

        Returns: ``(next cursor or 0, pairs)``.
        """
        after, *found = await self.script("tokens.pairs", queue, shard, (cursor, count))
        return int(after), [
            Pairs(account.decode(), row, spare or b"", parse_troubles(troubles), details or b"")
            for account, row, spare, troubles, details in found
        ]

    async def reseal(
        self, queue: str, shard: int, changes: Sequence[tuple[str, str, bytes, bytes]]
    ) -> int:
        """
        Replace pairs by the same pairs sealed otherwise, and return how many were replaced.

        Only those are replaced that are still as they were read.

        Each change is account, ``row`` or ``spare``, the bytes as read, the bytes from now on.
        """
        items = await self.script(
            "tokens.reseal", queue, shard, [part for change in changes for part in change]
        )
        return sum(items)

    async def tell(
        self, queue: str, shard: int, most: int, claim_ms: int, told: Sequence[bytes] = ()
    ) -> list[bytes]:
        """
        Claim the oldest events of a shard's accounts, for this node to deliver within ``claim_ms``.

        ``told`` are events that it has delivered; the shard forgets them. See
        ``tokens/lua/outbox_claim.lua``.
        """
        return list(await self.script("tokens.outbox_claim", queue, shard, (most, claim_ms, *told)))

    async def consents(
        self, queue: str, shard: int, most: int, days: Sequence[int]
    ) -> tuple[int, bool]:
        """
        Leave notices that consents end in so many days, the fewest first, in a shard's outbox.
        Returns how many, and whether there are more to leave at once. See
        ``tokens/lua/consents.lua``.
        """
        told, more = await self.script("tokens.consents", queue, shard, (most, *days))
        return told, bool(more)

    async def level(
        self, queue: str, shard: int, horizon_ms: int, every_ms: int, most: int, life_ms: int
    ) -> tuple[int, int]:
        """
        Level the due times of a shard's accounts, see ``tokens/lua/level.lua``.

        Returns: accounts moved, and about how many fall due within the horizon.
        """
        moved, due = await self.script(
            "tokens.level", queue, shard, (horizon_ms, every_ms, most, life_ms)
        )
        return moved, due

    async def level_all(
        self, queue: str, horizon_ms: int, every_ms: int, most: int, life_ms: int
    ) -> list[tuple[int, int]]:
        """Level each shard, as :meth:`level` does."""
        found = await self._each("tokens.level", queue, (horizon_ms, every_ms, most, life_ms))
        return [(moved, due) for moved, due in found]

    async def probe(
        self, queue: str, shard: int, lease_ms: int, *, level: int, saving: bool, drawn: int
    ) -> Taken | None:
        """
        Lease a ready account although its queue is paused.

        Args:
            level: 0: an account whose last refresh went well; 1: also one that was never tried;
                2: also an account that fails.
            saving: take accounts first that only a refresh now can save.
            drawn: a random number, which chooses among the accounts that were never tried.
        """
        found = await self.script(
            "tokens.probe", queue, shard, (lease_ms, level, int(saving), drawn)
        )
        if not found:
            return None
        name, lease, payload, attempt, deadline_ms, lease_end_ms = found[0]
        return Taken(queue, name.decode(), lease, payload, attempt, deadline_ms, lease_end_ms)

    async def rouse(
        self,
        queue: str,
        shard: int,
        spread_ms: int,
        moves: int = sys.maxsize,
        kinds: Sequence[Kind] = (),
    ) -> int:
        """
        Have at most so many failing accounts of a shard tried anew soon, and return how many were.

        One that the provider said is not to be asked before a time stays. ``kinds``: those alone
        that failed by these; none: all.
        """
        names = [name for name, row in ERROR_CLASSES.items() if row.kind in kinds]
        classes = f" {' '.join(names)} " if kinds else ""
        moved, stay, more = 0, 0, 1
        while more and moved < moves:
            args = (spread_ms, ROUSED_MAX, stay, min(ROUSED_MAX, moves - moved), classes)
            found = await self.script("tokens.rouse", queue, shard, args)
            moved, stay, more = moved + found[0], stay + found[1], found[2]
        return moved

    async def due(self, queue: str, step_ms: int, steps: int) -> list[int]:
        """
        Count the accounts whose refreshes fall due in each of the next steps of time.

        About, where there are many: see ``tokens/lua/due.lua``.
        """
        parts = await self._each("tokens.due", queue, (step_ms, steps))
        return [sum(column) for column in zip(*parts, strict=True)]

    async def stats(self, queue: str) -> dict[str, int]:
        """
        Count accounts by state, ``total``, ``intents`` (open ones) and ``spares``.

        ``next_ms`` is the next try of one that fails, or 0.
        """
        return (await self.figures(queue)).counts

    async def figures(self, queue: str) -> ProviderFigures:
        """Count as :meth:`stats` does, and read what all nodes know of the client, in one call."""
        parts = await self._each("tokens.stats", queue, ())
        *columns, tries, one, seven, thirty, records, clocks, lags = zip(*parts, strict=True)
        total, fresh, late, failing, stopped, dead, lost, intents, spares = (
            sum(column) for column in columns
        )
        counts = {
            "total": total,
            "fresh": fresh,
            "expiring": total - fresh - late - failing - stopped - dead - lost,
            "late": late,
            "failing": failing,
            "stopped": stopped,
            "dead": dead,
            "lost_rotation": lost,
            "intents": intents,
            "spares": spares,
            "consents_1d": sum(one),
            "consents_7d": sum(seven),
            "consents_30d": sum(thirty),
            "next_ms": min((at_ms for at_ms in tries if at_ms), default=0),
        }
        return ProviderFigures(counts, bytes(records[0]), clocks[0], lags[0])

    async def _each(
        self, name: str, queue: str, args: Sequence[str | bytes | int]
    ) -> Sequence[Any]:
        if self._script_each is not None:
            return await self._script_each(name, queue, args)
        return await asyncio.gather(
            *(self.script(name, queue, shard, args) for shard in range(await self.shards(queue)))
        )

    def _item(
        self, verb: str, queue: str, account: str, args: tuple[str | bytes | int, ...]
    ) -> asyncio.Future[Any]:
        """
        Return one account's part of a script call, joined with others of the same turn of the loop.
        """
        lane = (verb, queue, self._shard_of(queue, account))
        loop = self._loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        batch = self._batches.get(lane)
        if batch is None:
            batch = self._batches[lane] = []
            loop.call_soon(self._send, lane, batch)
        batch.append(((account, *args), future))
        if len(batch) >= ITEMS_MAX:
            del self._batches[lane]  # It goes as it is; the next item begins another.
        return future

    def _send(self, lane: tuple[str, str, int], batch: list[Any]) -> None:
        if self._batches.get(lane) is batch:
            del self._batches[lane]
        # A task of its own: whoever waits may be cancelled, what was asked for is still done.
        call = asyncio.create_task(self._call(lane, batch))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, lane: tuple[str, str, int], batch: list[Any]) -> None:
        verb, queue, shard = lane
        try:
            items = await self.script(
                f"tokens.{verb}", queue, shard, [arg for args, _ in batch for arg in args]
            )
            if len(items) != len(batch):
                raise errors.Internal(f"tokens.{verb} answered {len(items)} items for {len(batch)}")
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), item in zip(batch, items, strict=True):
            if not future.done():
                future.set_result(item)


def _words(raw: bytes) -> str:
    """Decode a provider's text, which a script may have cut within a character."""
    return raw.decode("utf-8", "ignore")


def _batch(reply: Sequence[Any]) -> Batch:
    after, now_ms, *found = reply
    entries = [
        Entry(account.decode(), parse_row(row, details), parse_troubles(troubles))
        for account, row, troubles, details in found
    ]
    return int(after), now_ms, entries


def _readable(account: str, found: Sequence[bytes | None]) -> list[AccountRow]:
    *raws, details = found
    rows = []
    for raw in raws:
        try:
            rows += [parse_row(raw, details)] if raw else []
        except errors.Internal as error:
            log.error("a pair of %s cannot be read: %s", account, error)
    return rows


def _spare(account: str, raw: bytes | None) -> AccountRow | None:
    """Read the spare of an account about to be refreshed; an unreadable spare counts as none."""
    try:
        return parse_row(raw) if raw else None
    except errors.Internal as error:
        log.error("the spare pair of %s is of no use: %s", account, error)
        return None
