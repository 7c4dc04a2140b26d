"""
The stores of ``up``: one for each of three nodes, and what becomes of a folder with one for all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster.processes import until
from support.cluster.running_up import Running, base_port, data, leader, processes_in, up
from support.doors.command_line import app
from typer.testing import CliRunner

from benchmarks.ports import free_ports
from tidewarden.cli.up.data_folder import FolderPlan, make_secrets, write_node_files
from tidewarden.cli.up.stores import LocalStores
from tidewarden.clock import SystemClock
from tidewarden.config.load import load

__all__ = ["base_port", "data", "up"]  # fixtures

pytestmark = pytest.mark.timeout(400)
READY_S = 60
TASKS = 20


class Cluster:
    """What clients see of a running ``up``."""

    def __init__(self, data: Path, base_port: int) -> None:
        self._data, self._base_port = data, base_port

    def ask(self, name: str, *command: str | int) -> Any:
        """One node's answer."""
        with redis.Redis(
            port=self._base_port + 10 * int(name[1:]),
            username="admin",
            password=(self._data / "secrets" / "admin.secret").read_text().strip(),
            protocol=3,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=20,
        ) as client:
            return client.execute_command(*command)

    def status(self, name: str) -> dict[str, Any]:
        """One node's R.STATUS; empty where it does not answer."""
        try:
            return dict(self.ask(name, "R.STATUS"))
        except redis.RedisError:
            return {}

    def whole(self, *names: str) -> dict[str, Any]:
        """R.STATUS of the first of these nodes, once all agree that just they are in sync."""
        found = [self.status(name) for name in names]
        agreed = {(one.get("primary"), one.get("view"), one.get("in_sync")) for one in found}
        return found[0] if len(agreed) == 1 and found[0].get("in_sync") == " ".join(names) else {}

    def put(self, name: str, prefix: str) -> None:
        """Put tasks by that node, each again until it is acknowledged: an id names one task."""
        for number in range(TASKS):
            while not self._acknowledged(name, f"{prefix}{number}"):
                continue

    def _acknowledged(self, name: str, task: str) -> bool:
        try:
            self.ask(name, "Q.PUT", "mail", "payload", "ID", task)
        except redis.ResponseError as error:
            if str(error).split()[0] not in ("STOREDOWN", "NOQUORUM"):
                raise
            return False
        return True

    def total(self, name: str) -> int:
        """How many tasks the queue has."""
        return int(self.ask(name, "Q.STATS", "mail")["total"])


@pytest.fixture
def cluster(data: Path, base_port: int) -> Cluster:
    return Cluster(data, base_port)


def test_the_primarys_host_is_lost_and_comes_back(
    up: Callable[..., Running], cluster: Cluster, data: Path
) -> None:
    running = up("--nodes", "3")
    until(lambda: running.said("READY"), READY_S)
    names = ("n0", "n1", "n2")
    before = until(lambda: cluster.whole(*names), every_s=0.1)
    assert sorted(path.parent.name for path in data.glob("n*/store")) == list(names)
    assert not (data / "store").exists()
    lost = before["primary"]
    until(lambda: running.said("up", f"{lost} is the primary, view 1; in sync: n0 n1 n2"))
    cluster.put("n0", "before")
    status = cluster.status(lost)
    os.kill(status["pid"], signal.SIGKILL)
    os.kill(status["store_pid"], signal.SIGKILL)
    left = [name for name in names if name != lost]
    cluster.put(left[0], "meanwhile")
    assert cluster.status(left[0])["primary"] in left
    until(lambda: running.said(lost, "store was killed by SIGKILL; it starts again in 0.05 s"))
    after = until(lambda: cluster.whole(*names), READY_S, every_s=0.1)
    assert after["view"] > before["view"]
    assert cluster.status(lost)["store_pid"] != status["store_pid"]
    assert cluster.total(lost) == 2 * TASKS
    assert running.stop(signal.SIGINT) == 0
    assert processes_in(data) == {}

    again = up("--nodes", "3")
    until(lambda: again.said("READY"), READY_S)
    assert cluster.total("n1") == 2 * TASKS
    until(lambda: cluster.whole(*names), every_s=0.1)
    assert cluster.status("n0")["loss"] == ""


def test_killed_itself_it_takes_all_stores_along_and_goes_on(
    up: Callable[..., Running], cluster: Cluster, data: Path
) -> None:
    first = up("--nodes", "3")
    until(lambda: first.said("READY"), READY_S)
    cluster.put("n0", "before")
    first.stop(signal.SIGKILL)
    until(lambda: processes_in(data) == {})
    again = up("--nodes", "3")
    until(lambda: again.said("READY"), READY_S)
    assert cluster.total("n2") == TASKS
    until(lambda: cluster.whole("n0", "n1", "n2"), every_s=0.1)
    assert cluster.status("n0")["loss"] == "", "each continued what it had"


def test_one_store_for_all_becomes_three_and_not_one_again(
    up: Callable[..., Running], cluster: Cluster, data: Path, base_port: int
) -> None:
    one = up("--nodes", "3", "--stores", "1")
    until(lambda: one.said("READY"), READY_S)
    assert one.said("store", "serves, pid ", "view 1")
    cluster.put("n0", "before")
    assert one.stop(signal.SIGTERM) == 0
    assert (data / "store" / "appendonlydir").exists()
    assert not list(data.glob("n*/store"))

    each = up("--nodes", "3")
    until(lambda: each.said("READY"), READY_S)
    assert each.said("up", f"the store of all nodes, {data}/store, is now that of n0")
    assert cluster.total("n2") == TASKS
    whole = until(lambda: cluster.whole("n0", "n1", "n2"), READY_S, every_s=0.1)
    assert whole["view"] > 1, "lease numbers go on"
    os.kill(cluster.status("n0")["store_pid"], signal.SIGKILL)
    assert until(lambda: cluster.status("n1").get("primary") != "n0", every_s=0.1)
    assert cluster.total("n1") == TASKS, "the others have whole copies"
    assert each.stop(signal.SIGTERM) == 0

    done = CliRunner().invoke(
        app, ["up", "--data-dir", str(data), "--base-port", str(base_port), "--stores", "1"]
    )
    assert done.exit_code == 4
    assert "has a store of each node (n0, n1, n2), and one cannot take their place" in " ".join(
        done.output.split()
    )


@pytest.mark.soak
def test_stores_come_and_go_with_their_nodes(
    up: Callable[..., Running], cluster: Cluster, data: Path
) -> None:
    """1, 3, 5 and 3 nodes; what was put is there all the while."""
    for step, count in enumerate((1, 3, 5, 3)):
        running = up("--nodes", str(count))
        until(lambda running=running: running.said("READY"), READY_S)
        names = [f"n{number}" for number in range(count)]
        if count > 1:
            until(lambda names=names: cluster.whole(*names), READY_S, every_s=0.1)
            found = until(lambda: leader(data), every_s=0.2)
            voters = [name for name, one in found["members"].items() if one["votes"]]
            assert sorted(voters) == names
            assert found["loss"] == ""
        assert cluster.total(names[-1]) == step * TASKS if step else True
        cluster.put(names[-1], f"step{step}-")
        assert running.stop(signal.SIGTERM) == 0
        assert processes_in(data) == {}


@pytest.mark.soak
def test_two_nodes_that_shared_a_store_have_three_with_a_third(
    up: Callable[..., Running], cluster: Cluster, data: Path
) -> None:
    two = up("--nodes", "2")
    until(lambda: two.said("READY"), READY_S)
    cluster.put("n1", "before")
    assert two.stop(signal.SIGTERM) == 0
    assert (data / "store").exists()
    for count in (3, 2):
        running = up("--nodes", str(count))
        until(lambda running=running: running.said("READY"), READY_S)
        names = [f"n{number}" for number in range(count)]
        until(lambda names=names: cluster.whole(*names), READY_S, every_s=0.1)
        assert cluster.total(names[-1]) == TASKS
        assert running.stop(signal.SIGTERM) == 0


async def test_the_common_store_is_moved_once_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    config = load(None, {}, {"node.base_port": str(free_ports(30))})
    ours = FolderPlan(tmp_path / "data", config, None, 3, 0)
    make_secrets(ours)
    (ours.common_store / "appendonlydir").mkdir(parents=True)
    (ours.common_store / "appendonlydir" / "kept").touch()
    for _ in range(2):
        stores = LocalStores(ours, SystemClock(), lambda who, what: told.append(f"{who}: {what}"))
        try:
            assert await stores.start() == "embedded"
            assert set(stores.hosts) == {"n0", "n1", "n2"}
            assert len({stores.pid(name) for name in ours.names}) == 3
        finally:
            await stores.stop()
        assert (ours.own_store("n0") / "appendonlydir" / "kept").exists()
        assert not ours.common_store.exists()
        assert [line for line in told if "is now that of n0" in line] == [
            f"up: the store of all nodes, {ours.common_store}, is now that of n0,"
            f" {ours.own_store('n0')}; the other nodes' stores copy its data"
        ]
    write_node_files(ours, "embedded")
    for name in ours.names:
        config = load(str(ours.folder(name) / "node.toml"), {}, {})
        assert config.replicated
        assert config.store_folder == ours.own_store(name).absolute()
        assert config.member_stores[name] == ours.address(name, 3)
