"""
A node loses one of its connections to the store alone, and what waits there is woken all the same.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
import redis
from support.cluster.harness import STILL, Cluster, Node, cluster_of_module, until_async

WAIT_MS = 600_000
LIMIT_S = 20.0  # a take waits for ten minutes
AGAIN_S = 0.05
numbers = itertools.count()


nodes = cluster_of_module(proxied=True, extra=STILL)


async def waiting(
    node: Node, queue: str, count: int = 1
) -> tuple[list[Any], list[asyncio.Future[Any]]]:
    """Consumers that wait, parked."""
    node.say("Q.CONFIG", queue)
    clients = [node.aclient() for _ in range(count)]
    words = ("Q.TAKE", "WAIT", WAIT_MS, "LEASE", WAIT_MS, "FROM", queue)
    takes = [asyncio.ensure_future(one.execute_command(*words)) for one in clients]

    def parked() -> bool:
        return bool(node.say("Q.STATS", queue)["waiting_takes_here"] >= count)

    await until_async(parked, what="takes wait")
    return clients, takes


async def repeated(client: Any, *words: Any) -> None:
    """Until it is answered, as who asks for it is told to; what was done before is NOTHELD then."""
    while True:
        try:
            await client.execute_command(*words)
            return
        except redis.ResponseError as error:
            if str(error).startswith("NOTHELD"):
                return
            if not str(error).startswith("STOREDOWN"):
                raise
            await asyncio.sleep(AGAIN_S)


class Giver:
    """A client that puts tasks, or has them and gives them back."""

    def __init__(self, node: Node, queue: str, how: str) -> None:
        self.client, self._queue, self._how = node.aclient(), queue, how
        self._held: list[tuple[str, int]] = []

    async def begin(self, names: list[str]) -> None:
        """Have them, where they are to be given back."""
        for name in names if self._how != "put" else ():
            await self.client.execute_command("Q.PUT", self._queue, name, "ID", name)
            ((_, task_id, lease, *_),) = await self.client.execute_command(
                "Q.TAKE", "LEASE", WAIT_MS, "FROM", self._queue
            )
            self._held.append((task_id, lease))

    async def give(self, names: list[str]) -> None:
        """All of them, one by one."""
        for name in names if self._how == "put" else ():
            await repeated(self.client, "Q.PUT", self._queue, name, "ID", name)
        for task_id, lease in self._held:
            await repeated(self.client, self._how, self._queue, task_id, lease)


async def come(takes: list[asyncio.Future[Any]]) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        return sorted(row[1] for rows in await asyncio.gather(*takes) for row in rows)


LOSSES = (("data", "request"), ("data", "reply"), ("ears", "message"))


@pytest.mark.parametrize(("link", "part"), LOSSES, ids=[" ".join(one) for one in LOSSES])
@pytest.mark.parametrize("how", ["put", "Q.RELEASE", "Q.FAIL"])
async def test_who_waits_is_woken_whatever_was_lost(
    nodes: Cluster, link: str, part: Any, how: str
) -> None:
    node, queue = nodes.nodes["n0"], f"q{next(numbers)}"
    # What ears hear is what others have done.
    giver, names = Giver(node if link == "data" else nodes.nodes["n1"], queue, how), [f"{queue}-0"]
    await giver.begin(names)
    clients, takes = await waiting(node, queue)
    loss = nodes.proxies["n0"].lose(link, part, queue.encode() if link == "data" else b"")
    await giver.give(names)
    await asyncio.to_thread(loss.wait)
    assert await come(takes) == names
    for client in (giver.client, *clients):
        await client.aclose()


@pytest.mark.parametrize("link", ["data", "ears", "control", "sweep", "accounts"])
async def test_who_waits_is_woken_while_a_link_is_cut_again_and_again(
    nodes: Cluster, link: str
) -> None:
    node, queue = nodes.nodes["n0"], f"q{next(numbers)}"
    names = sorted(f"{queue}-{n:02}" for n in range(20))
    givers = [Giver(node, queue, how) for how in ("put", "Q.RELEASE")]
    for giver, some in zip(givers, (names[:10], names[10:]), strict=True):
        await giver.begin(some)
    clients, takes = await waiting(node, queue, 20)
    jobs = [
        asyncio.ensure_future(giver.give(some))
        for giver, some in zip(givers, (names[:10], names[10:]), strict=True)
    ]
    while not all(job.done() for job in jobs):
        nodes.proxies["n0"].cut(link)
        await asyncio.sleep(0.05)
    await asyncio.gather(*jobs)
    assert await come(takes) == names
    for client in (*clients, *(giver.client for giver in givers)):
        await client.aclose()


async def test_who_waits_is_woken_after_the_store_stood_still(nodes: Cluster) -> None:
    """
    For longer than a link that owes an answer is left alone, and not as long as ears that owe none.
    """
    node, queue = nodes.nodes["n0"], f"q{next(numbers)}"
    giver = Giver(node, queue, "Q.RELEASE")
    await giver.begin(["late"])
    clients, takes = await waiting(node, queue)
    since = len(node.log())
    nodes.valkey.freeze()
    giving = asyncio.ensure_future(giver.give(["late"]))
    await until_async(
        lambda: any("owes an answer" in one for one in node.messages(since)), what="a link is cut"
    )
    nodes.valkey.thaw()
    await giving
    assert await come(takes) == ["late"]
    for client in (giver.client, *clients):
        await client.aclose()
