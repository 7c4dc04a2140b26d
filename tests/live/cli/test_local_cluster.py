"""The local cluster with stand-ins for nodes: what happens to them when things go wrong."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.cluster.running_up import processes_in

from benchmarks.ports import free_ports
from tidewarden.cli.up import resize
from tidewarden.cli.up.data_folder import FolderPlan
from tidewarden.cli.up.live_view import ShownEvent
from tidewarden.cli.up.local_cluster import LocalCluster
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import ConfigError

NODE = """
import http.server, signal, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
if sys.argv[2] == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "refuses": print("node.name: bad"); sys.exit(4)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


@pytest.fixture(autouse=True)
def agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts in the place of nodes cannot say who is a member."""
    monkeypatch.setattr(resize, "members", lambda plan: set(plan.names))


def stand_in(plan: FolderPlan, events: list[ShownEvent], manner: str) -> LocalCluster:
    """A cluster whose nodes are scripts that only say that they are ready."""

    def argv(name: str) -> list[str]:
        return [
            sys.executable,
            "-c",
            NODE,
            str(plan.base_port(name) + 1),
            manner,
            str(plan.data_dir),
        ]

    return LocalCluster(plan, SystemClock(), events.append, argv)


@pytest.fixture
def plan(tmp_path: Path) -> FolderPlan:
    return FolderPlan(
        tmp_path / "data", load(None, {}, {"node.base_port": str(free_ports(20))}), None, 2, 0
    )


async def test_a_cluster_starts_in_order_and_stops_in_the_other(plan: FolderPlan) -> None:
    events: list[ShownEvent] = []

    async def body() -> None:
        assert len(processes_in(plan.data_dir)) == 3

    await stand_in(plan, events, "willing").run(body)
    assert not processes_in(plan.data_dir)
    told = [f"{event.subject} {event.text.partition(',')[0]}" for event in events]
    assert told[0] == "store serves"
    assert sorted(told[1:5]) == ["n0 serves", "n0 started", "n1 serves", "n1 started"]
    assert told[5:] == ["up stopping the nodes", "up stopping the store", "up stopped"]


async def test_a_node_that_does_not_stop_is_killed(
    plan: FolderPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewarden.cli.up.local_cluster.NODE_GRACE_S", 0.5)
    events: list[ShownEvent] = []
    running = asyncio.Event()

    async def body() -> None:
        running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stand_in(plan, events, "deaf").run(body))
    reached = asyncio.create_task(running.wait())
    await asyncio.wait([task, reached], timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert running.is_set(), task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_in(plan.data_dir)
    assert sorted(event.subject for event in events if "did not stop within" in event.text) == [
        "n0",
        "n1",
    ]


async def test_whoever_asks_twice_gets_it_at_once(
    plan: FolderPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewarden.cli.up.local_cluster.NODE_GRACE_S", 300)
    cluster = stand_in(plan, [], "deaf")

    async def body() -> None:
        asyncio.get_running_loop().call_later(0.2, cluster.kill)

    async with asyncio.timeout(100):
        await cluster.run(body)
    assert not processes_in(plan.data_dir)


async def test_a_node_that_refuses_its_configuration_ends_it_all(plan: FolderPlan) -> None:
    async def body() -> None:
        raise AssertionError("nothing serves")

    with pytest.raises(ConfigError, match=r"n. ended with status 4: node\.name: bad"):
        await stand_in(plan, [], "refuses").run(body)
    assert not processes_in(plan.data_dir)


async def test_a_defect_stops_everything_and_is_not_hidden(plan: FolderPlan) -> None:
    async def body() -> None:
        raise RuntimeError("a defect")

    with pytest.raises(ExceptionGroup) as caught:
        await stand_in(plan, [], "willing").run(body)
    assert caught.group_contains(RuntimeError, match="a defect")
    assert not processes_in(plan.data_dir)
