"""
How many connections a cluster of one, three and five nodes has, counted at the kernel and at the
store: each node's are the same however many others there are, but one to each other member.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cluster.harness import CALM, Cluster, Node, serving, until
from support.providers.scripted_provider import ScriptedProvider, provider_in_thread

pytestmark = pytest.mark.timeout(300)

ACCOUNTS, LIFE_S, MARGIN_S = 60, 5, 2.0
REFRESHERS = 4
RAFT = 2
"""Raft's port, from a node's base."""
ESTABLISHED = "01"
OF_A_NODE = {"data": 1, "control": 1, "sweep": 1, "accounts": 1, "ears": 1, "commit": 1}
"""
Its connections to the store, the last for what its tokens wait for; those of a further process are
in OF_A_FRONT.
"""
OF_A_FRONT = {"data": 1, "control": 1, "ears": 1}
TO_THE_PROVIDER_MAX = REFRESHERS + 4


class Asking(Cluster):
    """Nodes that refresh all the time."""

    def __init__(
        self, folder: Path, provider: ScriptedProvider, nodes: int, processes: int
    ) -> None:
        self._provider = provider
        super().__init__(folder, nodes=nodes, extra=CALM, node__processes=str(processes))

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        text = super().config_text(name, store_port, **changes)
        return (
            text
            + self._provider.toml(self._provider.port, MARGIN_S)
            + f"refreshers = {REFRESHERS}\n"
        )


@dataclass
class Scene:
    made: Asking
    provider: ScriptedProvider
    processes: int


@pytest.fixture(
    scope="module",
    params=[(1, 1), (3, 1), (5, 1), (1, 2)],
    ids=["one", "three", "five", "one of two processes"],
)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    nodes, processes = request.param
    with (
        provider_in_thread(ACCOUNTS, LIFE_S) as provider,
        serving(
            request, Asking(tmp_path_factory.mktemp("connections"), provider, nodes, processes)
        ) as made,
    ):
        for account, token in provider.seeds.items():
            made.nodes["n0"].say("T.PUT", f"counted/{account}", f'{{"refresh_token": "{token}"}}')
        yield Scene(made, provider, processes)


def sockets_of(node: Node) -> list[tuple[int, int]]:
    """The ports of its established TCP connections: here, there."""
    own = set()
    for name in os.listdir(f"/proc/{node.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{node.pid}/fd/{name}")
        except FileNotFoundError:  # closed a moment ago
            continue
        if found := re.fullmatch(r"socket:\[(\d+)\]", target):
            own.add(found[1])
    rows: list[tuple[int, int]] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{node.pid}/net/{table}").read_text().splitlines()[1:]:
            _, here, there, state, *rest = line.split()
            if state == ESTABLISHED and rest[5] in own:
                rows.append((int(here.rpartition(":")[2], 16), int(there.rpartition(":")[2], 16)))
    return rows


def to_the_store(made: Cluster) -> dict[str, Counter[str]]:
    """By process and by what they are for, as CLIENT LIST names them."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with made.valkey.client() as store:
        for one in store.client_list():
            if one["name"].startswith("tidewarden-"):
                process, _, purpose = one["name"].removeprefix("tidewarden-").rpartition("-")
                found[process][purpose] += 1
    return dict(found)


def test_a_process_has_so_many_to_the_store(scene: Scene) -> None:
    wanted = dict.fromkeys(scene.made.nodes, OF_A_NODE)
    wanted |= {
        f"{name}/{n}": OF_A_FRONT for name in scene.made.nodes for n in range(1, scene.processes)
    }
    # A node's commit is made when it first stores a pair.
    until(lambda: to_the_store(scene.made) == wanted, what=f"connections to the store are {wanted}")


def test_a_member_has_one_to_each_other_member(scene: Scene) -> None:
    doors = {base + RAFT for base in scene.made.members.values()}

    def peers(node: Node) -> int:
        return sum(here in doors or there in doors for here, there in sockets_of(node))

    def each() -> list[int]:
        return [peers(node) for node in scene.made.nodes.values()]

    others = len(doors) - 1
    until(lambda: each() == [others] * (others + 1), what=f"{others} a member")


def test_a_node_has_no_more_to_a_provider_than_it_refreshes_at_a_time(scene: Scene) -> None:
    scene.provider.hold = True
    try:
        with scene.made.nodes["n0"].client() as client, client.pipeline(transaction=False) as pipe:
            for account in scene.provider.seeds:
                pipe.execute_command("T.REFRESH", f"counted/{account}")
            pipe.execute()
        most = REFRESHERS * len(scene.made.nodes)
        until(lambda: scene.provider.held >= most, what=f"{most} requests are held")
        for node in scene.made.nodes.values():
            mine = sum(there == scene.provider.port for _, there in sockets_of(node))
            assert REFRESHERS <= mine <= TO_THE_PROVIDER_MAX
    finally:
        scene.provider.hold = False
