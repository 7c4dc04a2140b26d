"""
What a refresh is watched on: authorization servers that count, a gateway before them, and nodes
that stop where they are told to.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import Node, closing, until
from support.cluster.mortal import MortalCluster
from support.providers.gateway import NEXT_SECRET, Gateway, gateway
from support.providers.provider_settings import section

from tidewarden.client.replies import mapped

KINDS = ("urgent", "patient")
"""
``urgent``: no access token that lives, so that nobody waits for another node. ``patient``: one that
does, for an hour.
"""
LIFE_S = 600
GRACE_S = 300
TIMEOUT_S = 6.0
# Instead of ten; two more where a silent node is asked: what is left then has to do for a request.
LEASE_SLACK_S = 4.5
ROLLED = "rolled"
"""A further provider at the last of the servers, whose client has two secrets."""

Dealt = tuple[str, str, str]
"""An account's step and kind, and its refresh token."""


class Servers:
    """
    The authorization servers of a scene, each account of which is used once. ``names``: which of
    grace, plain, oidc.
    """

    def __init__(self, request: pytest.FixtureRequest, names: Sequence[str], accounts: int) -> None:
        self.all: dict[str, Any] = {}
        for name in names:
            if name == "oidc":
                self.all[name] = request.getfixturevalue("oidc")(accounts=accounts, life=LIFE_S)
            else:
                grace_s = GRACE_S if name == "grace" else 0
                self.all[name] = request.getfixturevalue("dot")(
                    accounts=accounts, grace=grace_s, life=LIFE_S
                )
        self._used = 0

    def deal(self, steps: Sequence[str], kinds: Sequence[str] = KINDS) -> dict[str, Dealt]:
        """Fresh accounts, one of each kind for each step at each server."""
        dealt = {}
        begun = self._used
        self._used += len(steps) * len(kinds)
        for name, server in self.all.items():
            seeds = iter(server.seeds[begun : self._used])
            for step in steps:
                for kind in kinds:
                    account, token = next(seeds)
                    dealt[f"{name}/{account}"] = (step, kind, token)
        return dealt

    def stats(self, name: str = "") -> dict[str, Any]:
        """What a server counted; without a name: each of them."""
        return (
            self.all[name].stats()
            if name
            else {each: server.stats() for each, server in self.all.items()}
        )

    def toml(self, door: Gateway) -> str:
        known, text = {"timeout_s": TIMEOUT_S, "refreshers": 40}, ""
        for name, server in self.all.items():
            grace_s, url = GRACE_S if name == "grace" else 0, f"{door.url}/{name}/token"
            text += section(name, server, url, grace_s=grace_s, **known)
        return text + section(ROLLED, server, f"{url}?{ROLLED}", next_secret=NEXT_SECRET, **known)


def listed(node: Node, *words: str) -> dict[str, dict[str, Any]]:
    """T.LIST with these words, whole, by account."""
    found, cursor = {}, ""
    with node.client() as client:
        while True:
            after = ("AFTER", cursor) if cursor else ()
            rows, cursor = client.execute_command("T.LIST", "COUNT", 500, *words, *after)
            found |= {row["account"]: row for row in map(mapped, rows)}
            if not cursor:
                return found


def say_all(node: Node, commands: list[tuple[Any, ...]]) -> None:
    with node.client() as client:
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        pipeline.execute()


def put(node: Node, dealt: Mapping[str, Dealt]) -> None:
    """Every account, all of them due at once."""
    commands: list[tuple[Any, ...]] = []
    for account, (_, kind, token) in dealt.items():
        fields: dict[str, Any] = {"refresh_token": token}
        if kind == "patient":
            fields |= {"access_token": "old", "expires_in": 3600}
        commands += [("T.PUT", account, json.dumps(fields)), ("T.REFRESH", account)]
    say_all(node, commands)


@dataclass
class Stage:
    """Everything of one scene."""

    nodes: MortalCluster
    door: Gateway
    servers: Servers


@contextlib.contextmanager
def staged(
    request: pytest.FixtureRequest,
    folder: Path,
    names: Sequence[str],
    accounts: int,
    lease_slack_s: float = LEASE_SLACK_S,
    **options: Any,
) -> Iterator[Stage]:
    """
    Servers with so many accounts each, the gateway before them, and a cluster of which no node has
    started yet.
    """
    servers = Servers(request, names, accounts)
    with gateway(servers.all) as door:
        nodes = MortalCluster(folder, extra=servers.toml(door), **options)
        for node in nodes.nodes.values():
            node.lease_slack_s = lease_slack_s
        with closing(request, nodes):
            yield Stage(nodes, door, servers)


def settled(row: Mapping[str, Any]) -> bool:
    """Whether no more comes of it: it was refreshed, or refused."""
    refused = row["error"] == "invalid_grant" or row["state"] in ("dead", "lost_rotation")
    return refused or (row["generation"] >= 2 and row["state"] == "fresh")


def refresh_again(node: Node, accounts: Iterable[str], limit_s: float = 60) -> set[str]:
    """
    Have those that are fresh refreshed once more, which shows whether their grants live; those that
    were refused.

    A server that is too slow to answer shows nothing yet: it is asked again.
    """
    before = {
        account: row
        for account, row in listed(node).items()
        if account in accounts and row["state"] == "fresh"
    }
    say_all(node, [("T.REFRESH", account) for account in before])

    def tried() -> bool:
        rows = listed(node)
        return all(
            rows[account]["generation"] > row["generation"]
            or rows[account]["error"] not in ("", "unknown")
            or rows[account]["state"] in ("dead", "lost_rotation")
            for account, row in before.items()
        )

    until(tried, limit_s, 0.1, what="all that are fresh are refreshed once more")
    rows = listed(node)
    return {account for account in before if rows[account]["error"]}
