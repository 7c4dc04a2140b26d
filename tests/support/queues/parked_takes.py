"""Takes that wait, parked; and how many are asked."""

from __future__ import annotations

import asyncio
from typing import Any

from support.inspect import parked_in, shards_of

from tidewarden.errors import StoreDown
from tidewarden.store import Scripts

LONG_MS = 60_000


async def parked(eventually: Any, queues: Any, count: int = 1, queue: str = "q") -> None:
    """Until so many takes wait in every shard of the queue."""
    await eventually(
        lambda: (shards := shards_of(queues, queue)) and all(len(s.parked) == count for s in shards)
    )


async def wait_in(eventually: Any, n: Any, queue: str = "q", **options: Any) -> Any:
    """A take that waits, parked."""
    session = n.queues.open_session()
    await n.queues.catalog.shard_count(queue)
    before = len(parked_in(n.queues, queue))
    take = n.queues.take(session, [queue], wait_ms=LONG_MS, **options)
    await parked(eventually, n.queues, before + 1, queue)
    return session, take


async def many(
    eventually: Any, n: Any, number: int, /, **options: Any
) -> list[asyncio.Future[Any]]:
    """So many takes that wait, oldest first, each of a session of its own."""
    await n.queues.catalog.shard_count("q")
    takes = [
        n.queues.take(n.queues.open_session(), ["q"], wait_ms=LONG_MS, **options)
        for _ in range(number)
    ]
    await parked(eventually, n.queues, number)
    return takes


class Lost:
    """A receiver whose answer is lost with the connection."""

    def __init__(self, receiver: Any) -> None:
        self.done = receiver.done
        self.set_exception = receiver.set_exception

    def set_result(self, _: Any, /) -> None:
        self.set_exception(StoreDown("the answer was lost"))


def lose(monkeypatch: Any, n: Any, names: set[str], *, request: bool = False) -> None:
    """The answer of the next call of each of these is lost; ``request``: the call itself."""
    send = Scripts.send

    def losing(scripts: Scripts, link: Any, name: str, keys: Any, args: Any, receiver: Any) -> None:
        if link is n.link and name in names:
            names.discard(name)
            if request:
                asyncio.get_running_loop().call_soon(
                    receiver.set_exception, StoreDown("the request was lost")
                )
                return
            receiver = Lost(receiver)
        send(scripts, link, name, keys, args, receiver)

    monkeypatch.setattr(Scripts, "send", losing)


class Asked:
    """What each node asks the store: calls of scripts, and takes in them."""

    def __init__(self) -> None:
        self._asked: list[tuple[Any, int]] = []

    def heard(self, link: Any, name: str, args: Any) -> None:
        """A script is sent."""
        self._asked.append((link, takes_in(name, args)))

    def clear(self) -> None:
        self._asked.clear()

    def calls(self, n: Any) -> int:
        """Of a node since the last :meth:`clear`."""
        return sum(link is n.link for link, _ in self._asked)

    def takes(self, n: Any) -> int:
        """Of a node since the last :meth:`clear`."""
        return sum(takes for link, takes in self._asked if link is n.link)


def takes_in(name: str, args: Any) -> int:
    """
    How many takes a call asks: four arguments each behind the number of tasks moved (lua/take.lua,
    lua/batch.lua).
    """
    if name == "queue.take":
        return (len(args) - 3) // 4
    asked, at = 0, 2
    while name == "queue.batch" and at < len(args):
        asked += (args[at + 1] - 1) // 4 if args[at] == "take" else 0
        at += 2 + args[at + 1]
    return asked
