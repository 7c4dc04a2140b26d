"""One shard driven script by script, at a time of the test's."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from support.store.servers import StoreServer
from support.store.shard_audit import audit_shard

from tidewarden.errors import Full
from tidewarden.node.product_scripts import product_scripts
from tidewarden.queue.partitioning import prefix_of
from tidewarden.queue.task import FIELDS, STATES, TaskSpec
from tidewarden.store import Scripts, StoreConnection
from tidewarden.store.connection import Arg
from tidewarden.store.reply_errors import error_of, known_already

CLUSTER = "tw"
START_MS = 1_700_000_000_000
SENT: set[tuple[str, bytes]] = set()
"""Socket of a server that was sent the scripts, and their library's text."""
LOADED: set[tuple[str, bytes]] = set()
"""Likewise, where that library was loaded."""


class Row(NamedTuple):
    """A taken task as take.lua answers it."""

    id: str
    lease: int
    payload: bytes
    attempt: int
    deadline_ms: int
    lease_end_ms: int
    due_ms: int = 0
    trace: bytes = b""


@functools.cache
def queue_scripts(*, library: bool = False) -> Scripts:
    """
    The product's scripts, read once; run from the library as on an embedded store, or by EVALSHA.
    """
    if library:
        scripts = copy.copy(queue_scripts())
        scripts.embedded = True
        return scripts
    return product_scripts()


def loading(
    server: StoreServer, scripts: Scripts, url: str = ""
) -> Callable[[StoreConnection], list[Sequence[Arg]]]:
    """
    What a link to a server says after connecting (``url``: to another):
    :meth:`Scripts.load_commands`.

    A server that lasts the session is sent the scripts once: more than a megabyte, which it keeps
    when it is emptied. One that has forgotten them says so, and gets them by EVAL.
    """

    def commands(link: StoreConnection) -> list[Sequence[Arg]]:
        key = (server.path, scripts.library)
        if url or not server.lasts or key not in SENT:
            SENT.add(key)
            return scripts.load_commands(link)
        return [("FUNCTION", "LOAD", scripts.library)] if scripts.embedded else []

    return commands


class Hand(redis.Redis):
    """
    What is written into a shard's record by hand counts at once: a library keeps records for a
    second unless their ``seq`` changes.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)
        if (
            args[0] in ("HSET", "HDEL", "HINCRBY")
            and str(args[1]).endswith(":shard")
            and args[2] != "seq"
        ):
            super().execute_command("HDEL", args[1], "seq")
        return reply


class Desk:
    """
    One shard driven script by script, at the time in :attr:`now` (unix ms) that the test sets; no
    node, nothing waits.

    ``next_ms`` and ``woke`` are those of the latest reply. ``stamp`` goes behind the time: what a
    node knows of the leases' clock.
    """

    def __init__(
        self, server: StoreServer, *, views: bool, queue: str = "q", holder: str = "n0.1"
    ) -> None:
        self.server = server
        self.client = Hand(unix_socket_path=server.path, socket_timeout=None, retry=None)
        self._line = self.client.connection_pool.get_connection()
        self.prefix = prefix_of(CLUSTER, queue, 0)
        self.holder = holder
        self.views = views
        self.now = START_MS
        self.stamp = ""
        self.next_ms = -1
        self.woke = False
        self.keys = [self.prefix]
        self.use(queue_scripts())
        if views:
            self.keys.append(f"{{{CLUSTER}}}:view")
            self.set_view(1)

    def use(self, scripts: Scripts) -> None:
        """Run these from now on."""
        self.scripts = scripts
        key = (self.server.path, scripts.library)
        if self.views and not (self.server.lasts and key in LOADED):
            LOADED.add(key)
            try:
                self.client.execute_command("FUNCTION", "LOAD", scripts.library)
            except redis.ResponseError as error:
                # it has one of that name already, which is one of that text
                if not known_already(error_of(str(error))):
                    raise

    def set_view(self, view: int) -> None:
        """The store was started anew."""
        self.client.set(f"{{{CLUSTER}}}:view", view)

    def run(self, name: str, *args: Any, holder: str = "") -> Any:
        """The items of a script's reply; its refusal is raised as our error."""
        script = self.scripts[name]
        arguments = (
            len(self.keys),
            *self.keys,
            f"{self.now}{self.stamp}",
            holder or self.holder,
            *args,
        )
        try:
            try:
                if (
                    self.views and script.function
                ):  # as on an embedded store: from the library, unless the store is full
                    with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                        return self.answered(self._say("FCALL", script.function, *arguments))
                reply = self._say("EVALSHA", script.sha, *arguments)
            except redis.exceptions.NoScriptError:
                reply = self._say("EVAL", script.source, *arguments)
        except redis.exceptions.OutOfMemoryError as error:
            raise Full(str(error)) from None
        except redis.ResponseError as error:
            raise error_of(str(error)) from None
        return self.answered(reply)

    def _say(self, *words: Any) -> Any:
        """
        One command, without what redis-py does around each: scripts run by the ten thousand here.
        """
        self._line.send_command(*words)
        return self._line.read_response()

    def answered(self, reply: Any) -> Any:
        """The items of a reply; the rest is kept."""
        now_ms, self.next_ms, woke, items = reply
        assert now_ms == self.now
        self.woke = bool(woke)
        return items

    def put(
        self, task_id: str = "", payload: bytes = b"", *, own: bool = False, **fields: Any
    ) -> Any:
        """put.lua's word for one task."""
        return self.put_all((task_id, payload, fields), own=own)[0]

    def put_all(self, *tasks: tuple[str, bytes, dict[str, Any]], own: bool = False) -> list[Any]:
        """put.lua's word for each ``(id, payload, NewTask fields)``, in one script."""
        args: list[Any] = []
        for task_id, payload, fields in tasks:
            task = TaskSpec(payload=payload, id=task_id, **fields)
            task.check(2**20)
            args += (task_id, task.options(own), payload)
        return list(self.run("queue.put", *args))

    def take(
        self,
        count: int = 1,
        *,
        lease_ms: int = 0,
        wait: bool = False,
        task_id: str = "",
        holder: str = "",
        session: str = "",
    ) -> list[Row]:
        items = self.run(
            "queue.take", 200, count, lease_ms, f"{int(wait)}{session}", task_id, holder=holder
        )
        return [Row(row[0].decode(), *row[1:]) for row in items[0]]

    def take_one(self, **options: Any) -> Row:
        (row,) = self.take(**options)
        return row

    def ids(self, count: int = 1000) -> list[str]:
        """Take as many as there are; their ids in order."""
        return [row.id for row in self.take(count)]

    def ack(self, *rows: tuple[str, int]) -> list[int]:
        return list(self.run("queue.ack", *(value for row in rows for value in (*row[:2], b""))))

    def end(self, row: tuple[Any, ...], how: str, delay_ms: int = -1, reason: str = "") -> int:
        return int(self.run("queue.end", row[0], row[1], how, delay_ms, reason)[0])

    def touch(self, row: tuple[Any, ...], lease_ms: int = 0) -> int:
        return int(self.run("queue.touch", row[0], row[1], lease_ms)[0])

    def peek(self, task_id: str) -> dict[str, Any]:
        """The task as it lies, {} when there is none."""
        (rows, _) = self.run("queue.peek", "id", task_id, "")
        return dict(zip(FIELDS, rows[0], strict=True)) if rows else {}

    def state(self, task_id: str) -> str:
        found = self.peek(task_id)
        return found["state"].decode() if found else ""

    def configure(self, **settings: Any) -> Any:
        return self.run("queue.configure", *(value for pair in settings.items() for value in pair))

    def counts(self) -> dict[str, int]:
        """Tasks by state; those that wait in lanes only where there are any."""
        row = self.run("queue.stats")
        counts = dict(zip(STATES, (*row[:4], row[11]), strict=True))
        return (
            counts
            if counts["waiting"]
            else {state: n for state, n in counts.items() if state != "waiting"}
        )

    def record(self, name: str) -> str:
        """A field of the shard's record."""
        return (self.client.hget(f"{self.prefix}:shard", name) or b"").decode()

    def audit(self) -> None:
        """See :func:`audit_shard`."""
        audit_shard(self.client, self.prefix)

    def digest(self) -> dict[bytes, bytes | None]:
        """Everything in the store, to see that nothing changed."""
        return {key: self.client.dump(key) for key in sorted(self.client.scan_iter(count=1000))}
