"""The link between one node and the primary's host is cut: that node's clients are served on."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import redis
from support.cluster.harness import until
from support.faults.hosts import HostCluster

QUEUE = "cut.off"
BACK_S_MAX = 120.0
"""Each detour of one node within a minute after the last is given back later."""
GAP_S_MAX = 4.0
"""
Without a detour a gap has no end. It is 0.8 s of silence, 1.3 where one way alone is cut, and what
a loaded machine adds.
"""


class Writer:
    """Puts at one node, one after the other, and keeps when each was answered."""

    def __init__(self, cluster: HostCluster, name: str) -> None:
        self._node = cluster.nodes[name]
        self.answered_s = [time.monotonic()]
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._node.client(socket_timeout=30) as client:
            number = 0
            while not self._stop.wait(0.02):
                number += 1
                try:
                    client.execute_command("Q.PUT", QUEUE, "x", "ID", f"{id(self)}-{number}")
                    self.answered_s.append(time.monotonic())
                except redis.RedisError as error:
                    self.refused.append(str(error))

    def gap_s(self) -> float:
        """The longest time without an answer so far."""
        ends = [*self.answered_s, time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(ends))

    def goes_on(self) -> bool:
        """Whether answers come again and again."""
        count = len(self.answered_s)
        until(lambda: len(self.answered_s) > count + 5, 30, what="puts are answered")
        return True


def third_of(hosts: HostCluster, *names: str) -> str:
    return next(name for name in hosts.nodes if name not in names)


def led_by(hosts: HostCluster, name: str) -> None:
    """Have that node lead Raft."""
    if hosts.leader().name != name:
        hosts.leader().say("R.TRANSFER", name)
        until(lambda: hosts.leader().name == name, what=f"{name} leads")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("leader", "ways"),
    [
        ("third", "both"),
        ("third", "to the primary"),
        ("third", "from the primary"),
        ("primary", "both"),
    ],
)
def test_who_is_cut_off_from_the_primary_goes_by_way_of_another(
    hosts: HostCluster, leader: str, ways: str
) -> None:
    assert hosts.network
    primary = hosts.primary()
    led_by(hosts, primary if leader == "primary" else third_of(hosts, primary))
    struck = next(name for name in hosts.nodes if name not in (primary, hosts.leader().name))
    third = third_of(hosts, primary, struck)
    with Writer(hosts, struck) as writer, Writer(hosts, primary) as near:
        assert writer.goes_on()
        if ways != "from the primary":
            hosts.network.cut(struck, primary)
        if ways != "to the primary":
            hosts.network.cut(primary, struck)
        try:
            node = hosts.nodes[struck]
            until(lambda: node.status()["detour"] == third, what="it goes by way of the third")
            assert writer.goes_on()
            assert writer.gap_s() < GAP_S_MAX
            assert hosts.primary() == primary
            assert node.metric("tidewarden_node_store_detour_connections") > 0
            assert hosts.nodes[third].metric("tidewarden_node_store_carried_connections") > 0
            told = " ".join(node.status()["store_problems"])
            assert f"by way of {third}" in told
            assert near.goes_on()
        finally:
            hosts.network.heal()
        until(lambda: not node.status()["detour"], BACK_S_MAX, what="it is given back")
        assert writer.goes_on()
        assert not writer.refused, "a put is repeatable"
        assert not near.refused
    hosts.wait_whole()


def test_a_leader_that_is_cut_off_replaces_the_primary_whose_clients_follow(
    hosts: HostCluster,
) -> None:
    """The former primary hears no leader, so it learns from the third node who took over."""
    assert hosts.network
    primary = hosts.primary()
    leader = third_of(hosts, primary)
    led_by(hosts, leader)
    with Writer(hosts, leader) as writer, Writer(hosts, primary) as former:
        assert writer.goes_on()
        assert former.goes_on()
        hosts.network.cut(leader, primary)
        hosts.network.cut(primary, leader)
        try:
            until(lambda: hosts.primary() not in ("", primary), what="another is the primary")
            assert writer.goes_on()
            assert former.goes_on()
        finally:
            hosts.network.heal()
        assert writer.goes_on()
        assert former.goes_on()
    hosts.wait_whole()
