"""
What happens to accounts and providers, told to whoever wants to know: kept in a stream of the store, queued for webhooks.

What becomes of accounts comes from :mod:`.outbox`, which lets nothing be lost. What becomes of providers is noted in memory and written
by :meth:`Events.run`, again and again while the store is away: one that a node had not written when it was killed is lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config import Webhook, means
from tidewarden.queue.task import NewTask

log = logging.getLogger("tidewarden.tokens")

QUEUE = "_webhooks"
ATTEMPTS = 20  # 5 s, doubling up to an hour: about half a day
BACKOFF_MS = 5_000
WAITING_MAX = 10_000  # Not yet written; the oldest go first.
AWAY_S = 1.0
STOP_S = 1.0
PAGE = 100
CURSOR = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
START, NOW = "0-0", "$"

Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store; returns its reply."""
Put = Callable[[str, NewTask], Awaitable[str]]
"""``Queues.put``."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened. ``data`` has ``provider``, mostly ``account``, and what is special to its kind."""

    id: str
    type: str
    timestamp: str
    """When, as RFC 3339 has it, by the clock of the node that noticed."""
    data: dict[str, Any]

    def body(self) -> bytes:
        """As a webhook receives it."""
        return msgspec.json.encode(self)


class Delivery(msgspec.Struct, frozen=True):
    """The payload of a task of ``_webhooks``."""

    webhook: str
    event: str
    """Its id."""
    body: str


class Events:
    """Of one node, which sees those of all. ``metrics`` counts what this one has told, by provider and kind."""

    def __init__(
        self, call: Call, cluster: str, put: Put, webhooks: Mapping[str, Webhook], clock: Clock, kept: int
    ) -> None:
        self._call = call
        self._stream = f"{{{cluster}}}:events"
        self._cluster = cluster
        self._put = put
        self._webhooks = webhooks
        self._clock = clock
        self._kept = kept
        self._waiting: deque[Event] = deque()
        self._noted = asyncio.Event()
        self._news = asyncio.Event()
        self.told: Counter[tuple[str, str]] = Counter()
        self.lost = 0
        """Events that came while too many waited for the store."""

    def emit(self, kind: str, provider: str, account: str = "", **details: Any) -> None:
        """Tell of something; returns at once. ``account`` is the name within the provider. No secret may be in it."""
        event = self._event(f"evt_{secrets.token_hex(12)}", kind, self._clock.unix_ms(), provider, account, details)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(event)
        self.told[provider, kind] += 1
        self._noted.set()

    async def tell(
        self, event_id: str, kind: str, at_ms: int, provider: str, account: str, details: Mapping[str, Any]
    ) -> None:
        """Write an event that has happened at that time; again under the same id, it is delivered once. Raises what the store raises."""
        await self._write(self._event(event_id, kind, at_ms, provider, account, details))
        self.told[provider, kind] += 1

    def _event(
        self, event_id: str, kind: str, at_ms: int, provider: str, account: str, details: Mapping[str, Any]
    ) -> Event:
        data = {"cluster": self._cluster, "provider": provider}
        if account:
            data["account"] = f"{provider}/{account}"
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        timestamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Event(id=event_id, type=kind, timestamp=timestamp, data=data | dict(details))

    async def run(self) -> None:
        """Write what was noted, for ever."""
        while True:
            await self._noted.wait()
            try:
                await self._write_all()
            except errors.Error as error:
                log.warning("%d events wait to be told: %s %s", len(self._waiting), error.code, error)
                await sleep(self._clock, AWAY_S)

    async def stop(self) -> None:
        """Write what is noted, within a second. After :meth:`run`."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._write_all()
        except (TimeoutError, errors.Error) as error:
            log.warning("%d events are lost, for this node goes down: %s", len(self._waiting), error)

    async def _write_all(self) -> None:
        while self._waiting:
            event = self._waiting[0]
            await self._write(event)
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
        self._noted.clear()

    async def _write(self, event: Event) -> None:
        """Queued first: a second try puts nothing twice, for the tasks have ids."""
        body = event.body()
        for name, hook in self._webhooks.items():
            if means(hook.events, event.type):
                payload = msgspec.json.encode(Delivery(name, event.id, body.decode()))
                task = NewTask(payload, id=f"{name}:{event.id}", lane=name, attempts=ATTEMPTS, backoff_ms=BACKOFF_MS)
                await self._put(QUEUE, task)
        await self._call("XADD", self._stream, "MAXLEN", "~", self._kept, "*", "event", body)
        self._news.set()

    # --- reading

    async def last(self) -> str:
        """The cursor behind which there is nothing yet."""
        found = await self._call("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else START

    async def has(self, cursor: str) -> bool:
        """Whether the event of that cursor is still kept."""
        return bool(await self._call("XRANGE", self._stream, cursor, cursor))

    async def after(self, cursor: str, count: int = PAGE) -> list[tuple[str, Event]]:
        """At most ``count`` events behind a cursor, the oldest first, each with its own."""
        found = await self._call("XRANGE", self._stream, f"({cursor}", "+", "COUNT", count)
        return [(at.decode(), msgspec.json.decode(fields[1], type=Event)) for at, fields in found]

    async def wait(self, seconds: float) -> None:
        """Return when this node has written an event, or after ``seconds``: another may have."""
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
