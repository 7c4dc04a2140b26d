"""
Delivers account events from the store's outbox to the stream and the webhooks' queue.

Each script that changes an account's fate leaves the event in its shard, so that no node's death
loses it; a node takes it from there, writes it to the stream and the webhooks' queue, and removes
it.

A node that left an event looks there at once; for nodes that died before they could, every node
looks everywhere now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.tokens.accounts.account_record import RefreshTroubles, parse_troubles
from tidewarden.tokens.accounts.account_store import AccountStore

from .companions import Companions
from .events import ENDS, Events

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 60.0
PAGE = 100
CLAIM_MS = 10_000
AWAY_S = 1.0
STOP_S = 1.0

OUTBOX = "account_outbox"
"""The key of the outbox, in each shard that has one (see lua/prelude.lua)."""
Place = tuple[str, int]
"""A queue and a shard."""
Having = Callable[[Iterable[str], str], Awaitable[list[Place]]]
"""``Queues.having``."""


class Outbox:
    """
    Empties the outboxes. :meth:`run` for ever; :meth:`look` says where there is something.

    Args:
        queues: of accounts, by provider.
        shard_of: of a queue and an account's name.
        having: which shards of queues have a key of that name.
    """

    def __init__(
        self,
        accounts: AccountStore,
        queues: Mapping[str, str],
        shard_of: Callable[[str, str], int],
        having: Having,
        events: Events,
        companions: Companions,
        clock: Clock,
    ) -> None:
        self._accounts = accounts
        self._queues = queues
        self._shard_of = shard_of
        self._having = having
        self._events = events
        self._companions = companions
        self._clock = clock
        self._places: dict[Place, None] = {}
        self._noted = asyncio.Event()

    def look(self, provider: str, account: str = "") -> None:
        """
        Deliver the outbox of this account's shard soon; returns at once.

        Events of a whole provider are in its first shard.
        """
        queue = self._queues[provider]  # also of one that is removed
        self._places[queue, self._shard_of(queue, account) if account else 0] = None
        self._noted.set()

    def look_at(self, queue: str, shard: int) -> None:
        """Note that the shard's outbox has events; returns at once."""
        self._places[queue, shard] = None
        self._noted.set()

    async def run(self) -> None:
        """Deliver noted outboxes, for ever."""
        everywhere = asyncio.create_task(self._look_everywhere(), name="what nobody has told")
        try:
            while True:
                await self._noted.wait()
                try:
                    await self.tell_all()
                except errors.Error as error:
                    log.warning("what became of accounts is told later: %s %s", error.code, error)
                    await sleep(self._clock, AWAY_S)
        finally:
            everywhere.cancel()

    async def tell_all(self) -> None:
        """
        Deliver the outboxes that were noted.

        Raises what the store raises; the outboxes are still noted then.
        """
        while self._places:
            place = next(iter(self._places))
            del self._places[place]  # Whatever comes from now on notes it again.
            try:
                await self._tell(*place)
            except BaseException:
                self._places[place] = None
                raise
        self._noted.clear()

    async def stop(self) -> None:
        """
        Deliver noted outboxes for at most a second; other nodes deliver the rest.

        Call it after :meth:`run` has ended.
        """
        try:
            async with asyncio.timeout(STOP_S):
                await self.tell_all()
        except (TimeoutError, errors.Error) as error:
            log.info("what became of some accounts is told by another node: %s", error)

    async def _look_everywhere(self) -> None:
        while True:
            try:
                if found := await self._having(list(self._queues.values()), OUTBOX):
                    self._places.update(dict.fromkeys(found))
                    self._noted.set()
            except errors.Error as error:
                log.debug("what nobody has told is looked for later: %s", error)
            except Exception:  # nobody waits for this task, so its end would not be noticed
                log.exception("what nobody has told is looked for later, for a reason of ours")
            await sleep(self._clock, LOOK_S)

    async def _tell(self, queue: str, shard: int) -> None:
        provider = next((name for name, one in self._queues.items() if one == queue), "")
        if not provider:
            return  # of a client that this node is not configured for any more: another tells it
        entries = await self._accounts.tell(queue, shard, PAGE, CLAIM_MS)
        while entries:
            for entry in entries:
                await self._tell_one(provider, queue, entry)
            entries = await self._accounts.tell(queue, shard, PAGE, CLAIM_MS, entries)

    async def _tell_one(self, provider: str, queue: str, entry: bytes) -> None:
        try:
            event_id, kind, at_ms, account, data = entry.split(b"\n", 4)
            name, told_ms, said = account.decode(), int(at_ms), details(kind.decode(), data)
        except ValueError:
            log.exception(
                "%s: something that is to be told cannot be read, and is dropped", provider
            )
            return
        if kind.decode() in ENDS:
            troubles = (await self._accounts.get(queue, name)).troubles
            # It may be long ago, and the account have a new grant.
            if troubles is not None and troubles.given_up:
                self._companions.over(f"{provider}/{name}")
        await self._events.tell(event_id.decode(), kind.decode(), told_ms, provider, name, said)


def details(kind: str, data: bytes) -> dict[str, Any]:
    """Decode the details of an event of that kind."""
    if kind == "provider.breaker_open":
        error, _, message = data.decode("utf-8", "replace").partition(" ")
        return {"error": error, "message": message}
    if kind == "account.connected":
        change, _, scope = data.decode("utf-8", "replace").partition(" ")
        return {"change": change, "scope": scope}
    if kind == "account.consent_expiring":
        days, end_ms = data.split(b" ")
        return {"days": int(days), "consent_expires_ms": int(end_ms)}
    if kind == "provider.quarantine_begun":
        return {"refused_share": int(data) / 1000}
    if kind in ("provider.silent", "provider.answers"):
        return dict(
            zip(
                ("node", "error", "message"),
                data.decode("utf-8", "replace").split(" ", 2),
                strict=False,
            )
        )
    if kind.startswith("provider."):
        return {}
    troubles = parse_troubles(data) or RefreshTroubles()
    said: dict[str, Any] = {
        "error": troubles.outcome,
        "message": troubles.message,
        "tries": troubles.tries,
        "since_ms": troubles.first_ms,
    }
    if kind == "account.failing":
        said["next_ms"] = troubles.next_ms
    return said
