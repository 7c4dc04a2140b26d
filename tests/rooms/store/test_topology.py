"""
The URL of a Redis Cluster, and whose word about it is heard; the rest is seen in
``live/store/test_cluster_client.py``.
"""

from __future__ import annotations

import pytest
from support.inspect import ask_one, followers_of, hear_topology

from tidewarden.clock import SystemClock
from tidewarden.errors import BadArg, StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store.connect import redact
from tidewarden.store.redis_cluster.slots import Claim, SlotsReply
from tidewarden.store.redis_cluster.topology import ClusterUrl, Owner, Topology, by_cluster


def test_the_parts_of_the_url() -> None:
    url = ClusterUrl("redis+cluster://u:p%40ss@h1:1,h2,[::1]:3/?socket_keepalive=1")
    assert url.seeds == ("h1:1", "h2:6379", "[::1]:3")
    assert url.url_of("10.0.0.1:6") == "redis://u:p%40ss@10.0.0.1:6?socket_keepalive=1"
    assert (
        ClusterUrl(f"rediss+cluster://h:1?ssl_ca_certs={__file__}").url_of("p:6")
        == f"rediss://p:6?ssl_ca_certs={__file__}"
    )


@pytest.mark.parametrize(
    "url",
    ["redis+cluster://", "redis+cluster:///", "http+cluster://u:secret@h:1", "redis+cluster://u:secret@h:1/2", "redis://h:1",
     "redis+cluster://u:secret@h:1?db=2", "redis+cluster://u:secret@h:port"],
)  # fmt: skip
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(BadArg) as caught:
        ClusterUrl(url)
    assert "secret" not in str(caught.value)


def test_which_urls_are_meant() -> None:
    assert by_cluster("redis+cluster://h")
    assert by_cluster("rediss+cluster://h")
    assert not by_cluster("redis+sentinel://h/main")
    assert redact("redis+cluster://u:a@h:1,h:2") == "redis+cluster://u:…@h:1,h:2"


async def test_followers_hear_of_every_change_and_only_of_those() -> None:
    topology = Topology("redis+cluster://127.0.0.1:1", "t", SystemClock())
    heard: list[str] = []
    moved: list[str] = []
    topology.follow(lambda: heard.append(topology.owner("{x}")))
    owner = Owner(topology, "{x}")
    owner.follow(moved.append)
    with pytest.raises(StoreDown, match="no server of the cluster answers"):
        await owner.find()
    answer = SlotsReply((Claim(0, 16383, "127.0.0.1:2", 1),))
    hear_topology(topology, "127.0.0.1:1", answer)
    hear_topology(topology, "127.0.0.1:1", answer)
    topology.moved(3, "127.0.0.1:3")
    hear_topology(
        topology,
        "127.0.0.1:2",
        SlotsReply((Claim(0, 16383, "127.0.0.1:2", 1),), (), "CLUSTERDOWN it is down"),
    )
    assert heard == ["127.0.0.1:2"] * 2, "the last one had not heard of the redirection"
    assert moved == ["redis://127.0.0.1:2"] * 2
    assert await owner.find() == "redis://127.0.0.1:2"
    assert topology.troubles["127.0.0.1:2"] == "CLUSTERDOWN it is down"
    await owner.forget(moved.append)
    for follower in list(followers_of(topology)):
        await topology.forget(follower)


async def test_a_server_of_another_cluster_is_not_heard_and_said_so() -> None:
    topology = Topology("redis+cluster://127.0.0.1:1,127.0.0.1:2", "t", SystemClock())
    hear_topology(
        topology,
        "127.0.0.1:1",
        SlotsReply((Claim(0, 16383, "127.0.0.1:1", 1, "ours"),), members=frozenset(["ours"])),
    )
    other = SlotsReply(
        (Claim(0, 16383, "127.0.0.1:2", 9, "theirs"),), members=frozenset(["theirs"])
    )
    hear_topology(topology, "127.0.0.1:2", other)
    assert topology.owner("{x}") == "127.0.0.1:1"
    assert "of another cluster" in topology.troubles["127.0.0.1:2"]


async def test_a_server_that_is_no_cluster_is_said_so(valkey) -> None:  # type: ignore[no-untyped-def]
    link = StoreConnection(valkey.url, "t", SystemClock())
    await link.start(wait_s=60)
    topology = Topology("redis+cluster://127.0.0.1:1", "t", SystemClock())
    await ask_one(topology, "127.0.0.1:1", link)
    assert "cluster support disabled" in topology.why()
    await link.stop()
