"""
From one node to three, to five, and back to three, under traffic: one change at a time, whoever
dies meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.cluster.harness import START_S, TROUBLE, Cluster, Node, background, closing, until
from support.faults.traffic import Traffic

pytestmark = pytest.mark.timeout(600)

PACE = "[raft]\npace = 1.5\n"
NAMES = ("n0", "n1", "n2", "n3", "n4")


class Growing(Cluster):
    """
    Five nodes, of which the first founds a cluster of its own; the others wait until they are let
    in.
    """

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        if name == "n0":
            return super().config_text(name, store_port, cluster__members="{}", **changes)
        return super().config_text(name, store_port, node__role='"joining"', **changes)


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Growing]:
    """Five, of which none runs."""
    made = Growing(tmp_path_factory.mktemp("members"), nodes=len(NAMES), extra=PACE)
    with closing(request, made):
        yield made


def address(node: Node) -> str:
    return f"{node.host}:{node.base_port}"


def voters(node: Node) -> set[str]:
    """Whom that node knows to vote, and to have been heard."""
    members = node.http("/v1/status").json()["members"]
    return {name for name, member in members.items() if member["votes"] and member["met"]}


def settled(made: Growing, *names: str) -> Node:
    """The leader, once exactly these have a vote and every node that runs knows it."""
    for node in made.alive():
        until(
            lambda node=node: voters(node) == set(names),
            START_S,
            what=f"{node.name} knows that {names} vote",
        )
    return made.leader()


def asked(node: Node, *words: str) -> int | str:
    """A change of the members: the version that has it, or the first word of why not."""
    try:
        return int(node.say(*words))
    except redis.ResponseError as error:
        return str(error).split()[0]
    except TROUBLE as error:
        return type(error).__name__


def insist(made: Growing, *words: str) -> None:
    """
    Ask each that is there until it is done: what was asked for without an answer may be done as
    well.
    """

    def done() -> bool:
        answers = (asked(node, *words) for node in made.alive())
        return any(
            isinstance(answer, int) or answer in ("EXISTS", "NOTFOUND") for answer in answers
        )

    until(done, START_S, 0.1, what=" ".join(words))


def begin(node: Node) -> None:
    node.start()
    until(node.ready, START_S, what=f"{node.name} serves")


class Watched:
    """Traffic that must go on after each change."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def goes_on(self) -> None:
        """What is put from now on is delivered, too."""
        before = set(self._traffic.put)
        until(lambda: len(self._traffic.put) > len(before) + 5, what="tasks are put")
        until(lambda: before <= self._traffic.delivered(), what="what was put is delivered")


async def test_from_one_to_three_to_five_to_three(nodes: Growing) -> None:
    members = list(nodes.nodes.values())
    begin(members[0])
    traffic = Traffic("grown", members)
    jobs: list[Any] = [
        traffic.produce(members[0], 0.02, 300),
        traffic.produce(members[2], 0.02, 300),
    ]
    jobs += [traffic.consume(node) for node in members[:3]]
    async with background(*jobs):
        await asyncio.to_thread(grow_and_shrink, nodes, members, Watched(traffic))
        await traffic.drained(nodes)
    traffic.settled(nodes)
    epochs = nodes.claims()
    assert len({epoch for epoch, _ in epochs}) == len(epochs), "an epoch was granted twice"


def grow_and_shrink(nodes: Growing, members: list[Node], watched: Watched) -> None:
    n0, n1, n2, n3, n4 = members
    settled(nodes, "n0")
    watched.goes_on()

    # To three. A name, or an address, is one member's: a second use of it is refused at once.
    insist(nodes, "R.JOIN", "n1", address(n1))
    assert (
        asked(n0, "R.JOIN", "n1", address(n2)) == asked(n0, "R.JOIN", "n2", address(n1)) == "EXISTS"
    )
    begin(n1)
    settled(nodes, "n0", "n1")
    insist(nodes, "R.JOIN", "n2", address(n2))
    begin(n2)
    leader = settled(nodes, "n0", "n1", "n2")
    watched.goes_on()

    # To five. The leader is killed in the middle of a join, which is asked of another.
    other = nodes.others(leader)[0]
    with other.client() as client:
        client.ping()
        client.connection.send_command("R.JOIN", "n3", address(n3))
        leader.kill()
        try:
            answer = client.connection.read_response()
        except redis.ResponseError as error:
            answer = str(error)
    print(f"the leader was killed while n3 was to join: {answer!r}")
    assert isinstance(answer, int) or answer.startswith(("NOQUORUM", "NOLEADER")), answer
    insist(nodes, "R.JOIN", "n3", address(n3))
    begin(n3)
    settled(nodes, "n0", "n1", "n2", "n3")
    begin(leader)
    watched.goes_on()
    insist(nodes, "R.JOIN", "n4", address(n4))
    begin(n4)
    leader = settled(nodes, *NAMES)
    watched.goes_on()

    # Without those who would have to agree nothing is changed for the time being, and the answer
    # says so.
    frozen = nodes.others(leader)[:3]
    other = frozen[0]
    for node in frozen:
        node.freeze()
    with pytest.raises(redis.ResponseError, match=r"NOLEADER|NOQUORUM .* may still be"):
        leader.say("R.LEAVE", other.name)
    for node in frozen:
        node.thaw()

    # Back to three: that one leaves, then the leader, which hands over first.
    insist(nodes, "R.LEAVE", other.name)
    stop(other)
    watched.goes_on()
    leader = nodes.leader()
    insist(nodes, "R.LEAVE", leader.name)
    stop(leader)
    watched.goes_on()
    settled(nodes, *(node.name for node in members if node not in (leader, other)))


def stop(gone: Node) -> None:
    """End a node that has left, once it knows."""
    until(
        lambda: "no member" in gone.http("/health/ready").text,
        what=f"{gone.name} knows that it has left",
    )
    assert gone.terminate() == 0
