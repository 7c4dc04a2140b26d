"""
A node that elects nobody: it serves like others, is seen, and is found dead by the store alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.cluster.harness import (
    CALM,
    CLUSTER,
    START_S,
    Cluster,
    Node,
    cluster,
    until,
    until_async,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Node]]:
    """A member, which leads, and a worker."""
    folder = tmp_path_factory.mktemp("workers")
    with cluster(request, folder, nodes=2, extra=CALM) as made:
        yield made, made.nodes["n1"]


# It listens at every address: which of them others reach it has to find out.
WORKER = {"node__role": '"worker"', "node__host": '"0.0.0.0"'}


@pytest.fixture(scope="module", autouse=True)
def _worker(monkeypatch_module: pytest.MonkeyPatch) -> None:
    plain = Cluster.config_text

    def text(self: Cluster, name: str, store_port: int = 0, **changes: str) -> str:
        lone = f'{{n0 = "127.0.0.1:{self.members["n0"]}"}}'
        more = {"cluster__members": lone} | (WORKER if name == "n1" else {})
        return plain(self, name, store_port, **changes, **more)

    monkeypatch_module.setattr(Cluster, "config_text", text)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_it_knows_the_leader_and_serves_every_verb(pair: tuple[Cluster, Node]) -> None:
    made, worker = pair
    until(lambda: worker.status()["leader"] == "n0", what="it knows the leader")
    status = worker.status()
    assert (status["role"], status["quorum"], bool(status["sweeping"])) == ("worker", 1, False)
    assert status["epoch"] == made.nodes["n0"].status()["epoch"]
    assert worker.http("/leader").status_code == 503
    assert worker.say("Q.PUT", "w", "x", "ID", "a") == "a"
    ((_, _, lease, *_),) = made.nodes["n0"].say("Q.TAKE", "FROM", "w")
    assert lease
    assert worker.say("S.PUT", "s", "EVERY", "60000", "w", "tick")
    with pytest.raises(Exception, match="is a worker, which elects nobody"):
        worker.say("R.TRANSFER")
    until(lambda: "n1" in members(made.nodes["n0"]), what="the member lists it")
    assert not members(made.nodes["n0"])["n1"]["votes"]
    told = str(members(made.nodes["n0"])["n1"]["address"])
    assert [told, members(worker)["n1"]["address"]] == [f"127.0.0.1:{made.members['n1']}"] * 2


def members(node: Node) -> dict[str, dict[str, object]]:
    return node.http("/v1/status").json()["members"]


def test_one_that_only_the_shards_call_dead_registers_anew(pair: tuple[Cluster, Node]) -> None:
    """
    The leader that marked its boot there ended before it was buried, and it lives: nobody else
    would tell it.
    """
    made, worker = pair
    worker.say("Q.PUT", "refused", "x", "ID", "a")
    holder = str(worker.status()["holder"])
    with made.valkey.client() as store:
        store.hset(f"{{{CLUSTER}:refused:0}}:shard", "dead", holder)
        # Else what a script read last of it holds for a second.
        store.hdel(f"{{{CLUSTER}:refused:0}}:shard", "seq")
    ((_, task_id, *_),) = worker.say("Q.TAKE", "WAIT", 25_000, "FROM", "refused")
    assert task_id == "a"
    assert worker.status()["holder"] != holder


async def test_killed_it_is_dead_after_two_seconds_of_silence(pair: tuple[Cluster, Node]) -> None:
    made, worker = pair
    first = made.nodes["n0"]
    await asyncio.to_thread(first.say, "Q.PUT", "held", "x", "ID", "a")
    async with worker.aclient() as client:
        assert len(await client.execute_command("Q.TAKE", "LEASE", 600_000, "FROM", "held")) == 1
        await asyncio.to_thread(worker.kill)
    async with first.aclient() as client:
        rows = await asyncio.wait_for(
            client.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "held"), 70
        )
        assert rows[0][1] == "a"
    await until_async(lambda: "n1" not in members(first), what="it is forgotten")
    worker.start()
    await asyncio.to_thread(until, worker.ready, START_S, what="it serves again")
