"""
Hundreds of moments in which a process of a cluster stands still.

    STALLS=200 SOAK_SEED=1 pytest -q -s -m soak tests/soak/test_stalls.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import Node
from support.cluster.node_processes import PROCESSES
from support.cluster.several import serving_nodes
from support.faults.stalls import stalled

pytestmark = pytest.mark.timeout(3600)

STALLS = int(os.environ.get("STALLS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "1"))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path, PROCESSES) as found:
        yield found


def test_many_stalls_of_nodes_and_stores_end_nothing(made: dict[str, Node]) -> None:
    print(stalled(made, STALLS, SEED, lambda text: None).table())
