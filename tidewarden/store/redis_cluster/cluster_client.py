"""
Calls the primaries of a Redis Cluster as if they were one server.

Each call goes to the primary that has the slot of its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.errors import StoreDown
from tidewarden.store.connection import (
    AGAIN_S,
    BACKLOG_MAX,
    PATIENCE_S,
    RETRY_FIRST_S,
    Arg,
    StoreConnection,
    pack,
)
from tidewarden.store.reply_errors import NotRun, NotSent
from tidewarden.store.reply_sink import ReplySink, ignore_errors

from .redirects import RedirectedCall
from .slots import host_of, slot_of
from .topology import Topology

log = logging.getLogger("tidewarden.store")

# redirections that are followed at once; then servers seem to disagree, and a call waits before the
# next
HOPS_MAX = 5
# a link to a server without slots ends when what is under way is answered, or after so long
LINGER_S = 1.0
STILL_S = 0.4  # a server that owes answers for so long may have been given up by its cluster
UNSLOTTED = ("TIME", "INFO", "CONFIG", "PING")  # go to any primary


class ClusterClient:
    """
    Keeps one connection to each primary of a Redis Cluster.

    A call that was not executed where it was sent, or that found no connection, is sent again for
    five seconds: in the order of each slot, one call first to try. No other call is.

    ``on_up`` and ``on_ready`` are every link's; ``on_ready`` is told which.
    """

    clustered = True

    def __init__(
        self,
        topology: Topology,
        name: str,
        clock: Clock,
        *,
        on_up: Callable[[StoreConnection], Sequence[Sequence[Arg]]] | None = None,
        on_message: Callable[[Any], None] | None = None,
        on_ready: Callable[[StoreConnection], None] | None = None,
    ) -> None:
        self.topology = topology
        self.url = topology.url
        self.calls = 0
        self._name = name
        self._clock = clock
        self._on_up = on_up
        self._on_message = on_message
        self._on_ready = on_ready
        self._links: dict[str, StoreConnection] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._ended_reconnects = 0
        self._rooms: dict[int, deque[RedirectedCall]] = {}  # calls that wait, by slot
        self._words: dict[int, str] = {}  # what was said last of a slot that is not served
        self._scouted: set[int] = set()  # slots for which one of them is under way
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_event_loop()
        self._stopped = False

    # --- what is seen of it

    @property
    def up(self) -> bool:
        """Return whether at least one primary serves."""
        return any(
            link.up and not self.topology.troubles.get(place) for place, link in self._owners()
        )

    @property
    def at(self) -> str:
        """Return the addresses of all primaries."""
        return " ".join(link.at for _, link in self._owners())

    @property
    def why(self) -> str:
        """Say what keeps primaries from serving."""
        if not self._links:
            return self.topology.why()
        whys = (self.topology.troubles.get(place) or link.why for place, link in self._owners())
        return "; ".join(dict.fromkeys(filter(None, whys)))

    @property
    def reconnects(self) -> int:
        """Return how many connections were made."""
        return self._ended_reconnects + sum(link.reconnects for link in self._links.values())

    def warning(self) -> str:
        """Say which primaries are away, or what is wrong with the cluster."""
        if any(not link.up or self.topology.troubles.get(place) for place, link in self._owners()):
            return f"a part of the store is away: {self.why or 'connecting'}"
        return ""

    def each(self) -> list[StoreConnection]:
        """Return the links to all primaries, in the order of their slots."""
        return [link for _, link in self._owners()]

    def link_of(self, key: str | bytes) -> StoreConnection | None:
        """
        Return the link to the primary that has the key's slot.

        None: no primary is known to, or there is no connection to it yet.
        """
        return self._links.get(self.topology.map.owner(slot_of(key)))

    def _owners(self) -> list[tuple[str, StoreConnection]]:
        return [
            (place, self._links[place])
            for place in self.topology.map.primaries()
            if place in self._links
        ]

    # --- beginning and end

    def launch(self) -> None:
        """Begin to connect, and follow the cluster until :meth:`stop`."""
        self._loop = asyncio.get_running_loop()
        self.topology.follow(self._changed, self._still)
        self._changed()

    async def start(self, *, wait_s: float = PATIENCE_S) -> None:
        """
        Connect to every primary; where one stays away for five seconds, go on without.

        Raises: StoreDown: within ``wait_s`` seconds no primary was there; it goes on trying.
        """
        self.launch()
        begin = self._clock.monotonic()
        while True:
            waited_s = self._clock.monotonic() - begin
            whole = bool(self._links) and not self.topology.map.uncovered() and not self.warning()
            if whole or (self.up and waited_s >= min(wait_s, PATIENCE_S)):
                return
            if waited_s >= wait_s:
                raise StoreDown(
                    f"no connection within {wait_s:g} s: {self.why or self.topology.why()}"
                )
            await sleep(self._clock, RETRY_FIRST_S)

    async def stop(self) -> None:
        """Close every connection. Calls under way fail with StoreDown."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self.topology.forget(self._changed)
        for task in self._ending:
            task.cancel()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(
            *self._ending, *(link.stop() for link in links), return_exceptions=True
        )
        rooms, self._rooms = self._rooms, {}
        for room in rooms.values():
            for call in room:
                call.give_up(NotSent("nothing was sent: the link was closed"))

    def _changed(self) -> None:
        """Follow a slot that has another primary, perhaps one without a connection yet."""
        primaries = self.topology.map.primaries()
        for place in primaries:
            self._link_to(place)
        for place in [place for place in self._links if place not in primaries]:
            task = self._loop.create_task(self._leave(place, self._links.pop(place)))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._again()

    def _still(self) -> bool:
        """Return whether a server owes answers for so long that another may be primary by now."""
        return any(link.owes_s > STILL_S for link in self._links.values())

    def _link_to(self, place: str) -> StoreConnection:
        known = self._links.get(place)
        if known is not None:
            return known
        link = self._links[place] = StoreConnection(
            self.topology.url_of(place),
            self._name,
            self._clock,
            on_up=self._on_up,
            on_ready=lambda: self._ready(link),
            on_message=self._on_message,
        )
        link.launch()
        return link

    async def _leave(self, place: str, link: StoreConnection) -> None:
        """
        Close a connection once its answers have come.

        Its server may have been given up by its cluster and never answer, or have given its slots
        away and go on.
        """
        self._ended_reconnects += link.reconnects
        until = self._clock.monotonic() + LINGER_S
        try:
            while link.up and 0 < link.owes_s < STILL_S and self._clock.monotonic() < until:
                await sleep(self._clock, RETRY_FIRST_S)
            log.info("the server at %s has no slots of the store any more", place)
        finally:
            await link.stop()

    def _ready(self, link: StoreConnection) -> None:
        if self._on_ready is not None:
            self._on_ready(link)
        self._again()

    # --- calls

    def call(self, *args: Arg) -> asyncio.Future[Any]:
        """
        Send one command, whose first argument is its key; or one without a key, to any primary.

        Returns and raises (in the future) what
        :meth:`tidewarden.store.connection.StoreConnection.call` does.
        """
        if args[0] in UNSLOTTED:
            link = next((link for link in self.each() if link.up), None)
            if link is not None:
                return link.call(*args)
        future: asyncio.Future[Any] = self._loop.create_future()
        key = "" if args[0] in UNSLOTTED else args[3 if args[0] == "EVAL" else 1]
        self.send(pack(args), future, key)
        return future

    def send(self, packed: bytes, receiver: ReplySink, key: Arg = "", /) -> None:
        """Send one packed command, of which ``key`` is the first key, for ``receiver``."""
        self.calls += 1
        slot = slot_of(key)
        call = RedirectedCall(self, slot, packed, receiver)
        link = self._links.get(self.topology.map.owner(slot))
        if link is not None and link.up and slot not in self._rooms:
            call.goes_by(link)
            link.send(packed, call)
        else:
            self._wait(call)

    def refused(self, message: str) -> None:
        """Ignore the error: a server that is a replica now refuses whole calls, by MOVED."""

    def astray(
        self, call: RedirectedCall, link: StoreConnection, error: NotRun, *, first: bool
    ) -> None:
        """
        Handle a call that the server at the end of ``link`` has not executed.

        It goes where the server says, or waits a moment.
        """
        call.why = self._words[call.slot] = str(error)
        if call.until == 0.0:
            call.until = self._loop.time() + PATIENCE_S
        place = error.place
        if place.startswith(":"):  # the server does not know by which name we know it
            place = host_of(link.at.partition("://")[2]) + place
        if error.word == "MOVED" and place:
            self.topology.moved(error.slot, place)
        else:
            self.topology.hurry()
        call.hops += 1
        target = self._link_to(place) if place and not self._stopped else None
        if target is not None and target.up and call.hops <= HOPS_MAX and not call.done():
            call.goes_by(target)
            if error.word == "ASK":
                # is for the very next command alone
                target.call("ASKING").add_done_callback(ignore_errors)
            if first:
                call.probe()
            target.send(call.packed, call)
        else:
            self._wait(call, first=first)

    def through(self, slot: int) -> None:
        """Send the calls that wait for a slot: it is served again."""
        self._scouted.discard(slot)
        self._words.pop(slot, None)
        room = self._rooms.pop(slot, None)
        while room:
            call = room.popleft()
            self._waiting -= 1
            link = self._links.get(self.topology.map.owner(slot))
            if call.done():
                continue
            if link is None or not link.up:
                self._wait(call)
            else:
                call.hops = 0
                call.goes_by(link)
                link.send(call.packed, call)

    # --- calls that wait

    def _wait(self, call: RedirectedCall, *, first: bool = False) -> None:
        if first:
            self._scouted.discard(call.slot)
        if self._stopped or self._waiting >= BACKLOG_MAX:
            why = (
                "the link was closed"
                if self._stopped
                else f"the store is away and {BACKLOG_MAX} calls wait for it"
            )
            self._loop.call_soon(call.give_up, NotSent(f"nothing was sent: {why}"))
            return
        if call.until == 0.0:
            call.until = self._loop.time() + PATIENCE_S
        room = self._rooms.setdefault(call.slot, deque())
        if first:
            room.appendleft(call)
        else:
            room.append(call)
        self._waiting += 1
        if self._timer is None:
            self.topology.hurry()
            self._timer = self._loop.call_later(AGAIN_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._again()
        if self._rooms and not self._stopped:
            self.topology.hurry()
            self._timer = self._loop.call_later(AGAIN_S, self._tick)

    def _again(self) -> None:
        """
        Give up calls that have waited for too long; try one call of each slot that has a
        connection.
        """
        now = self._loop.time()
        for slot, room in list(self._rooms.items()):
            link = self._links.get(self.topology.map.owner(slot))
            while room and (room[0].done() or room[0].until <= now):
                call = room.popleft()
                self._waiting -= 1
                call.give_up(
                    NotSent(f"the store is away; nothing was done: {self._why_not(call, link)}")
                )
            if not room:
                if slot not in self._scouted:
                    del self._rooms[slot]
            elif link is not None and link.up and slot not in self._scouted:
                call = room.popleft()
                self._waiting -= 1
                self._scouted.add(slot)
                call.hops = 0
                call.goes_by(link)
                call.probe()
                link.send(call.packed, call)

    def _why_not(self, call: RedirectedCall, link: StoreConnection | None) -> str:
        if call.why:
            return call.why
        if link is not None:
            return (
                link.why if not link.up else self._words.get(call.slot, "")
            ) or f"{link.at} does not answer"
        known = self.topology.map.primaries()
        return f"no server is known to have the slot {call.slot}" if known else self.topology.why()
