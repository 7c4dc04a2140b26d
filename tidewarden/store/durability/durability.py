"""Decides which durability this store can give, and keeps the group commits of one process."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from tidewarden.clock import Clock
from tidewarden.config.load import Store
from tidewarden.errors import Error, NoQuorum
from tidewarden.histograms import COMMITS, Family
from tidewarden.store.client import CallSender, StoreClient
from tidewarden.store.connection import StoreConnection
from tidewarden.store.preflight import StoreServer, fsync_told, log_of
from tidewarden.store.redis_cluster.cluster_client import ClusterClient

from .cluster_commit import ClusterCommit, PrimaryCommit
from .fsync_commit import FsyncCommit
from .group_commit import GroupCommit, Requirement
from .set_commit import LANES, SetCommit

log = logging.getLogger("tidewarden.store")

AnyCommit = GroupCommit | ClusterCommit | SetCommit
UNKNOWN = StoreServer("?", "?", False, 0)
LOOK_S = 1.0
SYSTEM = "system"  # the durability of the system's own queues, beside those a queue may choose


async def at_once() -> None:
    """Return at once: the answer is as firm as required."""


class Unavailable(NamedTuple):
    """
    Says that a durability is unavailable; the caller is shown ``why``.

    It stands in the place of a :class:`GroupCommit`: calls that need it are refused before they are
    sent. ``again()`` says whether it can be had by now, as :meth:`Durability.of` does.
    """

    why: str
    again: Callable[[], AnyCommit | Unavailable | None]


class Durability:
    """
    Gives answers the durability that they need, by group commits.

    ``cluster``: its name, for the keys of the commits' own writes; ``connect`` makes a further link
    to where a given one leads, not launched yet. Without it no answer waits: each is as firm as the
    embedded store makes it.

    ``embedded``: the store is one of ours; else ``server`` says what the user's store can do.
    ``replicated``: it is one of ours, and each voting node has one: the in-sync set confirms the
    answers that wait.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        clock: Clock,
        connect: Callable[[StoreConnection], StoreConnection] | None,
        *,
        embedded: bool,
        server: StoreServer = UNKNOWN,
        replicated: bool = False,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._ends: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._connect = connect
        self._embedded = embedded
        self._replicated = replicated
        self._waitaof = server.waitaof
        told = server.appendfsync or store.fsync  # it may hide its settings: our user's word counts
        self._synced = self._synced_now = told == "always" and (embedded or server.waitaof)
        if replicated:
            self._synced = self._synced and store.fsync == "always"
        self._asks = bool(server.appendfsync)
        self.times = Family(COMMITS)
        self._made: dict[tuple[StoreConnection, Requirement], GroupCommit] = {}
        self._by_set: dict[StoreConnection, SetCommit] = {}
        self._links: dict[tuple[StoreConnection, Requirement], StoreConnection] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked = float("-inf")
        self.replicas = 0 if embedded else store.replicas_needed

    def told(self, server: StoreServer) -> bool:
        """
        Note the facts of the store that is connected now, because another may have taken over.

        Returns whether it brings every write to disk if the store at the start did. If it does not,
        tokens wait for what it can do, and each group of a queue's ``fsync`` finds that out by
        itself.
        """
        if self._embedded:
            return True  # see ask_embedded
        synced = (server.appendfsync or self._store.fsync) == "always" and server.waitaof
        if synced and not self._synced:
            self._synced, self._asks = True, bool(server.appendfsync)
            log.warning(
                "the store brings every write to disk now: queues with durability fsync are served"
            )
        elif synced != self._synced_now and self._synced:
            how = (
                f"its appendfsync is {server.appendfsync}"
                if server.waitaof
                else "it has no append-only file"
            )
            if synced:
                log.warning("the store that is connected now brings every write to disk again")
            else:
                log.error(
                    "the store that is connected now does not bring every write to disk (%s); the"
                    " former one did",
                    how,
                )
        self._synced_now, self._waitaof = synced, server.waitaof
        return synced or not self._synced

    async def ask_embedded(self, data: StoreClient) -> None:
        """
        Ask a reconnected embedded store how it syncs its log, before the queues are recalled.

        The store may have been started in another way.

        Raises: StoreDown.
        """
        if not self._embedded:
            return
        told = await fsync_told(data, self._cluster, replicated=self._replicated)
        synced = (told or self._store.fsync) == "always"
        if self._replicated:  # the other stores of the set are started as this one is
            synced = synced and self._store.fsync == "always"
        if synced != self._synced:
            self._synced = self._synced_now = synced
            log.warning(
                "the store that is connected now syncs its log %s",
                "at each write" if synced else "once a second",
            )

    async def look(self, data: StoreClient) -> None:
        """
        Ask a store that did not sync every write whether it does now.

        An operator may have changed its settings. Raises: StoreDown; Error: it does not tell.
        """
        if self._embedded or self._synced:
            return
        waitaof, appendfsync = await log_of(data)
        self.told(dataclasses.replace(UNKNOWN, waitaof=waitaof, appendfsync=appendfsync))

    def _of_again(self, data: StoreClient, durability: str) -> AnyCommit | Unavailable | None:
        """
        Do as :meth:`of`, and ask the store again.

        While the durability cannot be had, the store is asked once a second at most; its answer
        counts from the next time on.
        """
        found = self.of(data, durability)
        loop = asyncio.get_running_loop()
        worth_it = durability == "fsync" and isinstance(found, Unavailable) and not self._embedded
        if worth_it and self._looking is None and loop.time() - self._looked >= LOOK_S:
            self._looked = loop.time()
            self._looking = loop.create_task(
                self._look(data), name="does the store bring every write to disk by now?"
            )
        return found

    async def _look(self, data: StoreClient) -> None:
        try:
            await self.look(data)
        except Error as error:
            log.debug("whether the store brings every write to disk is not known: %s", error)
        finally:
            self._looking = None

    @property
    def of_new_queues(self) -> Literal["one", "quorum"]:
        """Return the durability of a queue that names none."""
        return "quorum" if self._replicated else "one"

    def refusal(self, durability: str) -> str:
        """Return why the durability cannot be had here and what to do about it; empty: it can."""
        if durability == "quorum" and not (self.replicas or self._replicated):
            if self._embedded:
                return (
                    "durability quorum needs replicas, which an embedded store has none of: give"
                    " store.url of a server that has"
                )
            return (
                "durability quorum needs store.replicas of at least 1 in the configuration of every"
                " node, and as many replicas"
            )
        if durability == "fsync" and not self._synced:
            if self._embedded:
                return (
                    'durability fsync needs store.fsync = "always" in the configuration, and a'
                    " restart of the store"
                )
            return (
                "durability fsync needs a Redis or Valkey from 7.2 on with appendonly yes and"
                " appendfsync always (with everysec many answer WAITAOF before the disk has it);"
                ' where it hides its settings, say store.fsync = "always"'
            )
        return ""

    def of(self, data: StoreClient, durability: str) -> AnyCommit | Unavailable | None:
        """
        Return the commit that answers of scripts on ``data`` have to pass.

        None: the answers may leave at once.
        """
        if durability == SYSTEM:
            durability = "quorum" if self.replicas or self._replicated else "one"
        if durability == "one":
            return None
        if why := self.refusal(durability):
            return Unavailable(why, functools.partial(self._of_again, data, durability))
        if self._replicated:  # a store of the set confirms nothing before it is on its disk
            return self._by_set_of(data)
        if durability == "fsync" and self._embedded:
            return None  # such a store answers nothing before it is on disk
        disk = durability == "fsync"
        return self._any(data, Requirement(self.replicas, disk=disk, always=disk and self._asks))

    def _any(self, data: StoreClient, requirement: Requirement) -> AnyCommit:
        if isinstance(data, ClusterClient):
            return ClusterCommit(data, lambda link: self.made(data, link, requirement))
        (link,) = data.each()
        return self.made(data, link, requirement)

    def _by_set_of(self, data: StoreClient) -> SetCommit:
        (link,) = data.each()
        commit = self._by_set.get(link)
        if commit is None:
            assert self._connect is not None, "without further connections nothing waits"
            links = [self._connect(link) for _ in range(LANES)]
            for one in links:
                one.launch()
            commit = self._by_set[link] = SetCommit(
                link, links, self._cluster, self._store.commit_ms
            )
            commit.times = self.times
        return commit

    def made(
        self, route: StoreClient, data: StoreConnection, requirement: Requirement
    ) -> GroupCommit:
        """
        Return the group commit for writes of scripts by ``data``, a connection of ``route``.

        It is made with a connection of its own.
        """
        commit = self._made.get((data, requirement))
        if commit is None:
            if isinstance(route, ClusterClient):
                self._forget_ended()
            assert self._connect is not None, "without further connections nothing waits"
            link = self._links[data, requirement] = self._connect(data)
            link.launch()
            limit_ms, key = self._store.commit_ms, f"{{{self._cluster}}}:commits"
            if isinstance(route, ClusterClient):
                commit = PrimaryCommit(
                    route, data, link, self._cluster, requirement, limit_ms, self._clock
                )
            elif self._embedded:
                commit = FsyncCommit(data, link, key, limit_ms, self._clock)
            else:
                commit = GroupCommit(data, link, key, requirement, limit_ms, self._clock)
            commit.times = self.times
            self._made[data, requirement] = commit
        return commit

    def _forget_ended(self) -> None:
        """Stop the group commits of servers that are primaries no more."""
        for key in [key for key in self._made if key[0].ended]:
            for ended in (self._made.pop(key), self._links.pop(key)):
                task = asyncio.get_running_loop().create_task(ended.stop())
                self._ends.add(task)
                task.add_done_callback(self._ends.discard)

    def strongest(self, data: StoreClient) -> AnyCommit | None:
        """
        Return the commit of scripts with durability ``strongest``.

        It makes a write as firm as the store can; None: a write is so at once.
        """
        if self._connect is None:
            return None
        if self._replicated:
            return self._by_set_of(data)
        disk_here = not self._synced_now and (self._embedded or self._waitaof)
        return (
            self._any(data, Requirement(self.replicas, disk_here=disk_here))
            if self.replicas or disk_here
            else None
        )

    def strongest_route(
        self, data: StoreClient, key: str
    ) -> tuple[CallSender, Callable[[], Awaitable[None]]]:
        """
        Return the route of a script of ``key`` whose durability is ``strongest``.

        The route stands instead of ``data``: send the script by it in this turn of the loop.

        Returns: the route, and what is to be awaited once the script was answered.
        """
        commit = self.strongest(data)
        if commit is None:
            return data, at_once
        return (
            (commit.route, at_once)
            if isinstance(commit, FsyncCommit)
            else (data, commit.begun(key))
        )

    def firm(self, data: StoreClient, durability: str, key: str) -> Callable[[], Awaitable[None]]:
        """
        Return a function that waits until a write to ``key`` by ``data`` is firm.

        Call this before the write is sent, and the function after the answer.

        Raises: NoQuorum: the durability cannot be had here (at once), or was not in time (then).
        """
        commit = self.of(data, durability)
        if isinstance(commit, Unavailable):
            raise NoQuorum(commit.why)
        return commit.begun(key) if commit is not None else at_once

    def shown(self, data: StoreClient) -> Callable[[], Awaitable[None]]:
        """
        Return a function that waits until the result of a read by ``data`` may be shown.

        That is once every store that may take over has it, and none has taken over: a later reader
        is shown nothing older. Call this before the read is sent, and the function after the
        answer. Only stores that replicate as an in-sync set are waited for.

        Raises: NoQuorum: it cannot be known now (at once), or was not in time (the function), as
        where another server has taken over (Moved).
        """
        replicates = self._replicated and self._connect is not None
        return self._by_set_of(data).begun() if replicates else at_once

    async def stop(self) -> None:
        """Stop every group commit, and report the outcome of waiting answers as unknown."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*(commit.stop() for commit in self._commits()))
        await asyncio.gather(*(link.stop() for link in self._links.values()), *self._ends)

    def warnings(self, server: StoreServer, tokens: bool) -> list[str]:
        """
        Return warnings about the server's settings, for users who rely on durability.

        ``tokens``: whether tokens are refreshed.
        """
        found = []
        if server.replicas < self.replicas:
            found.append(
                f"the store has {server.replicas} replicas and store.replicas is {self.replicas}:"
                " until they are there, queues with durability quorum, locks, schedules and tokens"
                " are answered NOQUORUM"
            )
        told = server.appendfsync
        if self._embedded and told and told != self._store.fsync:
            found.append(
                f"the store was started with store.fsync {told}, which counts; this node's"
                f" configuration says {self._store.fsync}"
            )
        if tokens and not (self._embedded or self._synced or self.replicas):
            found.append(
                "a power cut at the store's host, or its crash while its disk is slow, may lose the"
                " last tokens: set its appendfsync to always, or store.replicas"
            )
        return found

    def warning(self) -> str:
        """Return which durability was missed lately, or ""."""
        return "; ".join(
            dict.fromkeys(filter(None, (commit.warning() for commit in self._commits())))
        )

    @property
    def confirms(self) -> bool:
        """
        Return whether the in-sync set of replicated stores confirms writes, as far as is known.

        While it does not, the primary may be one that is cut off, and its answers old.
        """
        return all(commit.confirms for commit in self._by_set.values())

    def _commits(self) -> list[GroupCommit | SetCommit]:
        return [*self._made.values(), *self._by_set.values()]

    def stats(self) -> dict[str, int]:
        """Return the numbers of committed groups and of answers that missed their durability."""
        made = self._commits()
        return {
            "commit_groups_total": sum(commit.groups for commit in made),
            "commit_missed_total": sum(commit.missed for commit in made),
        }
