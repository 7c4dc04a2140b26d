"""The cluster of a module, whole again for each of its tests, and three hosts whose links are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster.harness import Cluster, serving
from support.faults.faulty import LIFE_S
from support.faults.hosts import HostCluster
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread


@pytest.fixture
def healed(nodes: Cluster) -> Cluster:
    """The module's cluster, whole again."""
    nodes.heal()
    return nodes


@pytest.fixture(scope="module")
def counted() -> Iterator[ScriptedProvider]:
    """The provider of those hosts' accounts, of which there is one."""
    with provider_in_thread(1, LIFE_S) as made:
        yield made


@pytest.fixture(scope="module")
def hosts(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    counted: ScriptedProvider,
) -> Iterator[HostCluster]:
    """Three hosts with a store each, all in sync; skipped where no network can be cut."""
    made = HostCluster(tmp_path_factory.mktemp("hosts"), counted, synced=False, disks=False)
    if not made.network:
        made.close(show=False)
        pytest.skip(made.absent["network"])
    with serving(request, made):
        made.wait_whole()
        yield made
