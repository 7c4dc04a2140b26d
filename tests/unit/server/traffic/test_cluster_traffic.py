"""What nodes ask each other: who may ask, who answers, and who does not."""

from __future__ import annotations

from collections.abc import Mapping

from support.tokens.peer_doors import door

from tidewarden.clock import SystemClock
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic, mac_of
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.server.traffic.report import TrafficQuery

SECRET = "the cluster's"


def node(name: str, puts: int, others: Mapping[str, str], secret: str = SECRET) -> ClusterTraffic:
    recorder = Recorder(SystemClock())
    for number in range(puts):
        queue = b"mails" if number % 2 else b"of %b" % name.encode()
        recorder.note("app", "Q.PUT", queue.replace(b" ", b"."), "here", 100, 20, "", 0.001)
    own = NodeTraffic(recorder, SystemClock())
    return ClusterTraffic(name, own, mac_of(secret), lambda: others)


async def test_all_nodes_are_added_up_and_those_that_do_not_answer_are_named() -> None:
    second, stranger = node("n1", 6, {}), node("n2", 8, {}, "another")
    async with (
        door(second.answer_peer) as of_second,
        door(stranger.answer_peer) as of_stranger,
        door(lambda _: b"rubbish") as odd,
    ):
        others = {"n1": of_second, "n2": of_stranger, "n3": odd, "n4": "127.0.0.1:8", "n5": ""}
        first = node("n0", 4, others)
        found = await first.report(TrafficQuery(by="queue"))
        await first.close()
        one = await first.report(TrafficQuery(by="queue", node="n1"))
        wrong = await first.report(TrafficQuery(by="queue", node="n4"))
        await first.close()
    rows = {row.name: (row.requests, row.bytes_in) for row in found.rows}
    assert rows == {"mails": (5, 500), "of.n0": (2, 200), "of.n1": (3, 300)}
    assert found.total.requests == 10
    assert found.nodes == ["n0", "n1"]
    reasons = {lost.node: lost.why for lost in found.unreachable}
    assert reasons.keys() == {"n2", "n3", "n4", "n5"}
    assert reasons["n2"] == "HTTP 403"
    assert reasons["n3"] == "what answered does not know the cluster's secret"
    assert "127.0.0.1" in reasons["n4"]
    assert (one.nodes, one.total.requests) == (["n1"], 6)
    assert (wrong.nodes, wrong.rows, len(wrong.unreachable)) == ([], [], 1)


async def test_a_node_answers_no_question_for_another_or_of_anybody_else() -> None:
    first = node("n0", 3, {})
    assert first.answer_peer(b"") is None
    assert first.answer_peer(b"x" * 200) is None
    async with door(first.answer_peer) as address:
        asking = node("n1", 0, {"n9": address})
        found = await asking.report(TrafficQuery())
        await asking.close()
    assert [lost.node for lost in found.unreachable] == ["n9"]
