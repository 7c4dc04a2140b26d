"""Processes that stand still for a moment end no node, and all is whole again by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import Node
from support.cluster.several import serving_nodes
from support.faults.stalls import stalled

pytestmark = pytest.mark.timeout(600)

STALLS = 10


@pytest.fixture
def made(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path) as found:
        yield found


def test_stalls_of_nodes_and_stores_end_nothing(made: dict[str, Node]) -> None:
    """``make soak`` has hundreds of them."""
    print(stalled(made, STALLS, 7, print).table())
