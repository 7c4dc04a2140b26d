"""
Writes account and provider events to a stream of the store, and queues them for webhooks.

They come from :mod:`.outbox`, which lets none be lost.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidewarden.config.load import Webhook, means
from tidewarden.queue.task import TaskSpec

QUEUE = "_webhooks"
ATTEMPTS = 20  # 5 s, doubling up to an hour: about half a day
BACKOFF_MS = 5_000
PAGE = 100
CURSOR = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
START, NOW = "0-0", "$"
ENDS = ("account.dead", "account.stopped")
"""Events of an account whose token is not kept fresh any more."""

Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store; returns its reply."""
Put = Callable[[str, TaskSpec], Awaitable[str]]
"""``Queues.put``."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """
    Holds one event.

    ``data`` has ``provider`` (but for ``store.*``), mostly ``account``, and what is special to its
    kind.
    """

    id: str
    type: str
    timestamp: str
    """When it happened by the store's clock, as RFC 3339 writes times."""
    data: dict[str, Any]

    def body(self) -> bytes:
        """Encode the event as a webhook receives it."""
        return msgspec.json.encode(self)


class Delivery(msgspec.Struct, frozen=True):
    """Holds the payload of a task of ``_webhooks``."""

    webhook: str
    event: str
    """Its id."""
    body: str


class Events:
    """
    Writes and reads the cluster's events.

    ``told`` counts the events that this node has told, by provider and kind.
    """

    def __init__(
        self, call: Call, cluster: str, put: Put, webhooks: Mapping[str, Webhook], kept: int
    ) -> None:
        self._call = call
        self._stream = f"{{{cluster}}}:events"
        self._cluster = cluster
        self._put = put
        self._webhooks = webhooks
        self._kept = kept
        self._news = asyncio.Event()
        self.told: Counter[tuple[str, str]] = Counter()

    def change(self, webhooks: Mapping[str, Webhook]) -> None:
        """Use these webhooks."""
        self._webhooks = webhooks

    async def tell(
        self,
        event_id: str,
        kind: str,
        at_ms: int,
        provider: str,
        account: str,
        details: Mapping[str, Any],
    ) -> None:
        """
        Write an event that happened at ``at_ms``.

        An event that is written again under the same id is delivered once. Raises what the store
        raises.
        """
        await self._write(self._event(event_id, kind, at_ms, provider, account, details))
        self.told[provider, kind] += 1

    async def tell_of_cluster(
        self, event_id: str, kind: str, at_ms: int, details: Mapping[str, Any]
    ) -> None:
        """Write an event that concerns no provider, as :meth:`tell` does."""
        data = {"cluster": self._cluster} | dict(details)
        await self._write(Event(id=event_id, type=kind, timestamp=_rfc3339(at_ms), data=data))

    def _event(
        self,
        event_id: str,
        kind: str,
        at_ms: int,
        provider: str,
        account: str,
        details: Mapping[str, Any],
    ) -> Event:
        data = {"cluster": self._cluster, "provider": provider}
        if account:
            data["account"] = f"{provider}/{account}"
        data |= dict(details)
        return Event(id=event_id, type=kind, timestamp=_rfc3339(at_ms), data=data)

    async def _write(self, event: Event) -> None:
        """
        Queue the event for webhooks, then write it to the stream.

        A second try puts nothing twice, because the tasks have ids.
        """
        body = event.body()
        for name, hook in self._webhooks.items():
            if means(hook.events, event.type):
                payload = msgspec.json.encode(Delivery(name, event.id, body.decode()))
                task = TaskSpec(
                    payload,
                    id=f"{name}:{event.id}",
                    lane=name,
                    attempts=ATTEMPTS,
                    backoff_ms=BACKOFF_MS,
                )
                await self._put(QUEUE, task)
        await self._call("XADD", self._stream, "MAXLEN", "~", self._kept, "*", "event", body)
        self._news.set()

    # --- reading

    async def last(self) -> str:
        """Return the cursor behind which there is nothing yet."""
        found = await self._call("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else START

    async def has(self, cursor: str) -> bool:
        """Return whether the event of that cursor is still kept."""
        return bool(await self._call("XRANGE", self._stream, cursor, cursor))

    async def after(self, cursor: str, count: int = PAGE) -> list[tuple[str, Event]]:
        """
        Read at most ``count`` events behind a cursor, the oldest first, each with its own cursor.
        """
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


def _rfc3339(unix_ms: int) -> str:
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
