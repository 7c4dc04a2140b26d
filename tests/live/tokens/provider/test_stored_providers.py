"""A provider that is put at one of three nodes while they run, and a real authorization server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster.harness import ADMIN, cluster, until
from support.providers.authorization_servers import AuthorizationServer

LOOPBACK = '\n[tokens]\nput_networks = ["127.0.0.1"]\n'
"""The authorization server is on this machine."""
pytestmark = pytest.mark.timeout(400)


def test_put_at_one_node_refreshed_by_all_and_removed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    dot: Callable[..., AuthorizationServer],
) -> None:
    server = dot(accounts=6, life=600)
    settings = {
        "token_url": server.token_url,
        "client_id": server.client_id,
        "client_secret": server.client_secret,
        "margin_s": 60,
    }
    with cluster(request, tmp_path, nodes=3, extra=LOOPBACK) as made:
        one, two, three = made.nodes.values()

        def ask(node: Any, method: str, path: str, body: Any = None) -> httpx.Response:
            headers = {"Authorization": f"Bearer {ADMIN}:{made.secret}"}
            url = f"http://127.0.0.1:{node.base_port + 1}{path}"
            return httpx.request(
                method, url, headers=headers, json=body, timeout=60, trust_env=False
            )

        def knows(node: Any) -> bool:
            found = ask(node, "GET", "/v1/providers").json()["providers"]
            return [row["provider"] for row in found] == ["dot"]

        told = ask(one, "PUT", "/v1/providers/dot/settings", settings)
        assert told.status_code == 200, told.text
        assert told.json()["settings"] == settings | {"client_secret": "set"}
        for user, token in server.seeds:
            put = ask(one, "PUT", f"/v1/tokens/dot/{user}", {"refresh_token": token})
            assert put.status_code == 200, put.text
        until(lambda: knows(two) and knows(three), what="all nodes have it")
        for node in (two, three):
            for user, _ in server.seeds:
                found = ask(node, "GET", f"/v1/tokens/dot/{user}?wait=30").json()
                assert found["state"] == "fresh", found
            assert ask(node, "GET", "/v1/providers/dot/settings").json() == told.json()
        two.kill()
        made.heal()
        assert knows(two)
        assert ask(two, "POST", "/v1/tokens/dot/u0/refresh").status_code == 202
        found = ask(two, "GET", "/v1/tokens/dot/u0?newer=2&wait=30").json()
        assert found["generation"] == 3, found

        assert ask(three, "DELETE", "/v1/providers/dot/settings").json() == {"deleted": True}
        until(lambda: not knows(one) and not knows(two), what="none has it")
        for node in (one, two, three):
            gone = ask(node, "GET", "/v1/tokens/dot/u0")
            assert gone.status_code == 404
            assert "its accounts are kept, and not refreshed until" in gone.json()["message"]
        assert ask(one, "DELETE", "/v1/providers/dot/settings").status_code == 404
        told = ask(one, "PUT", "/v1/providers/dot/settings", settings)
        assert ask(one, "GET", "/v1/tokens/dot/u0").json()["generation"] == 3
        noted = json.dumps(ask(one, "GET", "/v1/audit").json())
        logs = "".join(log.read_text("utf-8") for log in tmp_path.rglob("*.log"))
        assert "P.PUT" in noted
        assert "provider dot: added while running" in logs
        assert server.client_secret not in noted + logs
