"""
Finds the primary of replicated embedded stores by asking them.

Workers, and a node's further processes, take no part in Raft. They know some stores by their URL
and learn the others from the primary's data. A store lets clients in only while it is primary and
open; of several, one of which has not heard yet that it is none, the one of the greatest view is
right.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from tidewarden.clock import Clock, sleep
from tidewarden.errors import BadArg, Error, StoreDown

from .connect import check_url, redact
from .connection import StoreConnection

log = logging.getLogger("tidewarden.store")

SCHEMES, MARK, UNIX = ("redis", "rediss"), "+replicated://", "unix://"
ANSWER_S, ANSWER_LAST_S = 0.25, 2.0
"""
A store that has not answered by then is not waited for. The time doubles up to the second value
each time that no primary was found and a store was silent: on a busy host a TLS handshake takes its
time.
"""
SILENT = "does not answer"
LOOK_S = 1.0
"""Seconds between two looks while the primary answers: another may be it by now."""
SEARCH_S, SEARCH_LAST_S, SOON_S = 0.02, 0.25, 5.0
"""
The first and longest pause between two looks while there is none, and the time of short pauses.
"""
FORGET_S = 30.0
"""After so long without a primary, one of an older view counts: a backup may have been restored."""
OWN_S = 0.25
"""
How long the store of the same host is waited for once another way to the primary was found: a dead
store refuses at once, a hung one is not worth more.
"""
PATIENCE_S = 2.0
"""A link that asks for the primary is told after so long why there is none."""

Moved = Callable[[str], None]
Ask = Callable[[str], Coroutine[Any, Any, "StoreAnswer"]]


def by_probing(url: str) -> bool:
    """Return whether the primary behind this URL is found by asking the stores."""
    return url.startswith(tuple(scheme + MARK for scheme in SCHEMES))


class StoresUrl:
    """
    Parses a ``redis+replicated://`` URL.

    Its form is ``redis+replicated://:password@host:port,host:port[?options]``; ``rediss+`` is TLS
    to all. A place that begins with ``/`` is the Unix socket of a store on this host.

    Raises: BadArg: the URL does not parse.
    """

    def __init__(self, url: str) -> None:
        self._scheme, mark, rest = url.partition(MARK)
        place, asks, query = rest.partition("?")
        user, at, places = place.rpartition("@")
        self._user, self._query = user + at, asks + query
        if not mark or self._scheme not in SCHEMES or not all(places.split(",")):
            form = "redis+replicated://:password@host:port,host:port"
            raise BadArg(f"the store URL {redact(url)!r} is none of the form {form}")
        self.stores = tuple(self.url_of(one) for one in places.split(","))
        for one in self.stores:
            check_url(one)

    def url_of(self, place: str) -> str:
        """Return how the store at ``host:port``, or at the path of a socket, is connected to."""
        if place.startswith("/"):
            return f"{UNIX}{self._user}{place}"
        return f"{self._scheme}://{self._user}{place}{self._query}"


class StoreAnswer(NamedTuple):
    """Holds the answer of one store."""

    url: str
    view: int
    """The view of a primary that lets clients in; 0: the store is none, or does not answer."""
    places: tuple[str, ...] = ()
    """The addresses of the stores, by its data."""
    words: str = ""
    """Why the store is no primary."""


class ProbingFinder:
    """
    Finds the primary among the stores of one URL, for all links of a process.

    See :class:`tidewarden.store.endpoint.PrimaryFinder`.

    ``cluster`` is its name, which keys begin with; ``name`` goes before those of the connections.
    The connections are kept as long as any link follows.
    """

    name = "the cluster"

    def __init__(self, url: str, cluster: str, name: str, clock: Clock) -> None:
        self.fault, self.alone = "", False
        """
        Set by what a node's first process says; elsewhere another store may take over at any time.
        """
        self._url = StoresUrl(url)
        self._cluster = cluster
        self._client = name
        self._clock = clock
        self._known = self._url.stores
        self._links: dict[str, StoreConnection] = {}
        self._followers: list[Moved] = []
        self._watching: asyncio.Task[None] | None = None
        self._searching: asyncio.Task[str] | None = None
        self._primary = ""
        self._view = 0
        self._open_at = clock.monotonic()  # when it was seen last
        self._answer_s = ANSWER_S

    def follow(self, moved: Moved) -> None:
        """Call ``moved`` from now on with the URL of each new primary."""
        self._followers.append(moved)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(), name="watching for another primary"
            )

    async def forget(self, moved: Moved) -> None:
        """Stop calling ``moved``; the last to forget closes the connections."""
        with contextlib.suppress(ValueError):
            self._followers.remove(moved)
        if self._followers or self._watching is None:
            return
        tasks = [task for task in (self._watching, self._searching) if task is not None]
        self._watching = None
        links, self._links = list(self._links.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(link.stop() for link in links), return_exceptions=True)

    async def find(self) -> str:
        """
        Return the URL of the primary, as soon as there is one; simultaneous callers share a search.

        Raises: StoreDown: there is none; what each store answered.
        """
        if self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(
                self._search(), name="searching the primary"
            )
            self._searching.add_done_callback(self._searched)
        return await asyncio.shield(self._searching)

    def _searched(self, done: asyncio.Task[str]) -> None:
        self._searching = None
        if not done.cancelled():
            _ = done.exception()  # whoever asked may have gone

    async def _search(self) -> str:
        began = self._clock.monotonic()
        while True:
            found, answers = await self._look(self._ask_anew)
            if found:
                return found
            now = self._clock.monotonic()
            if now - began >= PATIENCE_S:
                said = "; ".join(
                    f"{_place_of(one.url)} {one.words}"
                    for one in sorted(answers, key=lambda one: one.url)
                )
                raise StoreDown(f"none of its stores is open as the primary: {said}")
            soon = now - self._open_at < SOON_S
            await sleep(self._clock, SEARCH_S if soon else SEARCH_LAST_S)

    async def _watch(self) -> None:
        """Look again and again, and tell the followers when another store is the primary."""
        while True:
            found, _ = await self._look(self._ask, thorough=True)
            await sleep(self._clock, LOOK_S if found else SEARCH_LAST_S / 5)

    async def _look(self, ask: Ask, *, thorough: bool = False) -> tuple[str, list[StoreAnswer]]:
        """
        Ask all known stores at once; returns the primary's URL, "": there is none, and the answers.

        A store that is open in a later view than any before is the primary, whatever the others
        say: they are not waited for, as one of them may be cut off. So is the former primary,
        unless the caller is ``thorough``.
        """
        if self._clock.monotonic() - self._open_at > FORGET_S:
            self._view = 0
        asked = {asyncio.create_task(ask(url)): url for url in self._known}
        answers = list[StoreAnswer]()
        try:
            for one in asyncio.as_completed(asked):
                answers.append(await one)
                if self._settles(answers[-1], thorough):
                    answers += await _of_this_host(asked, answers[-1])
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        best = max(
            answers, key=lambda one: (one.view, one.url == self._primary, one.url.startswith(UNIX))
        )
        if best.view < max(1, self._view):
            if any(one.words == SILENT for one in answers):
                self._answer_s = min(2 * self._answer_s, ANSWER_LAST_S)
            return "", answers
        self._answer_s = ANSWER_S
        self._note(best)
        return best.url, answers

    def _settles(self, answer: StoreAnswer, thorough: bool) -> bool:
        if not self._view or answer.view < self._view:
            return False
        return answer.view > self._view or (not thorough and answer.url == self._primary)

    def _note(self, found: StoreAnswer) -> None:
        self._view, self._open_at = found.view, self._clock.monotonic()
        learnt = (self._url.url_of(place) for place in found.places)
        self._known = tuple(dict.fromkeys((*self._url.stores, *learnt)))
        if found.url != self._primary:
            self._primary = found.url
            for moved in tuple(self._followers):
                moved(found.url)

    async def _ask(self, url: str) -> StoreAnswer:
        """Ask one store whether it is the primary, by a connection that is kept if it is."""
        link = self._links.get(url) or self._link_to(url)
        self._links[url] = link
        answer = StoreAnswer(url, 0)
        try:
            answer = await self._answer_in_time(link)
        finally:
            if not answer.view and self._links.pop(url, None) is link:
                await link.stop()
        return answer

    async def _ask_anew(self, url: str) -> StoreAnswer:
        """Ask one store by a connection of its own."""
        link = self._link_to(url)
        try:
            return await self._answer_in_time(link)
        finally:
            await link.stop()

    def _link_to(self, url: str) -> StoreConnection:
        link = StoreConnection(url, f"{self._client}-ask", self._clock, patient=False)
        link.launch()
        return link

    async def _answer_in_time(self, link: StoreConnection) -> StoreAnswer:
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._answer_of(link)
        except TimeoutError:
            return StoreAnswer(link.url, 0, words=SILENT)
        except Error as error:
            return StoreAnswer(link.url, 0, words=_in_words(str(error)))

    async def _answer_of(self, link: StoreConnection) -> StoreAnswer:
        """Read the answer of a store. Raises: StoreDown; Error: the store's refusal."""
        prefix = f"{{{self._cluster}}}"
        role, view, stores = await asyncio.gather(
            link.call("ROLE"),
            link.call("HGET", f"{prefix}:primary", "view"),
            link.call("HVALS", f"{prefix}:stores"),
        )
        if role[0] != b"master":
            return StoreAnswer(link.url, 0, words="is a replica")
        if not view:
            return StoreAnswer(link.url, 0, words="was never opened")
        return StoreAnswer(link.url, int(view), tuple(one.decode() for one in stores))


async def _of_this_host(
    asked: Mapping[asyncio.Task[StoreAnswer], str], found: StoreAnswer
) -> list[StoreAnswer]:
    """
    Wait shortly for this host's store to answer on its socket.

    It may be the store that was ``found``, and a shorter way there.
    """
    own = {one for one, url in asked.items() if url.startswith(UNIX) and url != found.url}
    done, _ = await asyncio.wait(own, timeout=OWN_S) if own else (set(), None)
    return [one.result() for one in done]


def _place_of(url: str) -> str:
    return redact(url).partition("?")[0].partition("://")[2].rpartition("@")[2]


def _in_words(error: str) -> str:
    if "refuses the login" in error:
        return "lets nobody in (it is not the primary, or the password is wrong)"
    if "LOADING" in error or "is loading" in error:
        return "loads its data"
    return "cannot be reached" if "does not answer" in error else f"refuses: {error}"
