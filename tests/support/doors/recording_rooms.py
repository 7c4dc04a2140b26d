"""Recording doubles of the rooms behind the doors; nothing of pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tidewarden.config.load import Connect
from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights
from tidewarden.errors import NotFound, NotHeld
from tidewarden.queue.reads.condition import Condition
from tidewarden.queue.task import Changes, Taken, TaskSpec
from tidewarden.queue.waits.drain import Drain
from tidewarden.tokens.connect.connecting import ConnectLink
from tidewarden.tokens.connect.devices import DeviceLink
from tidewarden.tokens.connect.outcomes import ConsentFailed
from tidewarden.tokens.custody.export import ignored
from tidewarden.tokens.verbs.grants import Put


class RecordingSession:
    def __init__(self, number: int, user: str) -> None:
        self.id = str(number)
        self.user = user
        self.held: dict[tuple[str, str], tuple[int, int]] = {}


class NoFastPath:
    """Everything goes the ordinary way here."""

    def put(self, *_: Any) -> None:
        return None

    take = ack = put


class RecordingUnbound:
    """Sessions of requests: one that holds nothing."""

    def __init__(self) -> None:
        self.closed = 0

    def of(self, user: str) -> RecordingSession:
        return RecordingSession(0, user)

    async def close(self) -> None:
        self.closed += 1


class RecordingBuried:
    """Buried tasks that are there in any number; ``calls`` has every call."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls

    async def kick(self, queue: str, **choice: Any) -> int:
        self.calls.append(("kick", queue, *choice.items()))
        return 3

    async def move(self, queue: str, target: str, **choice: Any) -> int:
        self.calls.append(("move", queue, target, *choice.items()))
        return 6

    async def delete(self, queue: str, **choice: Any) -> int:
        self.calls.append(("delete buried", queue, *choice.items()))
        return 8

    async def left(self, queue: str, **choice: Any) -> int:
        return 9

    async def put_again(
        self, queue: str, task_id: str, payload: bytes, *, buried_ms: int = 0
    ) -> bool:
        self.calls.append(("put_again", queue, task_id, payload, buried_ms))
        return True

    async def reasons(
        self, queue: str, max_stale_ms: int = 0, *, marks: bool = False
    ) -> dict[str, Any]:
        self.calls.append(("reasons", queue, *((max_stale_ms,) if max_stale_ms else ())))
        row = {"reason": "no", "tasks": 3, "first_ms": 1, "last_ms": 2, "example": "a"}
        return {"queue": queue, "tasks": 3, "reasons": [row], "others": 0, "more": False}


class RecordingQueues:
    """
    First in, first out, in memory; ``calls`` has every call. ``hold`` keeps answers back until it
    is set. It is each of its parts, too.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.dropped = self.search = self
        self.buried = RecordingBuried(self.calls)
        self.consumer = self.admin = self.bulk = self.catalog = self.consistency = self.topics = (
            self
        )
        self.fast_path = NoFastPath()
        self.unbound = RecordingUnbound()
        self.drain = Drain()
        self.ready: dict[str, list[tuple[str, bytes]]] = {}
        self.closed: list[RecordingSession] = []
        self.sessions: list[RecordingSession] = []
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.cancelled = 0
        self.lease = 2**37
        self.raises: Exception | None = None

    def open_session(self, user: str = "default") -> RecordingSession:
        self.sessions.append(RecordingSession(len(self.sessions) + 1, user))
        return self.sessions[-1]

    async def close_session(self, session: RecordingSession) -> None:
        self.closed.append(session)
        self.arrived.set()

    async def join_session(
        self, session: Any, user: str, uuid: str = "", grace_ms: int | None = None
    ) -> str:
        self.calls.append(("join_session", user, uuid, grace_ms))
        await self._gate()
        return uuid or "made"

    async def _gate(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.raises is not None:
            raise self.raises

    async def put(self, queue: str, task: TaskSpec) -> str:
        self.calls.append(("put", queue, task))
        await self._gate()
        task_id = task.id or f"made-{len(self.calls)}"
        self.ready.setdefault(queue, []).append((task_id, task.payload))
        self.arrived.set()
        return task_id

    async def put_waiting(self, queue: str, task: TaskSpec, wait_ms: int) -> str:
        self.calls.append(("put_waiting", queue, task, wait_ms))
        return task.id or "made"

    async def take(
        self,
        session: RecordingSession,
        queues: list[str],
        *,
        count: int = 1,
        wait_ms: int = 0,
        lease_ms: int = 0,
        task_id: str = "",
    ) -> list[Taken]:
        self.calls.append(("take", tuple(queues), count, wait_ms, lease_ms, task_id))
        await self._gate()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while True:
                    for queue in queues:
                        found = self.ready.get(queue, [])[:count]
                        if found:
                            del self.ready[queue][: len(found)]
                            return [self._taken(session, queue, *task) for task in found]
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            return []
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def _taken(self, session: RecordingSession, queue: str, task_id: str, payload: bytes) -> Taken:
        self.lease += 1
        session.held[queue, task_id] = (self.lease, 2**41)
        return Taken(queue, task_id, self.lease, payload, 1, 2**41, 2**41)

    def give_back(self, session: RecordingSession, tasks: list[Taken]) -> None:
        self.calls.append(("give_back", tuple(task.id for task in tasks)))

    async def wait(self, queue: str, task_id: str, wait_ms: int) -> tuple[str, bytes]:
        self.calls.append(("wait", queue, task_id, wait_ms))
        await self._gate()
        return "done", b"\xff"

    async def ack(
        self,
        session: RecordingSession,
        queue: str,
        pairs: list[tuple[str, int]],
        result: bytes = b"",
    ) -> list[int]:
        self.calls.append(("ack", queue, tuple(pairs), *([result] if result else [])))
        await self._gate()
        answers = []
        for task_id, lease in pairs:
            answers.append(int(session.held.get((queue, task_id), (0, 0))[0] == lease))
            if answers[-1]:
                del session.held[queue, task_id]
        return answers

    async def release(
        self,
        session: Any,
        queue: str,
        task_id: str,
        lease: int,
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        self.calls.append(("release", queue, task_id, lease, delay_ms, reason))
        if lease == 1:
            raise NotHeld("this lease has ended\r\n+OK")

    async def fail(
        self,
        session: Any,
        queue: str,
        task_id: str,
        lease: int,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> None:
        self.calls.append(("fail", queue, task_id, lease, delay_ms, reason))

    async def bury(
        self, session: Any, queue: str, task_id: str, lease: int, reason: str = ""
    ) -> None:
        self.calls.append(("bury", queue, task_id, lease, reason))

    async def touch(
        self, session: Any, queue: str, task_id: str, lease: int, lease_ms: int = 0
    ) -> int:
        self.calls.append(("touch", queue, task_id, lease, lease_ms))
        return 2**41

    async def update(self, queue: str, task_id: str, changes: Changes) -> None:
        self.calls.append(("update", queue, task_id, changes))

    async def delete(self, queue: str, task_id: str, *, lease: int = 0, force: bool = False) -> int:
        self.calls.append(("delete", queue, task_id, lease, force))
        return 1

    async def peek(
        self, queue: str, task_id: str, max_stale_ms: int = 0, *, marks: bool = False
    ) -> dict[str, Any]:
        more = (max_stale_ms,) if max_stale_ms else ()
        self.calls.append(("peek", queue, task_id, *more))
        return {"id": task_id, "state": "ready", "payload": b"\x00\xff", "reason": None}

    async def page(
        self,
        queue: str,
        state: str,
        count: int,
        after: str,
        max_stale_ms: int,
        *,
        marks: bool = False,
        payloads: bool = True,
    ) -> tuple[list[dict[str, Any]], str]:
        more = (max_stale_ms,) if max_stale_ms else ()
        self.calls.append(("page", queue, state, count, after, *more))
        return [{"id": "a"}], "next"

    async def find(
        self, queue: str, state: str, *, condition: Condition, marks: bool, **options: Any
    ) -> dict[str, Any]:
        self.calls.append(("find", queue, state, condition, *options.items()))
        return {"tasks": [{"id": "a"}], "after": "next", "looked": 7, "unread": 1}

    async def pause(self, queue: str, ms: int | None) -> None:
        self.calls.append(("pause", queue, ms))

    async def resume(self, queue: str) -> None:
        self.calls.append(("resume", queue))

    async def purge(self, queue: str, state: str) -> int:
        self.calls.append(("purge", queue, state))
        return 4

    async def drop(self, queue: str, *, force: bool = False) -> int:
        self.calls.append(("drop", queue, force))
        return 7

    async def drop_topic(self, topic: str) -> int:
        self.calls.append(("drop_topic", topic))
        return 2

    async def release_all(self, queue: str, *, holder: str = "", session: str = "") -> int:
        whose = (holder or session,) if holder or session else ()
        self.calls.append(("release_all", queue, *whose))
        return 5

    async def link(self, topic: str, queue: str, settings: dict[str, Any]) -> int:
        self.calls.append(("link", topic, queue, *settings.items()))
        return 1

    async def unlink(self, topic: str, queue: str) -> int:
        self.calls.append(("unlink", topic, queue))
        return 0

    async def all(self) -> dict[str, list[str]]:
        return {"events": ["audit", "mail"]}

    async def check(self, queue: str, *, repair: bool) -> dict[str, Any]:
        self.calls.append(("check", queue, repair))
        return {"queue": queue, "problems": 0}

    async def stats(
        self, queue: str, *, by_shard: bool = False, marks: bool = False
    ) -> dict[str, Any]:
        shards = {"by_shard": [{"shard": 0, "total": 1}]} if by_shard else {}
        return {"ready": len(self.ready.get(queue, ())), "puts_total": 7} | shards

    async def names(self) -> list[str]:
        return ["mail", "_tokens:x"]

    async def exists(self, queue: str) -> bool:
        return queue != "none"

    async def settings(self, queue: str, *, marks: bool = False) -> dict[str, Any]:
        return {"shards": 1, "order": "bands"}

    async def configure(self, queue: str, values: dict[str, Any]) -> None:
        self.calls.append(("configure", queue, values))


class RecordingToken:
    access_token = "at-1"
    token_type = "Bearer"
    expires_at_ms = 2**41
    generation = 4
    state = "fresh"
    grant = 2
    keep_ms = 61_900

    def __init__(self, extras: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.extras = extras


class RecordingCustody:
    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls

    async def export(
        self,
        sealing: tuple[bytes, bytes, int],
        provider: str = "",
        count: int = 100,
        after: str = "",
        exported: AccountRights = EVERY_ACCOUNT,
        told: Callable[[str], None] = ignored,
    ) -> tuple[list[bytes], str, list[str]]:
        self.calls.append(("export", sealing, provider, count, after))
        told("p/a")
        return [b"c2VhbGVk"] if exported.allow("p/a") else [], "", []

    async def import_sealed(
        self,
        sealing: tuple[bytes, bytes, int],
        lines: Any,
        written: AccountRights = EVERY_ACCOUNT,
        told: Callable[[str], None] = ignored,
    ) -> list[int | str]:
        told("p/a")
        self.calls.append(("import", sealing, list(lines)))
        return [1]

    async def answers(self, account: str) -> dict[str, Any]:
        self.calls.append(("answers", account))
        found = {"node": "n1", "at_ms": 5, "grant": 1, "generation": 2, "current": True}
        return {"answers": [found | {"body": b"<p>"}, found | {"body": b"\xff"}], "silent": ["n2"]}

    async def status(self) -> dict[str, Any]:
        self.calls.append(("status",))
        return {"kek": "00aa"}

    async def rotate(self, *, force: bool = False) -> dict[str, Any]:
        self.calls.append(("rotate", force))
        return {"kek": "00aa"}


class RecordingStoredProviders:
    """Providers that were put: ``p`` and ``whole``."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    async def put(self, name: str, document: bytes) -> dict[str, Any]:
        self._calls.append(("put_provider", name, document))
        return self._shown(name)

    async def one(self, name: str) -> dict[str, Any]:
        self._calls.append(("provider", name))
        return self._shown(name)

    async def all(self) -> list[dict[str, Any]]:
        return [self._shown(name) for name in ("p", "whole")]

    async def remove(self, name: str) -> bool:
        self._calls.append(("remove_provider", name))
        return name != "nobody"

    def _shown(self, name: str) -> dict[str, Any]:
        return {"provider": name, "put_ms": 2**41, "fault": "", "settings": {"client_id": "c"}}


class RecordingConnecting:
    """Links that lead nowhere."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls
        self.settings = Connect(url="https://auth.example.com")

    async def link(
        self,
        account: str,
        return_to: str = "",
        scope: str = "",
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> ConnectLink:
        self._calls.append(("connect", account, return_to, scope, parameters, user))
        return ConnectLink("https://auth.example.com/v1/connect/p/a?link=x", 2**41)

    async def begin(self, account: str, text: str) -> Any:
        raise ConsentFailed("link_invalid")

    async def finish(self, *_: Any) -> Any:
        raise ConsentFailed("unknown_browser")


class RecordingDevices:
    """Codes that nobody types in."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    async def start(
        self,
        account: str,
        scope: str = "",
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> DeviceLink:
        self._calls.append(("device", account, scope, parameters, user))
        return DeviceLink("WDJB-MJHT", "https://p.example/device", "", 2**41)


class RecordingTokens:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.custody = RecordingCustody(self.calls)
        self.stored_providers = RecordingStoredProviders(self.calls)
        self.connecting = RecordingConnecting(self.calls)
        self.devices = RecordingDevices(self.calls)
        self.events: Any = None
        self.extras: Mapping[str, Any] = {}

    def providers(self) -> list[str]:
        return ["p"]

    async def due(
        self, provider: str, step_ms: int, steps: int
    ) -> tuple[list[int], dict[str, int]]:
        return [2] + [0] * (steps - 1), {}

    async def put_told(self, account: str, fields: dict[str, Any], *, keep: bool = False) -> Put:
        self.calls.append(("put", account, fields, *(["keep"] if keep else [])))
        return Put(5, "new", "fresh")

    async def get(
        self,
        account: str,
        min_ttl_ms: int = 0,
        wait_ms: int = 0,
        newer: int = 0,
        max_stale_ms: int = 0,
    ) -> RecordingToken:
        more = (newer, max_stale_ms) if max_stale_ms else (newer,) if newer else ()
        self.calls.append(("get", account, min_ttl_ms, wait_ms, *more))
        if account.endswith("/nobody"):
            raise NotFound("there is no such account")
        return RecordingToken(self.extras)

    async def get_many(
        self, names: Any, min_ttl_ms: int = 0, wait_ms: int = 0, max_stale_ms: int = 0
    ) -> list[Any]:
        more = (max_stale_ms,) if max_stale_ms else ()
        self.calls.append(("get_many", names, min_ttl_ms, wait_ms, *more))
        return [
            (
                NotFound("there is no such account")
                if name.endswith("/nobody")
                else RecordingToken(self.extras)
            )
            for name in names
        ]

    async def refresh(self, account: str, generation: int = 0) -> str:
        self.calls.append(("refresh", account, *((generation,) if generation else ())))
        return "queued"

    async def delete(self, account: str) -> bool:
        self.calls.append(("delete", account))
        return not account.endswith("/nobody")

    async def list(
        self,
        provider: str = "",
        state: str = "",
        count: int = 100,
        after: str = "",
        seen: AccountRights = EVERY_ACCOUNT,
    ) -> tuple[list[dict[str, Any]], str]:
        self.calls.append(("list", provider, state, count, after))
        return [{"account": "p/a", "state": "fresh"}] if seen.allow("p/a") else [], ""

    async def peek(self, account: str) -> dict[str, Any]:
        self.calls.append(("peek", account))
        return {"account": account, "state": "dead"}

    async def why(self, subject: str) -> dict[str, Any]:
        self.calls.append(("why", subject))
        if subject.endswith("/nobody"):
            raise NotFound("there is no such account")
        return {"name": subject, "state": "failing", "concluded": [{"code": "dead", "refusals": 3}]}

    async def release_provider(self, provider: str) -> None:
        self.calls.append(("release", provider))

    async def probe_provider(self, provider: str) -> None:
        self.calls.append(("probe", provider))

    async def quarantine_provider(self, provider: str) -> None:
        self.calls.append(("quarantine", provider))

    async def stats(self) -> dict[str, Any]:
        return {"p": {"total": 2, "fresh": 2, "dead": 0, "spares": 1}}

    async def latest_stats(self, wait_s: float) -> tuple[dict[str, Any], float] | None:
        return await self.stats(), 0.5

    def metrics(self) -> dict[str, Any]:
        return {
            "refreshes": {("p", "ok"): 9},
            "in_flight": {"p": 1},
            "late": {},
            "spares": 3,
            "journal_pending": 4,
        }


class RecordingLocks:
    """Everything is free, but ``taken``; the fence 1 is never current."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def acquire(
        self, session: Any, name: str, lease_ms: int, *, wait_ms: int = 0, key: bytes = b""
    ) -> asyncio.Future[int | None]:
        self.calls.append(("acquire", session.id, name, lease_ms, wait_ms, key))
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if name != "waits":
            future.set_result(None if name == "taken" else 2**37)
        return future

    async def renew(self, session: Any, name: str, fence: int, lease_ms: int) -> int:
        self.calls.append(("renew", name, fence, lease_ms))
        if fence == 1:
            raise NotHeld("not held")
        return 2**41

    async def release(self, session: Any, name: str, fence: int) -> None:
        self.calls.append(("release", name, fence))
        if fence == 1:
            raise NotHeld("not held")

    async def peek(self, name: str) -> dict[str, Any]:
        return {"name": name, "fence": 5}

    async def page(self, count: int, after: str) -> tuple[list[dict[str, Any]], str]:
        self.calls.append(("page", count, after))
        return [{"name": "a"}], "next"


class FixedCluster:
    def __init__(self) -> None:
        self.seen = {
            "node": "n0", "pid": 1, "role": "leader", "leader": "n0", "epoch": 3, "view": 1, "primary": "n0", "quorum": True,
            "members": ["n0"],
        }  # fmt: skip

    def status(self) -> dict[str, Any]:
        return dict(self.seen)
