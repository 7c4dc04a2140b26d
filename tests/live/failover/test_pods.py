"""
Pods of Kubernetes as ``deploy/kubernetes`` has them, played in network namespaces: restarted one by
one under load, each at another address; one with an empty volume; all of them killed at once.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import pod_load
from support.cluster.pods import CLIENT, Pod, StatefulSet
from support.cluster.processes import LIMIT_S, until

from benchmarks.network import missing

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatefulSet]:
    """All pods, started at once, and ready."""
    if problem := missing():
        pytest.skip(problem)
    made = StatefulSet(tmp_path_factory.mktemp("pods"), secrets.token_hex(8))
    try:
        for pod in made.pods.values():
            made.start(pod)
        for pod in made.pods.values():
            made.wait_ready(pod)
        yield made
    finally:
        made.close()


@pytest.fixture
def load(pods: StatefulSet) -> Iterator[subprocess.Popen[bytes]]:
    """A client in a pod of its own, whose tasks go through."""
    output = pods.folder / "load.output"
    output.write_text("")
    running = pods.execute(CLIENT, [sys.executable, pod_load.__file__, pods.url], output)
    try:
        goes_through(pods, running)
        yield running
    finally:
        running.kill()
        running.wait(LIMIT_S)


def goes_through(pods: StatefulSet, load: subprocess.Popen[bytes]) -> None:
    """Return when more tasks are done than are now."""
    output = pods.folder / "load.output"
    now = output.read_text().count("done")
    until(lambda: load.poll() is not None or output.read_text().count("done") > now + 1)


def ended_well(pods: StatefulSet, load: subprocess.Popen[bytes]) -> dict[str, Any]:
    """See that tasks go through, end the load, and see that all that was put was done."""
    goes_through(pods, load)
    load.send_signal(signal.SIGUSR1)
    assert load.wait(LIMIT_S) == 0, (pods.folder / "load.output").read_text()[-3000:]
    told: dict[str, Any] = json.loads((pods.folder / "load.output").read_text().splitlines()[-1])
    assert told["undone"] == []
    print(f"load: {told}")
    return told


def settle(pods: StatefulSet, pod: Pod) -> None:
    """Wait as the StatefulSet does before it goes on, or until the pod's store is in sync."""
    pods.wait_ready(pod)
    until_s = time.monotonic() + pods.min_ready_s
    until(lambda: pods.ready(pod, whole=True) or time.monotonic() > until_s)


def in_sync(pods: StatefulSet, by: Pod) -> set[str]:
    """The pods whose stores have all writes, as the leader tells that pod."""
    done = pods.tell(by, "cluster", "status", "--json")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)["in_sync"].split())


def test_pods_that_are_restarted_one_by_one_lose_nothing(
    pods: StatefulSet, load: subprocess.Popen[bytes]
) -> None:
    """From the last to the first, as an update does; each comes back at another address."""
    for pod in reversed(pods.pods.values()):
        before = pods.address(pod)
        assert pods.end(pod) == 0
        pods.start(pod)
        assert pods.address(pod) != before
        settle(pods, pod)
    assert ended_well(pods, load)["twice"] == 0, "a task was delivered twice"


def test_a_pod_whose_volume_is_lost_is_let_in_again_as_the_page_says(
    pods: StatefulSet, load: subprocess.Popen[bytes]
) -> None:
    first, lost, _ = pods.pods.values()
    pods.end(lost, signal.SIGKILL)
    shutil.rmtree(lost.volume)
    pods.start(lost)
    until(lambda: "which is new" in pods.output(lost).read_text(), what="it is refused")
    assert not pods.ready(lost)
    if lost.running:
        pods.end(lost)
    where = f"{lost.name}.tidewarden-nodes.tidewarden.svc:7420"
    for words in (["leave", lost.name], ["join", lost.name, where]):
        done = pods.tell(first, "cluster", *words)
        assert done.returncode == 0, done.stderr
    lost.environ = {"TIDEWARDEN_NODE_ROLE": "joining"}
    pods.start(lost)
    settle(pods, lost)
    until(lambda: pods.ready(lost, whole=True), what="its store is in sync")
    ended_well(pods, load)
    assert in_sync(pods, lost) == set(pods.pods)


def test_pods_that_all_died_at_once_find_each_other_at_other_addresses(
    pods: StatefulSet, load: subprocess.Popen[bytes]
) -> None:
    """What a client waits for meanwhile is done afterwards."""
    for pod in pods.pods.values():
        pods.end(pod, signal.SIGKILL)
    for pod in pods.pods.values():
        pods.start(pod)
    for pod in pods.pods.values():
        settle(pods, pod)
    ended_well(pods, load)
