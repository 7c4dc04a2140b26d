"""
The asyncio client of a cluster: its queues, takes, locks, tokens, and any other verb of a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tidewarden.clock import Clock, SystemClock
from tidewarden.errors import BadArg, Error, Unreachable, from_wire

from .address import addresses
from .connection import Arg, Replies
from .endpoints import Endpoints
from .failover import FailoverConnection, only
from .ids import Ids
from .lease_keeper import LeaseKeeper
from .lock import AsyncLock
from .options import words
from .queue import AsyncQueue
from .replies import Token, mapped, plain, token
from .schedules import AsyncSchedules
from .task import AsyncTask

GRACE_MS = 5_000
RETRY_S = 30.0
ANSWER_S = 10.0
WAIT_TURN_MS = 20_000  # longest wait asked of a node at a time: one that froze is left after this
CLOSE_S = 3.0  # how long giving back may take when the client is closed
LINES_KEPT = 8  # connections for waiting that are kept when nobody waits

Found = TypeVar("Found")


class AsyncClient:
    """
    Connects to a cluster, for any number of asyncio tasks of one loop.

    Connections are made when first needed.

    What is under way goes out together and is answered in order; whatever waits (a take, for
    example) has a connection of its own. All of them share one session, which holds the leases and
    outlives broken connections and dead nodes.

    Args:
        urls: nodes, ``redis://user:secret@host:port``, one or several (a list, or separated by
            commas); one of them is used until it fails or drains, then another. Without any:
            ``TIDEWARDEN_URL``, else the local cluster whose data folder is ``./tidewarden-data``,
            else 127.0.0.1:7420.
        grace_ms: how long the session's leases outlive its last connection.
        retry_s: how long a call goes on over broken connections before it raises Unreachable.
        answer_s: how long a node may take to answer before it is left.
        name: shown in the node's CLIENT LIST.
        spread: begin with a random one of the nodes, and learn the others from the cluster; else
            they are used in the order given, and no others.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        *,
        grace_ms: int = GRACE_MS,
        retry_s: float = RETRY_S,
        answer_s: float = ANSWER_S,
        name: str = "",
        spread: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.ids = Ids(self.clock)
        self._addresses = addresses(urls, os.environ)
        self._random = random.Random()
        self._limits = {"retry_s": retry_s, "answer_s": answer_s}
        self.nodes = Endpoints(
            self._addresses,
            self.clock,
            grace_ms=grace_ms,
            name=name or f"python:{socket.gethostname()[:80]}:{os.getpid()}",
            chance=self._random if spread else None,
        )
        self.line = self._new_line()
        self.leases = LeaseKeeper(self.line, self.clock)
        self.nodes.on_session_lost = self.leases.lose_all
        self._idle: list[FailoverConnection] = []
        self._waiting: set[FailoverConnection] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(str(address) for address in self._addresses)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """
        Give back the tasks that blocks still hold, and close every connection.

        Calls under way raise Unreachable.
        """
        if self._closed:
            return
        self._closed = True
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)
        held = self.leases.held
        await self.leases.close()
        # what is still held then comes back by the end of the session
        with contextlib.suppress(TimeoutError, Error):
            async with asyncio.timeout(CLOSE_S):
                if held:
                    await self.quietly([one.returning() for one in held])
                for line in list(self._waiting):
                    await line.close()
                if self._background:
                    await asyncio.wait(self._background)
                if self.line.up and self.nodes.session:
                    await self.line.run([("SESSION", self.nodes.session, "GRACE", 0)], again=False)
        for line in (*self._waiting, *self._idle, self.line):
            await line.close()

    # Queues and tasks.

    def queue(self, name: str) -> AsyncQueue:
        """Return the queue of this name; its first use makes it."""
        return AsyncQueue(self, name)

    async def take(
        self, *queues: str, count: int = 1, wait_ms: int = 0, lease_ms: int | None = None
    ) -> list[AsyncTask]:
        """
        Take at most ``count`` tasks from these queues, earlier ones first.

        It waits at most ``wait_ms`` for a first one.

        Raises: Full: too many wait at the node; Unreachable.
        """
        if not queues:
            raise BadArg("a take needs the name of a queue")
        fixed = words(count=count, lease=lease_ms)
        return await self.take_words(fixed, queues, wait_ms=wait_ms, lease_ms=lease_ms)

    async def take_words(
        self,
        options: tuple[Arg, ...],
        queues: Sequence[str],
        *,
        wait_ms: int,
        lease_ms: int | None,
        first: Callable[[FailoverConnection], None] | None = None,
    ) -> list[AsyncTask]:
        """
        Take tasks with these options beside WAIT.

        ``first`` may post what goes out with it, before it.
        """
        until = self.clock.monotonic() + wait_ms / 1000
        while True:
            turn_ms = min(wait_ms, WAIT_TURN_MS)
            command = ("Q.TAKE", *options, *(("WAIT", turn_ms) if turn_ms else ()), "FROM", *queues)
            rows, _ = only(
                await self.wait([command], turn_ms, orphan=self._give_back_rows, first=first)
            )
            first = None
            wait_ms = int((until - self.clock.monotonic()) * 1000)
            if rows or wait_ms <= 0:
                return self._tasks(rows, lease_ms)

    def _tasks(self, rows: list[list[Any]], lease_ms: int | None) -> list[AsyncTask]:
        if not rows:
            return []
        since = self.clock.monotonic()
        store_ms = self.nodes.store_ms()
        names: dict[bytes, str] = {}
        tasks = []
        for row in rows:
            name = names.get(row[0]) or names.setdefault(row[0], row[0].decode())
            tasks.append(
                AsyncTask(self, name, row, lease_ms or max(1, int(row[6] - store_ms)), since)
            )
        return tasks

    def _give_back_rows(self, replies: Replies) -> None:
        """Release tasks whose take was answered after its caller had gone."""
        rows = replies[0] if isinstance(replies[0], list) else []
        if rows:
            self.send_off(self.quietly([("Q.RELEASE", row[0], row[1], row[2]) for row in rows]))

    def send_off(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; a close waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def begin(self, work: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        """
        Run a coroutine in the background; a close cancels it.

        Raises: Unreachable: the client is closed.
        """
        if self._closed:
            work.close()
            raise Unreachable("this client was closed")
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    async def quietly(self, commands: Sequence[tuple[Arg, ...]]) -> None:
        """
        Send commands that release something, and ignore errors.

        Without a node it comes back by the end of the session or of its lease.
        """
        with contextlib.suppress(Error):
            await self.line.run(commands, again=True)

    # Everything else.

    async def token(
        self,
        account: str,
        *,
        min_ttl_ms: int = 0,
        wait_ms: int = 0,
        newer: int = 0,
        keep: bool = False,
    ) -> Token:
        """
        Return the access token of ``provider/account``.

        With less than ``min_ttl_ms`` to live it is refreshed first, waiting at most ``wait_ms`` for
        that. ``newer``: the generation of a token that was refused where it was used; it is
        refreshed, and one of a later generation waited for. ``keep``: have the node say in
        ``Token.keep_ms`` how long it may be used without asking again.

        Raises: NotFound, NoAuth, Timeout, Unreachable.
        """
        command: tuple[Arg, ...] = ("T.GET", account, "MINTTL", min_ttl_ms, "WAIT", wait_ms)
        if newer:  # Which older nodes do not know.
            command += ("NEWER", newer)
        if keep:  # likewise
            command += ("KEEP",)
        row, _ = only(await self.wait([command], wait_ms))
        return token(row)

    async def tokens(
        self, accounts: Sequence[str], *, min_ttl_ms: int = 0, wait_ms: int = 0
    ) -> dict[str, Token | Error]:
        """
        Return the access tokens of many accounts, read together.

        For each account it is its token, or the error that :meth:`token` would raise.

        Raises: BadArg: none, or more than a node takes at once (``limits.batch_max``); NoAuth,
        Unreachable.
        """
        command: tuple[Arg, ...] = ("T.MGET", "MINTTL", min_ttl_ms, "WAIT", wait_ms, *accounts)
        rows, _ = only(await self.wait([command], wait_ms))
        found = [token(row) if isinstance(row, list) else from_wire(plain(row)) for row in rows]
        return dict(zip(accounts, found, strict=True))

    async def connect_url(
        self,
        account: str,
        *,
        return_to: str | None = None,
        scope: str | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> str:
        """
        Return a link by which a person consents in a browser, so that ``provider/account`` is put.

        Redirect the person's own browser there: whoever opens the link may connect the account.
        ``return_to``: where it is sent in the end, one of ``connect.return_to``. ``scope``: what is
        asked for, if not the provider's ``consent_scope``. ``parameters``: of the account, for its
        provider's placeholders.

        Raises: BadArg: nobody can consent here, or not so; NotFound, NoAuth, Unreachable.
        """
        known = None if parameters is None else json.dumps(dict(parameters))
        options = words(**{"return": return_to}, scope=scope, parameters=known)
        url: str = await self.execute("T.CONNECT", account, *options, again=True)
        return url

    async def connect_device(
        self,
        account: str,
        *,
        scope: str | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """
        Return a code by which a person consents on another device, so that an account is put.

        The names are those of T.DEVICE: ``user_code``, ``verification_uri`` and more. ``scope`` and
        ``parameters``: as of :meth:`connect_url`.

        Raises: BadArg: the provider has no such codes; NotFound, NoAuth, Timeout, Unreachable.
        """
        known = None if parameters is None else json.dumps(dict(parameters))
        options = words(scope=scope, parameters=known)
        return mapped(await self.execute("T.DEVICE", account, *options))

    async def queues(self) -> list[str]:
        """Return the names of all queues."""
        names: list[str] = await self.execute("Q.LIST", again=True)
        return names

    def lock(self, name: str, *, lease_ms: int = 30_000) -> AsyncLock:
        """
        Return the lock of this name; see :class:`AsyncLock`.

        Use it as ``async with client.lock("report") as lock: …``.
        """
        return AsyncLock(self, name, lease_ms)

    @property
    def schedules(self) -> AsyncSchedules:
        """Return the cluster's schedules."""
        return AsyncSchedules(self)

    async def topics(self) -> dict[str, list[str]]:
        """Return every topic, with the queues that subscribe to it."""
        found: dict[str, list[str]] = mapped(
            only(await self.line.run([("Q.LIST", "TOPICS")], again=True))[0]
        )
        return found

    async def link(
        self,
        topic: str,
        queue: str,
        *,
        expire_ms: int | None = None,
        capacity: int | None = None,
    ) -> bool:
        """
        Subscribe a queue: each put to ``client.queue(topic)`` reaches it once. Whether it is new.

        ``expire_ms``: the queue ends when nobody takes from it for so long, so that one queue for
        each instance of a program is a broadcast to all of them. ``capacity``: tasks at most.
        """
        options = words(expire=expire_ms, capacity=capacity)
        return bool(await self.execute("Q.LINK", topic, queue, *options, again=True))

    async def unlink(self, topic: str, queue: str) -> bool:
        """End a subscription; whether there was one. Raises: NotFound: there is no such topic."""
        return bool(await self.execute("Q.UNLINK", topic, queue, again=True))

    async def drop_topic(self, topic: str) -> int:
        """
        Drop a topic, whose queues stay; returns how many subscribed to it. Raises: NotFound.
        """
        return int(await self.execute("Q.DROPTOPIC", topic))

    async def status(self) -> dict[str, Any]:
        """
        Return the node's view of the cluster: ``node``, ``role``, ``leader``, ``epoch`` and more.
        """
        return mapped(await self.execute("R.STATUS", again=True))

    async def consumers(
        self,
        *,
        user: str | None = None,
        queue: str | None = None,
        node: str | None = None,
        count: int | None = None,
        after: str | None = None,
    ) -> dict[str, Any]:
        """
        Return who takes and holds tasks, by the names of R.CONSUMERS: ``consumers`` and more.

        ``after``: where the page before ended, in its ``after``. ``unreachable`` names the nodes
        that did not answer.
        """
        options = words(user=user, queue=queue, node=node, count=count, after=after)
        return mapped(await self.execute("R.CONSUMERS", *options, again=True))

    async def kill(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        address: str | None = None,
        session: str | None = None,
        node: str | None = None,
    ) -> int:
        """
        Close the connections that fit everything given, on all nodes or one; how many.

        What they held is released. Raises: BadArg: nobody is named; Timeout: a node did not answer.
        """
        options = words(user=user, name=name, addr=address, session=session, node=node)
        return int(await self.execute("CLIENT", "KILL", *options))

    async def end_session(self, uuid: str) -> dict[str, Any]:
        """
        End a session, wherever its connections are, by the names of SESSION END.

        What it held is released. Raises: NotFound.
        """
        return mapped(await self.execute("SESSION", "END", uuid))

    async def execute(self, *command: Arg, again: bool = False, wait_ms: int = 0) -> Any:
        """
        Send any verb of the protocol and return its answer, bytes that are UTF-8 as text.

        Args: ``again``: it may be repeated when a connection broke. ``wait_ms``: how long its
        answer may wait for something. Raises: the Error that the node answers; Unreachable.
        """
        answer, _ = only(await self.wait([command], wait_ms, again=again))
        return plain(answer)

    async def wait(
        self,
        commands: Sequence[tuple[Arg, ...]],
        wait_ms: int,
        *,
        again: bool = True,
        orphan: Any = None,
        first: Callable[[FailoverConnection], None] | None = None,
    ) -> tuple[list[Any], bool]:
        """
        Run commands as :meth:`FailoverConnection.run` does.

        If they wait, they get a connection of their own. ``first`` may post something on that
        connection before them.
        """
        if not wait_ms:
            return await self.line.run(commands, again=again, orphan=orphan)
        line = self._idle.pop() if self._idle else self._new_line()
        self._waiting.add(line)
        try:
            if first is not None:
                first(line)
            return await line.run(commands, again=again, wait_s=wait_ms / 1000, orphan=orphan)
        finally:
            self._waiting.discard(line)
            if self._closed or len(self._idle) >= LINES_KEPT:
                # not awaited: a cancellation now would lose what was taken
                self.send_off(line.close())
            else:
                self._idle.append(line)

    def _new_line(self) -> FailoverConnection:
        return FailoverConnection(self.nodes, self.clock, self._random, **self._limits)
