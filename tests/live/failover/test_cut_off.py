"""
A leader that is cut off, from its peers, from the store, from both, or from its disk; what it still
says changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from support.cluster.harness import CLUSTER, Node, serving, until, until_async
from support.cluster.stale_sweep import catch_a_sweep, fence, quiet, refused_by, unchanged
from support.faults.faulty import LIFE_S, FaultyCluster
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread

TASKS = 3
SETTLE_S = 60.0
STEADY = "[raft]\npace = 3.0\n"  # a starved machine must not elect where nothing is cut


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    with provider_in_thread(6, LIFE_S) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: ScriptedProvider,
) -> Iterator[FaultyCluster]:
    with serving(
        request,
        FaultyCluster(
            tmp_path_factory.mktemp("cut"), provider, extra=STEADY, slow_disks=False, led=False
        ),
    ) as made:
        yield made


@pytest.fixture
def healed(nodes: FaultyCluster) -> Iterator[FaultyCluster]:
    """The module's cluster, whole again, before and after."""
    nodes.calm()
    nodes.heal()
    yield nodes
    nodes.calm()


def needs(nodes: FaultyCluster, part: str) -> None:
    if part in nodes.absent:
        pytest.skip(nodes.absent[part])


def from_peers(nodes: FaultyCluster, leader: Node) -> None:
    needs(nodes, "network")
    assert nodes.network
    nodes.network.isolate(leader.name)


def from_both(nodes: FaultyCluster, leader: Node) -> None:
    from_peers(nodes, leader)
    for way in nodes.proxies[leader.name].ways.values():
        way.open.clear()  # what it said before, and says now, comes when the cut is mended


def with_a_full_disk(nodes: FaultyCluster, leader: Node) -> None:
    """
    Cut off from its peers besides: a full disk alone need not end a leadership, for nothing may
    have to be written.
    """
    needs(nodes, "small disk")
    from_peers(nodes, leader)
    nodes.disks[leader.name].fill()


@pytest.mark.parametrize("cut", [from_peers, from_both, with_a_full_disk])
def test_what_a_leader_said_before_it_was_cut_off_is_stale(
    healed: FaultyCluster, cut: Callable[[FaultyCluster, Node], None]
) -> None:
    """
    Its sweep's call is on its way when it is cut off; another is elected and sweeps; then the call
    reaches the store.
    """
    nodes, queue = healed, f"stale-{cut.__name__}"
    old = nodes.leader()
    epoch = int(old.status()["epoch"])
    trap = catch_a_sweep(nodes, old, queue)
    cut(nodes, old)
    begun = time.monotonic()
    new, greater = until(lambda: nodes.sweeper(epoch), SETTLE_S, what="another sweeps")
    print(f"epoch {greater} sweeps on {new.name} {time.monotonic() - begun:.2f} s after the cut")
    assert new is not old
    until(lambda: fence(nodes, queue)[0] >= greater, what="the new leader has swept the shard")
    until(
        lambda: nodes.audit(queue) == {"ready": 2},
        what="the task that the held call was for is moved",
    )
    before = quiet(nodes, queue)

    trap.release()
    for way in nodes.proxies[old.name].ways.values():
        way.open.set()
    until(lambda: trap.replies, what="the store answers the held call")
    refused_by(trap, old, epoch)
    unchanged(nodes, queue, greater, before)
    until(lambda: not old.status()["sweeping"], what="it does not sweep")

    nodes.calm()
    healed_at = time.monotonic()
    assert nodes.leader() is new, "who comes back unseats nobody"
    print(f"one leader {time.monotonic() - healed_at:.2f} s after the cut was mended")
    assert fence(nodes, queue)[0] == greater


def test_a_leader_cut_off_from_the_store_lets_another_sweep(healed: FaultyCluster) -> None:
    """Raft hears it well, but it cannot work: whoever can takes over, with nobody's help."""
    old = healed.leader()
    epoch = int(old.status()["epoch"])
    for way in healed.proxies[old.name].ways.values():
        way.lost = True
    begun = time.monotonic()
    new, greater = until(lambda: healed.sweeper(epoch), SETTLE_S, what="another sweeps")
    print(
        f"epoch {greater} sweeps on {new.name} {time.monotonic() - begun:.2f} s after {old.name}"
        " lost the store"
    )
    assert new is not old
    new.say("Q.PUT", "swept", "x", "DELAY", 1)
    until(lambda: healed.audit("swept") == {"ready": 1}, what="due tasks are swept")


def test_a_node_that_lost_only_its_raft_links_is_not_dead(healed: FaultyCluster) -> None:
    """
    It registers at the store as before: what its consumers hold, in sessions and without, stays
    theirs.
    """
    needs(healed, "network")
    leader = healed.leader()
    victim = healed.others(leader)[0]
    assert healed.network
    for queue in ("bare", "session"):
        for number in range(TASKS):
            victim.say("Q.PUT", queue, number, "ID", f"t{number}")
    bare, session = victim.client(), victim.client()
    session.execute_command("SESSION", "GRACE", 1000)
    held = bare.execute_command("Q.TAKE", "COUNT", TASKS, "LEASE", 60_000, "FROM", "bare")
    kept = session.execute_command("Q.TAKE", "COUNT", TASKS, "LEASE", 60_000, "FROM", "session")
    since = {node.name: len(node.log()) for node in healed.alive()}
    healed.network.isolate(victim.name)
    until(lambda: victim.status()["role"] == "orphan", what="it is an orphan")
    time.sleep(3.0)  # longer than a silent node is given: this is what would be wrong
    said = [
        line
        for node in healed.alive()
        for line in node.messages(since[node.name])
        if "is dead" in line
    ]
    assert said == []
    assert victim.http("/health/ready").status_code == 200
    for client, queue, rows in ((bare, "bare", held), (session, "session", kept)):
        pairs = [word for row in rows for word in (row[1], row[2])]
        assert client.execute_command("Q.ACK", queue, *pairs) == [1] * TASKS
        assert not healed.audit(queue)
        client.close()


async def test_without_a_quorum_only_the_sweep_waits(
    healed: FaultyCluster, provider: ScriptedProvider
) -> None:
    """
    Every node alone, the store there: puts, takes, due times and refreshes are punctual on each; no
    sweep is made.
    """
    needs(healed, "network")
    nodes, leader = healed, healed.leader()
    epoch = int(leader.status()["epoch"])
    for account, token in provider.seeds.items():
        await asyncio.to_thread(
            leader.say, "T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}'
        )
    await until_async(
        lambda: len(provider.log) >= len(provider.seeds), what="every account is refreshed once"
    )
    assert nodes.network
    for name in nodes.nodes:
        nodes.network.isolate(name)
    for node in nodes.alive():
        await asyncio.to_thread(until, lambda node=node: node.status()["role"] == "orphan")
    asked = len(provider.log)
    await asyncio.to_thread(leader.say, "Q.PUT", "unswept", "x", "DELAY", 1)
    for node in nodes.alive():
        late_s = await lateness(node)
        print(f"{node.name}, an orphan: a task due in 0.5 s came {late_s * 1000:.0f} ms late")
    assert await attempts(*nodes.alive()[:2]) == [
        1,
        2,
        3,
    ], "a lease that ends, and a retry, need no leader either"
    for account in provider.seeds:  # long before they are due by themselves
        await asyncio.to_thread(leader.say, "T.REFRESH", f"counted/{account}")
    await until_async(
        lambda: len(provider.log) >= asked + len(provider.seeds), what="refreshes go on"
    )
    assert {one.answer for one in provider.log} == {"new"}, "each by one refresher"
    assert nodes.audit("unswept") == {"delayed": 1}, "nobody swept"
    assert not any(
        status["sweeping"] for status in (await asyncio.to_thread(nodes.statuses)).values()
    )
    with nodes.valkey.client() as store:
        assert int(store.hget(f"{{{CLUSTER}}}:fence", "epoch")) == epoch
    nodes.network.heal()
    await asyncio.to_thread(nodes.leader)
    await until_async(lambda: nodes.audit("unswept") == {"ready": 1}, what="the sweep goes on")


async def attempts(node: Node, other: Node) -> list[int]:
    """
    What a task's deliveries count: held through one node until its lease ends, failed at another,
    taken once more there.
    """
    first, second = node.aclient(), other.aclient()
    await first.execute_command("Q.PUT", "held-alone", "x", "ATTEMPTS", 9)
    rows = [await first.execute_command("Q.TAKE", "LEASE", 300, "FROM", "held-alone")]
    rows.append(await second.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "held-alone"))
    ((_, task_id, lease, *_),) = rows[1]
    await second.execute_command("Q.FAIL", "held-alone", task_id, lease, "DELAY", 300)
    rows.append(await second.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "held-alone"))
    for client in (first, second):
        await client.aclose()
    return [row[0][4] for row in rows]


async def lateness(node: Node) -> float:
    """Seconds after its due time that a delayed task reached a consumer that waits at this node."""
    client: Any = node.aclient()
    queue = f"due-{node.name}"
    waiting = asyncio.ensure_future(client.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", queue))
    await until_async(lambda: node.metric("tidewarden_resp_waiting") == 1, what="a take waits")
    begun = time.monotonic()
    await asyncio.to_thread(node.say, "Q.PUT", queue, "x", "DELAY", 500)
    ((_, task_id, lease, *_),) = await waiting
    late_s = time.monotonic() - begun - 0.5
    assert await client.execute_command("Q.ACK", queue, task_id, lease) == "OK"
    await client.aclose()
    return late_s


def test_a_leader_with_a_full_disk_serves_on(healed: FaultyCluster) -> None:
    """
    Not a byte is left where its Raft files lie: tasks flow, and when it has to go another leads;
    then it is back.
    """
    needs(healed, "small disk")
    leader = healed.leader()
    epoch = int(leader.status()["epoch"])
    healed.disks[leader.name].fill()
    leader.say("Q.PUT", "full-disk", "x", "ID", "a", "DELAY", 200)
    with leader.client() as client:
        ((_, _, lease, *_),) = client.execute_command("Q.TAKE", "WAIT", 60_000, "FROM", "full-disk")
        assert client.execute_command("Q.ACK", "full-disk", "a", lease) == "OK"
    leader.kill()
    new, _ = until(lambda: healed.sweeper(epoch), SETTLE_S, what="another sweeps")
    assert new is not leader
    healed.disks[leader.name].free()
    leader.start()
    until(leader.ready, what="it is back")
    with pytest.raises(redis.ResponseError, match="NOTHELD"):
        leader.say("Q.ACK", "full-disk", "b", lease)


def test_who_cannot_write_its_vote_down_gives_none(healed: FaultyCluster) -> None:
    """
    The leader is gone and one of the two others has a full disk: nobody is elected until there is
    room, then one is.
    """
    needs(healed, "small disk")
    leader = healed.leader()
    epoch = int(leader.status()["epoch"])
    full, other = healed.others(leader)
    since = len(full.log())
    healed.disks[full.name].fill()
    leader.kill()
    until(
        lambda: any("No space left" in line for line in full.messages(since)),
        what="it says what is wrong",
    )
    time.sleep(4.0)  # an election or two: one that succeeded would be what is wrong
    assert healed.sweeper(epoch) is None
    assert (
        full.say("Q.PUT", "voteless", "x", "ID", "a")
        == other.say("Q.TAKE", "FROM", "voteless")[0][1]
    )
    healed.disks[full.name].free()
    freed = time.monotonic()
    new, _ = until(lambda: healed.sweeper(epoch), SETTLE_S, what="somebody sweeps")
    print(f"{new.name} sweeps {time.monotonic() - freed:.2f} s after there was room")


@pytest.mark.thorough
def test_a_node_that_is_started_on_a_full_disk_says_so_and_serves_when_there_is_room(
    healed: FaultyCluster,
) -> None:
    needs(healed, "small disk")
    victim = healed.others(healed.leader())[0]
    victim.kill()
    healed.disks[victim.name].fill()
    victim.start()
    until(
        lambda: not victim.running,
        SETTLE_S,
        what="it ends: it could not keep what a provider answers",
    )
    said = victim.output.read_text("utf-8")
    assert "node.data_dir: " in said
    assert "tokens.journal: No space left on device" in said
    healed.disks[victim.name].free()
    healed.heal()
