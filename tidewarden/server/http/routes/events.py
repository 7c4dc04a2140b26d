"""Streams events about accounts and providers, as server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.clock import Clock
from tidewarden.config.load import EVENT_KINDS, means, no_kinds
from tidewarden.config.rights import ACCOUNT_LOOK, ALL, AccountRights, Rights
from tidewarden.errors import BadArg, Error
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.params import parameters_of
from tidewarden.server.http.route import STORE, Route
from tidewarden.tokens.events.events import CURSOR, START, Event, Events

log = logging.getLogger("tidewarden.server")

LOOK_S = 0.5  # how often events of other nodes are looked for, while there is a reader
# How often a reader gets a comment, so that no proxy takes the line for dead, and with it how far
# the stream is: it may have had no event for the reader.
BEAT_S = 15.0
# How long a reader that reads nothing keeps its place, once all buffers between are full.
STALL_S = 60.0


class EventOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which events are streamed."""

    after: Annotated[
        str,
        Meta(
            description="As `Last-Event-ID`, which goes before it.",
            examples=["1795258800000-0"],
        ),
    ] = ""
    types: Annotated[
        str,
        Meta(
            description="Kinds, with `,` between them and `*` at the end for any rest.",
            examples=["account.*,provider.breaker_open"],
        ),
    ] = "*"
    provider: Annotated[
        str, Meta(description="Of this provider alone; empty: of all.", examples=["shop"])
    ] = ""


class EventHeaders(msgspec.Struct, kw_only=True):
    """Says where a stream goes on."""

    last_event_id: Annotated[
        str,
        Meta(
            description="The id of the last event that was read; `0`: all that are kept follow.",
            pattern="^([0-9]{1,16}-[0-9]{1,16}|0|)$",
            examples=["1795258800000-0"],
        ),
    ] = msgspec.field(name="Last-Event-ID", default="")


class EventRoutes:
    """
    Answers ``/v1/events``. Each stream reads the store at its own pace; nothing is kept for it.

    ``rights``: those of the caller.
    """

    def __init__(
        self,
        events: Events,
        clock: Clock,
        polls: LongPolls,
        rights: Callable[[web.Request], Rights] = lambda request: ALL,
    ) -> None:
        self._events = events
        self._clock = clock
        self._polls = polls
        self._rights = rights

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """
        Stream events from now on, until the reader goes.

        With ``Last-Event-ID`` (or ``after``; ``0``: all that are kept) it begins after that event.

        Events of accounts that are not the reader's are left out.

        ``types`` names kinds, with ``,`` between them and ``*`` at the end for any rest;
        ``provider`` one provider.
        """
        query = parameters_of(request, EventOptions)
        after = request.headers.get("Last-Event-ID", query.after)
        if after not in ("", "0") and not CURSOR.fullmatch(after):
            raise BadArg(f"Last-Event-ID is {after[:40]!r}; allowed are the ids of events, and 0.")
        kinds = tuple(part for part in query.types.split(",") if part)
        if nowhere := no_kinds(kinds):
            raise BadArg(
                f"types has {nowhere[0][:40]!r}, which no event is; there are"
                f" {', '.join(EVENT_KINDS)}."
            )
        with self._polls.streaming(request, self._polls.limits.streams):
            return await self._tell(request, after, kinds, query.provider)

    async def _tell(
        self, request: web.Request, after: str, kinds: tuple[str, ...], provider: str
    ) -> web.StreamResponse:
        cursor = await self._events.last() if after == "" else START if after == "0" else after
        lost = cursor == after != START and not await self._events.has(cursor)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        try:
            await response.prepare(request)
            await _send(
                response,
                b": what happens to accounts, providers and stores\nid: %b\n\n" % cursor.encode(),
            )
            if lost:
                await _send(
                    response,
                    b'event: gap\ndata: {"message": "events before these are no longer kept"}\n\n',
                )
            seen = self._rights(request).accounts(*ACCOUNT_LOOK)
            await self._follow(response, cursor, kinds, provider, seen)
        except ConnectionError:  # The reader has gone, or might as well have.
            if request.transport is not None:
                request.transport.abort()  # What lies unread there is not waited for.
        return response

    async def _follow(
        self,
        response: web.StreamResponse,
        cursor: str,
        kinds: tuple[str, ...],
        provider: str,
        seen: AccountRights,
    ) -> None:
        wrote = self._clock.monotonic()
        while True:
            try:
                found = await self._events.after(cursor)
            except Error as error:
                log.debug("a reader of events waits for the store: %s", error)
                found = []
            for cursor, event in found:
                if (
                    means(kinds, event.type)
                    and provider in ("", event.data.get("provider"))
                    and _is_seen(event, seen)
                ):
                    await _send(response, shown(cursor, event))
                    wrote = self._clock.monotonic()
            if found:
                continue
            if self._clock.monotonic() - wrote >= BEAT_S:
                await _send(response, b":\nid: %b\n\n" % cursor.encode())
                wrote = self._clock.monotonic()
            await self._events.wait(LOOK_S)


def _is_seen(event: Event, seen: AccountRights) -> bool:
    """
    Tell whether a reader may see an event.

    An event of a provider as a whole is for readers who may see all of its accounts, an event of no
    provider is for all.
    """
    name = event.data.get("account") or event.data.get("provider")
    return not name or seen.allow(name)


async def _send(response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("it does not read") from None


def shown(cursor: str, event: Event) -> bytes:
    """Return one event as the stream has it."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (cursor.encode(), event.type.encode(), event.body())


ROUTES = (
    # An answer to HEAD has no end either.
    Route(
        "GET",
        "/v1/events",
        "T.LIST",
        EventRoutes.stream,
        head=False,
        query=EventOptions,
        headers=EventHeaders,
        answer=bytes,
        media="text/event-stream",
        errors=STORE,
    ),
)
