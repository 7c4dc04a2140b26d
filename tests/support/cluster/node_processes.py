"""A node of several processes, and connections to each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster.harness import Cluster, Node, serving, until

PROCESSES = 3
EACH_MIN = 2  # connections in every process
STILL_S = 1.5


@contextlib.contextmanager
def serving_processes(
    request: pytest.FixtureRequest, folder: Path, nodes: int = 1
) -> Iterator[Cluster]:
    """A cluster that serves, whose first node has so many processes."""
    made = Cluster(folder, nodes=nodes)
    made.nodes["n0"].config.write_text(made.config_text("n0", node__processes=str(PROCESSES)))
    with serving(request, made):
        yield made


def processes(node: Node) -> list[dict[str, Any]]:
    """The further processes, as the node's status shows them."""
    shown = node.http("/v1/status").json()["processes"]
    assert isinstance(shown, list)
    return shown


def still_counts(node: Node) -> dict[int, int]:
    """
    The connections of each process, once they have stayed as they are: they are told a second late.
    """
    last: dict[int, int] = {}
    since = time.monotonic()

    def still() -> bool:
        nonlocal last, since
        counts = {process["pid"]: process["connections"] for process in processes(node)}
        if counts != last:
            last, since = counts, time.monotonic()
        return len(counts) == PROCESSES - 1 and time.monotonic() - since > STILL_S

    until(still, what="the processes' counts stay as they are")
    return last


@contextlib.contextmanager
def everywhere(node: Node, **options: Any) -> Iterator[list[redis.Redis]]:
    """Connections, some of them in each process."""
    with contextlib.ExitStack() as stack:
        clients: list[redis.Redis] = []

        before = still_counts(node)

        def spread() -> bool:
            for _ in range(8):
                clients.append(stack.enter_context(node.client(**options)))
                clients[-1].ping()
            more = [
                process["connections"] - before.get(process["pid"], 0)
                for process in processes(node)
            ]
            return len(more) == PROCESSES - 1 and min(more) >= EACH_MIN

        until(spread, what="connections in every process")
        yield clients
