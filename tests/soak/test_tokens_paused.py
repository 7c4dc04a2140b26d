"""
A node is stopped in the middle of refreshes, for longer than its intents last, at a server that
ends a grant on reuse.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import CLUSTER, Cluster, cluster, until
from support.cluster.refresh_stage import listed
from support.providers.provider_settings import section

pytestmark = pytest.mark.timeout(400)

ACCOUNTS = 12
TIMEOUT_S = 3.0  # A refresh's; its intent lasts ten seconds longer.
INTENT = struct.Struct(">II6s6s8sQ")
QUEUE = "_tokens:oidc:c0"


def holders(nodes: Cluster) -> dict[str, str]:
    """The holder of each open intent, by account."""
    with nodes.valkey.client() as store:
        rows = store.hgetall(f"{{{CLUSTER}:{QUEUE}:0}}:account_intents")
    return {account.decode(): raw[INTENT.size :].decode() for account, raw in rows.items()}


def test_a_node_that_is_stopped_for_longer_than_its_intents_costs_no_grant(
    request: pytest.FixtureRequest, oidc: Callable[..., Any], tmp_path: Path
) -> None:
    """
    The others ask it, wait while the old access tokens live, and it stores the answers when it
    wakes.
    """
    server = oidc(accounts=ACCOUNTS, life=600)
    extra = section("oidc", server, timeout_s=TIMEOUT_S, refreshers=3)
    with cluster(request, tmp_path / "nodes", extra=extra) as nodes:
        chosen = nodes.leader()
        server.fault("delay", delay_ms=1500)
        with chosen.client() as client:
            for account, token in server.seeds:
                fields = {"refresh_token": token, "access_token": "old", "expires_in": 600}
                client.execute_command("T.PUT", f"oidc/{account}", json.dumps(fields))
                client.execute_command("T.REFRESH", f"oidc/{account}")
        name = f"{chosen.name}."
        until(
            lambda: sum(holder.startswith(name) for holder in holders(nodes).values()) >= 2,
            what="it is busy",
        )
        chosen.freeze()
        held = {account for account, holder in holders(nodes).items() if holder.startswith(name)}
        server.fault()
        other = next(node for node in nodes.alive() if node is not chosen)

        def waiting() -> bool:
            rows = {row["account"].partition("/")[2]: row for row in listed(other).values()}
            return all(f"{chosen.name}." in rows[account]["message"] for account in held)

        until(waiting, 60, 0.5, what="the others wait for it")
        first = next(iter(listed(other).values()))
        print(f"{sorted(held)} wait for {chosen.name}: {first}")
        assert server.stats()["reuse"] == 0
        chosen.thaw()
        begun = time.monotonic()
        until(
            lambda: all(row["generation"] >= 2 for row in listed(other).values()),
            90,
            0.2,
            what="all are refreshed",
        )
        print(f"all are refreshed {time.monotonic() - begun:.1f} s after it woke")
    stats = server.stats()
    assert (stats["live"], stats["reuse"]) == (ACCOUNTS, 0)
