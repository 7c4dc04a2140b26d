"""Serves ``R.TRAFFIC`` and ``R.TAP``, which show requests, counted or as they pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from tidewarden.clock import sleep
from tidewarden.errors import BadArg, Error
from tidewarden.server.access.required_rights import ADMIN, every
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.server.services import Services
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic
from tidewarden.server.traffic.report import TOP_MAX, Sort, TrafficQuery, TrafficReport
from tidewarden.server.traffic.tables import By
from tidewarden.server.traffic.tap import MS_MAX, ONE_IN_MAX, Tap, TapFilter, Taps
from tidewarden.server.traffic.windows import Over

from .command import Command
from .options import Option, Options, Read, lowered, number, shown, text


def one_of(kind: Any) -> Read:
    """Return a reader of the words of a Literal type."""
    allowed = get_args(kind)

    def read(word: str, value: bytes) -> str:
        found = lowered(word, value)
        if found not in allowed:
            raise BadArg(f"{word} is one of {', '.join(allowed)}: found {shown(value)}.")
        return found

    return read


def top(word: str, value: bytes) -> int:
    """Read how many rows are wanted."""
    found = number(word, value)
    if not 1 <= found <= TOP_MAX:
        raise BadArg(f"{word} is from 1 to {TOP_MAX}: found {found}.")
    return found


def one_in(word: str, value: bytes) -> int:
    """Read ``1/n``."""
    first, slash, rest = value.partition(b"/")
    if first != b"1" or not slash or not rest.isdigit() or not 1 <= int(rest[:16]) <= ONE_IN_MAX:
        raise BadArg(f"{word} is 1/n, n from 1 to {ONE_IN_MAX}: found {shown(value)}.")
    return int(rest)


TRAFFIC = Options(
    "R.TRAFFIC",
    {
        "BY": Option("by", one_of(By)),
        "TOP": Option("top", top),
        "SORT": Option("sort", one_of(Sort)),
        "OVER": Option("over", one_of(Over)),
        "NODE": Option("node", text),
    },
)
TAP = Options(
    "R.TAP",
    {
        "USER": Option("user", text),
        "QUEUE": Option("queue", text),
        "RATE": Option("one_in", one_in),
        "MS": Option("ms", number),
    },
)
PUSH = "tap"
AGAIN_S = 0.05
"""Seconds before a reader that has not read is tried again."""


def traffic(connection: Connection, request: Request) -> Pending:
    """Answer ``R.TRAFFIC``."""
    query = TrafficQuery(**TRAFFIC.parse(request, 1))
    return Pending(_traffic_of(connection.server.services).report(query), _told)


def _told(report: TrafficReport, resp: int) -> bytes:
    return encoder.encode(msgspec.to_builtins(report), resp)


def _traffic_of(services: Services) -> ClusterTraffic:
    if services.traffic_of_cluster is None:
        raise Error("This node counts no traffic.")
    return services.traffic_of_cluster


def tap(connection: Connection, request: Request) -> Pending:
    """
    Answer ``R.TAP``.

    Lines are pushed in RESP3, and stand in the reply in RESP2, which has no pushes.
    """
    if connection.transaction is not None:
        raise BadArg("R.TAP cannot be part of a transaction.")
    fields = TAP.parse(request, 1)
    ms = fields.pop("ms", 0)
    if not 1 <= ms <= MS_MAX:
        raise BadArg(f"R.TAP needs MS ms, from 1 to {MS_MAX}: how long it shows requests.")
    connection.check_wait()
    shows = _stream(connection, TapFilter(**fields), ms / 1000)
    return Pending(shows, encoder.encode, waits=True)


async def _stream(connection: Connection, wanted: TapFilter, seconds: float) -> dict[str, Any]:
    taps = _traffic_of(connection.server.services).own.recorder.taps
    with connection.server.limits.taps.held(connection.peer.user or ""):
        return await _shown(connection, taps, wanted, seconds)


async def _shown(
    connection: Connection, taps: Taps, wanted: TapFilter, seconds: float
) -> dict[str, Any]:
    clock, news, pushed = connection.server.clock, asyncio.Event(), 0
    opened = taps.begin(wanted, news.set)
    over = asyncio.ensure_future(sleep(clock, seconds))
    over.add_done_callback(lambda _: news.set())
    try:
        while not over.done():
            await news.wait()
            news.clear()
            if connection.resp == 3:
                pushed += await push_lines(connection, opened, over.done)
    finally:
        over.cancel()
        taps.end(opened)
    found = {"matched": opened.matched, "dropped": opened.dropped}
    left = opened.take()
    return {**found, "shown": pushed + len(left), "lines": left}


async def push_lines(connection: Connection, tap: Tap, over: Callable[[], bool]) -> int:
    """
    Push a tap's lines, a message each; wait while the peer does not read, until the tap is over.

    Lines that are left then are dropped: a peer that never reads would keep the tap from others.
    """
    pushed = 0
    while lines := tap.take(100):
        data = b"".join(encoder.push([PUSH, line]) for line in lines)
        while not connection.push(data):
            if over():
                tap.dropped += len(lines) + len(tap.take())
                return pushed
            await sleep(connection.server.clock, AGAIN_S)
        pushed += len(lines)
    return pushed


async def push(connection: Connection, data: bytes) -> None:
    """Push messages to a peer, and wait while it does not read."""
    while not connection.push(data):
        await sleep(connection.server.clock, AGAIN_S)


COMMANDS = (
    Command(
        "R.TRAFFIC",
        traffic,
        1,
        11,
        every(*ADMIN),
        "[BY request|user|verb|queue|peer] [TOP n] [SORT requests|bytes|errors|time]"
        " [OVER minute|start] [NODE name|all]",
        group="cluster",
    ),
    Command(
        "R.TAP",
        tap,
        3,
        9,
        every(*ADMIN),
        "[USER u] [QUEUE q] [RATE 1/n] MS ms",
        group="cluster",
        immediate=True,
        together=1,
    ),
)
