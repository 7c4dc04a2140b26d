"""
Finds the server of a store under Sentinel that takes the writes now.

Its sentinels are asked, and report a change. Which of them to believe is decided in :func:`newest`,
which is pure. Every connection also asks the server itself (ROLE), because sentinels may be behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, Error, StoreDown

from .connect import check_url, redact
from .connection import StoreConnection

log = logging.getLogger("tidewarden.store")

SCHEMES, MARK = ("redis", "rediss"), "+sentinel://"
PORT = 26379
ASK_S = 1.0  # a sentinel that has not answered by then is not waited for
REST_S = 0.05  # nor so long after most have answered: the one that led the failover knows first
# in the URL's query: what the sentinels themselves ask for
OWN = ("sentinel_username", "sentinel_password")
# The first comes at the end of a failover, when every other replica follows; the second as soon as
# there is a primary again.
EVENTS = ("+switch-master", "+promoted-slave")

Moved = Callable[[str], None]


def by_sentinel(url: str) -> bool:
    """Return whether the store behind this URL is found by sentinels."""
    return url.startswith(tuple(scheme + MARK for scheme in SCHEMES))


@dataclass(frozen=True, slots=True)
class SentinelReply:
    """
    Holds one sentinel's reply: the primary's address, and how new its knowledge is.

    ``epoch``: of the configuration it knows. ``promoted``: it leads a failover, and the address is
    that of the new primary, of which the others know nothing yet.
    """

    host: str
    port: int
    epoch: int = 0
    promoted: bool = False

    @property
    def knowledge(self) -> tuple[int, bool]:
        """Return the key by which answers compare: the greater knows more."""
        return self.epoch, self.promoted


def newest(answers: Sequence[SentinelReply]) -> SentinelReply:
    """Return the answer that knows most; of equals the first. Raises: ValueError: there is none."""
    return max(answers, key=lambda answer: answer.knowledge)


class Service:
    """
    Parses a ``redis+sentinel://`` URL.

    Its form is ``redis+sentinel://[user:password@]host:port,host:port/service[?options]``;
    ``rediss+`` is TLS to all.

    The user is the primary's; the sentinels' own are the options ``sentinel_username`` and
    ``sentinel_password``. Raises: BadArg: the URL does not parse.
    """

    def __init__(self, url: str) -> None:
        self._scheme, mark, rest = url.partition(MARK)
        place, _, query = rest.partition("?")
        user, at, place = place.rpartition("@")
        hosts, _, self.name = place.partition("/")
        if (
            not mark
            or self._scheme not in SCHEMES
            or not hosts
            or not self.name
            or "/" in self.name
        ):
            form = "redis+sentinel://[user:password@]host:port,host:port/service"
            raise BadArg(f"the store URL {redact(url)!r} is none of the form {form}")
        self._user = user + at
        pairs = parse_qsl(query, keep_blank_values=True)
        self._query = _query([pair for pair in pairs if pair[0] not in OWN])
        own = dict(pairs)
        sentinel_user = "".join(
            f"{quote(own.get(name, ''), safe='')}{end}"
            for name, end in zip(OWN, (":", "@"), strict=True)
        )
        sentinel_query = _query([pair for pair in pairs if pair[0] not in (*OWN, "db")])
        self.sentinels = tuple(
            f"{self._scheme}://{'' if sentinel_user == ':@' else sentinel_user}"
            f"{_with_port(one)}{sentinel_query}"
            for one in hosts.split(",")
        )
        for one in (*self.sentinels, self.url_of("localhost", 1)):
            check_url(one)

    def url_of(self, host: str, port: int) -> str:
        """Return the URL of a server of the service."""
        host = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{self._user}{host}:{port}{self._query}"


def _query(pairs: Sequence[tuple[str, str]]) -> str:
    return "?" + urlencode(pairs, quote_via=quote) if pairs else ""


def _with_port(place: str) -> str:
    return place if ":" in place.rpartition("]")[2] else f"{place}:{PORT}"


class Sentinels:
    """
    Finds the primary by the sentinels of one store URL, for all links of a process.

    See :class:`tidewarden.store.endpoint.PrimaryFinder`.

    It is connected as long as any link follows: to each sentinel once to ask, once to hear.
    """

    fault = ""
    alone = False
    """Sentinels never say that no server can take the writes: another may take over at any time."""

    def __init__(self, url: str, name: str, clock: Clock) -> None:
        self.service = Service(url)
        self.name = f"the service {self.service.name}"
        self._followers: list[Moved] = []
        self._asking: asyncio.Task[SentinelReply] | None = None
        self._known: SentinelReply | None = None  # the answer that knew most of all that came
        self._looks: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._client = name
        self._asked: list[StoreConnection] = []
        self._heard: list[StoreConnection] = []

    def follow(self, moved: Moved) -> None:
        """Call ``moved`` from now on with the URL of each new primary."""
        self._followers.append(moved)
        if self._asked:
            return
        channels = ("SUBSCRIBE", *EVENTS)
        for url in self.service.sentinels:
            asked = StoreConnection(
                url, f"{self._client}-ask", self._clock, called="sentinel", patient=False
            )
            heard = StoreConnection(
                url,
                f"{self._client}-hear",
                self._clock,
                called="sentinel",
                on_up=lambda _: [channels],
                on_ready=self._look,
                on_message=self._told,
            )
            self._asked.append(asked)
            self._heard.append(heard)
            asked.launch()
            heard.launch()

    async def forget(self, moved: Moved) -> None:
        """Stop calling ``moved``; the last to forget closes the connections."""
        with contextlib.suppress(ValueError):
            self._followers.remove(moved)
        if self._followers or not self._asked:
            return
        links, self._asked, self._heard = [*self._asked, *self._heard], [], []
        tasks = [task for task in (self._asking, *self._looks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(link.stop() for link in links), return_exceptions=True)

    async def find(self) -> str:
        """
        Return the URL of the server that takes the writes now.

        Simultaneous callers share one answer.

        Raises: StoreDown: no sentinel answers, or none knows the service.
        """
        best = await self._best()
        self._take_in(best)
        return self.service.url_of(best.host, best.port)

    async def _best(self) -> SentinelReply:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(
                self._ask(), name="asking the sentinels"
            )
            self._asking.add_done_callback(self._was_asked)
        return await asyncio.shield(self._asking)

    def _take_in(self, answer: SentinelReply) -> bool:
        """Compare later answers with this one; return False if an earlier one knew more."""
        known = self._known
        if known is not None and answer.knowledge < known.knowledge:
            return False
        self._known = answer
        if known is None or (known.host, known.port) != (answer.host, answer.port):
            log.info("the primary by the sentinels: %s", answer)
        return True

    def _was_asked(self, done: asyncio.Task[SentinelReply]) -> None:
        self._asking = None
        if not done.cancelled():
            _ = done.exception()  # whoever asked may have gone

    async def _ask(self) -> SentinelReply:
        """
        Ask all sentinels at once.

        A failover takes a majority, so most of them, and a moment for the rest, are enough.
        """
        links = self._asked
        asked = {asyncio.ensure_future(answer_of(link, self.service.name)): link for link in links}
        until = self._clock.monotonic() + ASK_S
        waiting, answers, unknown, silent = set(asked), list[SentinelReply](), 0, list[str]()
        try:
            while waiting and (left_s := until - self._clock.monotonic()) > 0:
                done, waiting = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                for one in done:
                    error = one.exception()
                    if isinstance(error, Error):
                        silent.append(asked[one].why or str(error))
                    elif (answer := one.result()) is None:
                        unknown += 1
                    else:
                        answers.append(answer)
                if 2 * (len(answers) + unknown) > len(links):
                    until = min(until, self._clock.monotonic() + REST_S)
        finally:
            for one in waiting:
                one.cancel()
        if answers:
            return newest(answers)
        if unknown:
            raise StoreDown(
                f"the sentinels know no service {self.service.name!r}; store.url ends with the name"
                " in their `sentinel monitor`"
            )
        silent += [
            asked[one].why
            or f"the sentinel at {redact(asked[one].url)} did not answer within {ASK_S:g} s"
            for one in waiting
        ]
        raise StoreDown(f"no sentinel answers: {'; '.join(silent)}")

    def _told(self, message: Any) -> None:
        if message[0] == b"message" and self.service.name.encode() in message[2].split():
            log.info(
                "a sentinel says %s %s", message[1].decode(), message[2].decode("utf-8", "replace")
            )
            self._look()

    def _look(self) -> None:
        """
        Ask, and tell the followers of another server: something happened, or may have been missed.

        They are not called back by sentinels that are behind: the one that knew more may have been
        too slow to answer this time. Who loses his connection asks anew.
        """
        task = asyncio.get_running_loop().create_task(
            self._compare(), name="looking for the primary"
        )
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _compare(self) -> None:
        if self._asking is not None:  # under way since before what was heard
            await asyncio.wait({self._asking})
        try:
            best = await self._best()
        except StoreDown as error:
            log.debug("not asked: %s", error)  # the links say it, when they need one
            return
        if not self._take_in(best):
            return
        url = self.service.url_of(best.host, best.port)
        for moved in tuple(self._followers):
            moved(url)


async def answer_of(link: StoreConnection, service: str) -> SentinelReply | None:
    """
    Ask a sentinel for a service; None: it knows none of that name.

    The address is asked for behind the epoch: if the sentinel learns of a new primary between the
    two, an older epoch stands beside the new address, and never a newer one beside the old.

    Raises: StoreDown, Error: why it says nothing.
    """
    if not link.up and link.why:
        raise StoreDown(link.why)
    known = link.call("SENTINEL", "MASTER", service)
    address = link.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    await asyncio.wait((known, address))
    refused = known.exception() is not None
    place = address.result()
    if place is None:
        return None
    host, port = place[0].decode(), int(place[1])
    if refused:  # a user who may only ask for the address
        return SentinelReply(host, port)
    words = known.result()
    facts = dict(zip(words[::2], words[1::2], strict=False))
    former = (facts.get(b"ip", b"").decode(), int(facts.get(b"port", 0)))
    return SentinelReply(host, port, int(facts.get(b"config-epoch", 0)), former != (host, port))
