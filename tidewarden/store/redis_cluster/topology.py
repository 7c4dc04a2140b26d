"""
Parses the URL of a Redis Cluster, and finds the owner of each slot.

All links of a process share it, and it is kept fresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import parse_qsl

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Error, StoreDown
from tidewarden.store.connect import check_url, redact
from tidewarden.store.connection import StoreConnection
from tidewarden.store.preflight import parse_info
from tidewarden.store.reply_errors import NotRun

from .slots import SLOTS, SlotMap, SlotsReply, read_slots, slot_of, whom_to_ask

log = logging.getLogger("tidewarden.store")

SCHEMES, MARK = ("redis", "rediss"), "+cluster://"
FORM = "redis+cluster://[user:password@]host:port,host:port"
PORT = 6379
LOOK_S = 1.0  # so often one server is asked, in turn
HURRY_S = 0.05  # and all of them at most so often
STILL_LOOK_S = 0.2  # likewise while a server is silent
SETTLE_S = 1.0  # a redirection counts for so long against servers that have not heard of it
ASK_S = 1.0  # a server that has not answered by then is not waited for
FOREIGN = "it knows none of the cluster's primaries: it has left, or is of another cluster"
ASKED_MAX = 12  # servers, beside those that the URL names, that questions are kept for

Changed = Callable[[], None]


def by_cluster(url: str) -> bool:
    """Return whether the store behind this URL is a Redis Cluster."""
    return url.startswith(tuple(scheme + MARK for scheme in SCHEMES))


class ClusterUrl:
    """
    Parses a ``redis+cluster://`` URL.

    Its form is ``redis+cluster://[user:password@]host:port,host:port[?options]``; ``rediss+`` is
    TLS to all.

    User, password and options are every server's. Raises: BadArg: the URL does not parse, or names
    a database.
    """

    def __init__(self, url: str) -> None:
        self._scheme, mark, rest = url.partition(MARK)
        place, question, query = rest.partition("?")
        user, at, hosts = place.rpartition("@")
        hosts = hosts.removesuffix("/")
        if not mark or self._scheme not in SCHEMES or not hosts or "/" in hosts:
            raise BadArg(f"the store URL {redact(url)!r} is none of the form {FORM}")
        if dict(parse_qsl(query)).get("db", "0") != "0":
            raise BadArg(
                f"the store URL {redact(url)!r} names a database; a Redis Cluster has but the"
                " one, 0"
            )
        self._user, self._query = user + at, question + query
        self.seeds = tuple(
            one if ":" in one.rpartition("]")[2] else f"{one}:{PORT}" for one in hosts.split(",")
        )
        for one in self.seeds:
            check_url(self.url_of(one))

    def url_of(self, place: str) -> str:
        """Return the URL of the server at ``place`` (host:port)."""
        return f"{self._scheme}://{self._user}{place}{self._query}"


class Topology:
    """
    Asks the servers of a cluster for the owners of slots.

    It asks one in turn every second, all at once after :meth:`hurry`.

    It goes on as long as anybody follows. :attr:`troubles` has what servers say keeps them from
    serving, by their places.
    """

    def __init__(self, url: str, name: str, clock: Clock) -> None:
        self.url = url
        self.address = ClusterUrl(url)
        self.map = SlotMap()
        self.troubles: dict[str, str] = {}
        self.looks = 0
        self._name = f"{name}-ask"
        self._clock = clock
        self._followers: dict[Changed, Callable[[], bool]] = {}
        self._askers: dict[str, StoreConnection] = {}
        self._replicas: dict[str, None] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._hurried = asyncio.Event()
        self._turn = 0
        self._moved_at = 0.0
        self._run_task: asyncio.Task[None] | None = None

    # --- what is known

    def owner(self, key: str | bytes) -> str:
        """Return the place of the primary that has the key's slot; "": none is known to."""
        return self.map.owner(slot_of(key))

    def url_of(self, place: str) -> str:
        """Return the URL of the server at ``place``."""
        return self.address.url_of(place)

    def why(self) -> str:
        """Return why no slot's owner is known."""
        whys = dict.fromkeys(
            filter(None, (*(link.why for link in self._askers.values()), *self.troubles.values()))
        )
        return (
            f"no server of the cluster answers: {'; '.join(whys)}"
            if whys
            else "no server of the cluster answers"
        )

    def moved(self, slot: int, place: str) -> None:
        """Note that the server at ``place`` has the slot now, as another says."""
        if self.map.moved(slot, place):
            self._moved_at = self._clock.monotonic()
            self._tell()
        self.hurry()

    # --- following

    def follow(self, changed: Changed, still: Callable[[], bool] = bool) -> None:
        """
        Call ``changed`` from now on whenever a slot has another primary.

        All are asked while ``still()`` says that a server is silent.
        """
        self._followers[changed] = still
        if self._run_task is None:
            self._keep_askers()
            self._hurried.set()
            self._run_task = asyncio.get_running_loop().create_task(
                self._run(), name="asking the cluster"
            )

    async def forget(self, changed: Changed) -> None:
        """Forget a follower; the last one closes the connections."""
        self._followers.pop(changed, None)
        if self._followers or self._run_task is None:
            return
        tasks = [self._run_task, *self._asking.values(), *self._ends]
        self._run_task = None
        askers, self._askers = self._askers, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(link.stop() for link in askers.values()), return_exceptions=True
        )

    def hurry(self) -> None:
        """Ask all servers soon: something has changed, or seems to."""
        self._hurried.set()

    def _tell(self) -> None:
        self._keep_askers()
        for changed in tuple(self._followers):
            changed()

    # --- asking

    async def _run(self) -> None:
        looked = 0.0
        while True:
            hurried = self._hurried.is_set() or any(still() for still in self._followers.values())
            self._hurried.clear()
            now = self._clock.monotonic()
            if hurried or now - looked >= LOOK_S:
                looked = now
                if self._moved_at and now - self._moved_at > SETTLE_S:
                    self._moved_at = 0.0
                    self.map.settle()
                self._ask(everybody=hurried)
            await self._clock.sleep_until(now + HURRY_S)
            try:
                async with asyncio.timeout(STILL_LOOK_S):
                    await self._hurried.wait()
            except TimeoutError:
                continue

    def _ask(self, *, everybody: bool) -> None:
        """Ask the servers that do not still owe an answer."""
        up = [
            place for place, link in self._askers.items() if link.up and place not in self._asking
        ]
        if not up:
            self._hurried.set()  # none is there yet: again in a moment
            return
        self._turn += 1
        for place in up if everybody else [up[self._turn % len(up)]]:
            task = asyncio.get_running_loop().create_task(self._ask_one(place, self._askers[place]))
            self._asking[place] = task
            task.add_done_callback(lambda _, place=place: self._asking.pop(place, None))  # type: ignore[misc]

    async def _ask_one(self, place: str, link: StoreConnection) -> None:
        """Ask one server; if it says nothing, the connection's own watch ends the question."""
        self.looks += 1
        asked = [
            link.call("CLUSTER", "SLOTS"),
            link.call("CLUSTER", "NODES"),
            link.call("CLUSTER", "INFO"),
        ]
        try:
            async with asyncio.timeout(ASK_S):
                slots, nodes, info = await asyncio.gather(*asked)
        except TimeoutError:
            log.debug(
                "the server of the cluster at %s did not say within %g s who has which slot",
                place,
                ASK_S,
            )
            return
        except Error as error:
            # else the link says it
            if isinstance(error, NotRun) or not isinstance(error, StoreDown):
                self._troubled(place, str(error))
            return
        facts = parse_info(info)
        trouble = "" if facts.get("cluster_state") == "ok" else _trouble(facts)
        self._heard(place, read_slots(slots, nodes, place, trouble))

    def _heard(self, place: str, answer: SlotsReply) -> None:
        if self.map.is_foreign(answer):
            self._troubled(place, FOREIGN)
            return
        self._troubled(place, answer.trouble)
        self._replicas = dict.fromkeys(answer.replicas)
        if self.map.merge(place, answer):
            self._tell()
        else:
            self._keep_askers()

    def _troubled(self, place: str, trouble: str) -> None:
        if self.troubles.get(place, "") != trouble:
            level = logging.WARNING if trouble else logging.INFO
            log.log(
                level, "the server of the cluster at %s says: %s", place, trouble or "it serves"
            )
        self.troubles[place] = trouble

    def _keep_askers(self) -> None:
        """
        Keep connections to ask along: to the servers of the URL, and to some others.

        The servers of the URL may all go.
        """
        if not self._followers:
            return
        known = (*self.map.primaries(), *self._replicas)
        wanted = whom_to_ask(self.address.seeds, known, len(self.address.seeds) + ASKED_MAX)
        for place in wanted:
            if place not in self._askers:
                link = StoreConnection(
                    self.url_of(place),
                    self._name,
                    self._clock,
                    called="server of the cluster",
                    patient=False,
                )
                self._askers[place] = link
                link.launch()
        for place in [place for place in self._askers if place not in wanted]:
            self.troubles.pop(place, None)
            task = asyncio.get_running_loop().create_task(self._askers.pop(place).stop())
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)


class Owner:
    """Finds the primary of one key's slot for a connection."""

    def __init__(self, topology: Topology, key: str) -> None:
        self.name = "the cluster"
        self.fault, self.alone = "", False
        self._topology = topology
        self._key = key
        self._followers: dict[Callable[[str], None], Changed] = {}

    def follow(self, moved: Callable[[str], None], /) -> None:
        """
        Call ``moved`` with the URL of the key's primary from now on, whenever it may be another.
        """

        def changed() -> None:
            place = self._topology.owner(self._key)
            if place:
                moved(self._topology.url_of(place))

        self._followers[moved] = changed
        self._topology.follow(changed)

    async def forget(self, moved: Callable[[str], None], /) -> None:
        """Forget the follower."""
        await self._topology.forget(self._followers.pop(moved))

    async def find(self) -> str:
        """Return the URL of the key's primary. Raises: StoreDown: none is known."""
        self._topology.hurry()
        place = self._topology.owner(self._key)
        if not place:
            raise StoreDown(self._topology.why())
        return self._topology.url_of(place)


def _trouble(facts: dict[str, str]) -> str:
    """Say why a cluster whose state is not ok serves no call."""
    missing = SLOTS - int(facts.get("cluster_slots_ok", "0"))
    return f"CLUSTERDOWN the cluster's state is {facts.get('cluster_state', '?')}" + (
        f"; {missing} of its slots are served by nobody" if missing else ""
    )
