"""
What goes on by itself goes on after whatever befell the store: silent for twenty seconds, loading,
refusing every script, or with keys that some scripts cannot read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.cluster.daily_work import WORK_S, Outside, Work
from support.cluster.harness import CLUSTER, Cluster, cluster, until

pytestmark = pytest.mark.timeout(600)

SILENT_S = 20.0


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, outside: Outside
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("loops")
    with cluster(request, folder, nodes=1, extra=outside.toml(), node__processes="2") as made:
        yield made


@contextlib.contextmanager
def silent(nodes: Cluster) -> Iterator[None]:
    nodes.valkey.freeze()
    yield
    nodes.valkey.thaw()


@contextlib.contextmanager
def loading(nodes: Cluster) -> Iterator[None]:
    """It has what clients need to log in, and tells them that it loads."""
    valkey = nodes.valkey
    former = dict(valkey.options)
    with valkey.client() as store, store.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"filler:{number}", "x" * 500)
        pipe.execute()
    valkey.kill()
    valkey.options |= {
        "requirepass": valkey.password, "key-load-delay": "1000", "loading-process-events-interval-bytes": "2048",
        "enable-debug-command": "yes",
    }  # fmt: skip
    valkey.launch()
    with valkey.client() as store:
        until(lambda: "loading:1" in _said(store), what="it loads")
    yield
    with valkey.client() as store:
        until(lambda: store.ping(), 60, what="it has loaded")
    valkey.options.clear()
    valkey.options |= former


def _said(store: redis.Redis) -> str:
    return f"loading:{store.info('persistence')['loading']}"


@contextlib.contextmanager
def refusing(nodes: Cluster) -> Iterator[None]:
    scripts = ("evalsha", "eval", "fcall")
    with nodes.valkey.client() as store:
        store.execute_command(
            "ACL", "SETUSER", "default", *(f"-{name}" for name in scripts), "-subscribe"
        )
        store.client_kill_filter(_type="pubsub")
        yield
        store.execute_command(
            "ACL", "SETUSER", "default", *(f"+{name}" for name in scripts), "+subscribe"
        )


@contextlib.contextmanager
def unreadable(nodes: Cluster) -> Iterator[None]:
    """Keys of another type in the places of the sessions' graces, the events and the clock."""
    names = [f"{{{CLUSTER}}}:{name}" for name in ("session:graces", "events", "clock")]
    with nodes.valkey.client() as store:
        kept = {name: store.dump(name) for name in names}
        for name in names:
            store.delete(name)
            store.set(name, "of another type")
        yield
        for name in names:
            store.delete(name)
            if kept[name] is not None:
                store.restore(name, 0, kept[name])


@pytest.mark.parametrize(
    ("what", "for_s"), [(silent, SILENT_S), (loading, 0.0), (refusing, 8.0), (unreadable, 8.0)],
    ids=["silent", "loading", "refusing", "unreadable"],
)  # fmt: skip
def test_everything_goes_on(nodes: Cluster, outside: Outside, what: Any, for_s: float) -> None:
    node = nodes.nodes["n0"]
    until(node.ready, WORK_S)
    epoch, pid = node.status()["epoch"], node.pid
    work = Work(nodes, outside, what.__name__)
    work.before()
    with what(nodes):
        time.sleep(for_s)
        assert node.http("/health/live").status_code == 200
    work.after()
    assert node.pid == pid
    shown = node.http("/metrics").text
    for duty in ("sweep", "reaper"):
        assert f'tidewarden_node_leader_duty_late_seconds{{kind="{duty}"}} ' in shown
    assert "tidewarden_node_leader_duties_begun_anew_total 0.0" in shown
    if what is unreadable:
        assert node.status()["epoch"] == epoch, "what goes wrong with sessions ends no term"
