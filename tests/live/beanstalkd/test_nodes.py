"""The beanstalkd doors of a cluster's nodes, and what becomes of jobs when one is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import greenstalk
from support.cluster.harness import ADMIN, Cluster, cluster_of_module

DOOR = {"beanstalkd__enabled": "true"}


nodes = cluster_of_module(**DOOR)


@contextlib.contextmanager
def client(nodes: Cluster, name: str, tube: str) -> Iterator[greenstalk.Client]:
    """A stock client that has said who it is."""
    made = greenstalk.Client(("127.0.0.1", nodes.members[name] + 4), encoding=None)
    made._sock.sendall(f"auth {ADMIN} {nodes.secret}\r\n".encode())
    assert made._reader.readline() == b"OK\r\n"
    made.use(tube)
    made.watch(tube)
    made.ignore("default")
    try:
        yield made
    finally:
        made._reader.close()
        made._sock.close()


def test_a_job_of_a_node_that_dies_is_with_a_client_of_another(nodes: Cluster) -> None:
    with (
        client(nodes, "n0", "work") as here,
        client(nodes, "n1", "work") as there,
        client(nodes, "n2", "work") as third,
    ):
        numbers = [third.put(b"job %d" % n, priority=3 - n, ttr=3600) for n in range(3)]
        taken = [here.reserve(timeout=10), here.reserve(timeout=10)]
        assert [job.id for job in taken] == [numbers[2], numbers[1]]
        assert there.stats_job(numbers[2])["state"] == "reserved"
        nodes.nodes["n0"].kill()
        assert there.reserve(timeout=60).id == numbers[0]
        # a reserve that waits gets them as soon as the node is known to be dead
        again = [there.reserve(timeout=60), third.reserve(timeout=60)]
        assert {(job.id, job.body) for job in again} == {(job.id, job.body) for job in taken}
        tallies = [third.stats_job(job.id) for job in again]
        assert [(one["reserves"], one["timeouts"]) for one in tallies] == [(2, 0), (2, 0)]
        there.delete(again[0])
        third.delete(again[1])
        assert third.stats_tube("work")["current-jobs-reserved"] == 1
