"""The cluster of a module, whole again for each of its tests."""

from __future__ import annotations

import pytest
from support.cluster.harness import Cluster


@pytest.fixture
def healed(nodes: Cluster) -> Cluster:
    """The module's cluster, whole again."""
    nodes.heal()
    return nodes
