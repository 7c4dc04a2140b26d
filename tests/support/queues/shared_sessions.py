"""Sessions that several connections share, on the queues of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

LONG_MS = 600_000


async def one(queues: Any, session: Any, queue: str = "q", **options: Any) -> Any:
    (task,) = await queues.take(session, [queue], **options)
    return task


async def joined(
    queues: Any, uuid: str = "", *, user: str = "bob", grace_ms: int | None = LONG_MS
) -> tuple[Any, str]:
    """A connection in a session, and the session's uuid."""
    session = queues.open_session(user)
    return session, await queues.join_session(session, user, uuid, grace_ms)


@contextlib.contextmanager
def graces_held(queues: Any) -> Iterator[Callable[[], None]]:
    """
    The ends of graces that this node would time do not come by themselves, but all at a call of
    what this yields.
    """
    held: list[tuple[str, int]] = []
    real = queues.session_expiry.end_in
    queues.session_expiry.end_in = lambda _, *which: held.append(which)

    def let_come() -> None:
        for which in held:
            real(0, *which)

    yield let_come
    del queues.session_expiry.end_in


async def state(queues: Any, task_id: str) -> str:
    return str((await queues.admin.peek("q", task_id))["state"])


async def holder(queues: Any, task_id: str) -> str:
    rows, _ = await queues.scripts.run("queue.peek", "q", 0, ["id", task_id, ""])
    return str(rows[0][10].decode())


def keys(server: Any) -> list[bytes]:
    with redis.Redis(unix_socket_path=server.path) as client:
        return [
            key
            for key in client.keys("*")
            if b"session" in key or key.endswith((b":held", b":leased:~"))
        ]


@pytest.fixture
async def n0(node: Any) -> Any:
    return await node("n0", views=True)
