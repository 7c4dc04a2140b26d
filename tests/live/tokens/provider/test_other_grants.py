"""
Accounts without refresh tokens at authorization servers that none of us wrote: over several lives,
through a refused client, lost answers, and the death of a node whose request is under way.

Clients' own credentials at oidc-provider, assertions at Authlib, exchanged tokens at
@jmondi/oauth2-server.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.providers.certificate import make
from support.providers.provider_settings import provider_of
from support.providers.scripted_provider import scripted_provider
from support.tokens import dying_node, harness
from support.tokens.harness import eventually, in_state

from tidewarden.config.load import Provider, Secret
from tidewarden.tokens.refresh import refresher as refresher_module

pytestmark = pytest.mark.timeout(400)  # the first run may have to install what serves

LIFE_S = 4
LIVES = 3
ACCOUNTS = 50


def section(server: Any, grant: str, **settings: Any) -> Provider:
    return provider_of(server, grant=grant, **({"rotation": "none"} | settings))


async def generations(side: harness.Side) -> dict[str, int]:
    """By account, of all pages."""
    found, after = {}, ""
    while True:
        page, after = await side.tokens.list(count=100, after=after)
        found |= {one["account"]: one["generation"] for one in page}
        if not after:
            return found


def post(server: Any, page: str, body: dict[str, Any]) -> None:
    httpx.post(f"{server.base}/admin/{page}", json=body, trust_env=False).raise_for_status()


@pytest.mark.usefixtures("short_lives")
async def test_fifty_clients_scopes_are_kept_fresh_over_several_lives(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    server = oidc(accounts=ACCOUNTS, life=LIFE_S, GRANT="client_credentials")
    names = {f"p/a{number}" for number in range(ACCOUNTS)}
    async with harness.node(valkey, tmp_path, section(server, "client_credentials")) as side:
        for number in range(ACCOUNTS):
            await side.tokens.put(f"p/a{number}", {"scope": f"s{number}"})

        async def lived() -> bool:
            # The put is the first generation, each answer a further one.
            found = await generations(side)
            return set(found) == names and min(found.values()) > LIVES

        await eventually(lived, 200)
        server.fault("drop", times=20)
        before = server.stats()["faults"]
        await eventually(lambda: server.stats()["faults"] >= before + 20, 200)
        server.fault()
        for name in sorted(names):
            token = await side.tokens.get(name, wait_ms=60_000)
            assert token.scope == f"s{name.removeprefix('p/a')}"
        stats = (await side.tokens.stats())["p"]
        assert (stats["dead"], stats["lost_rotation"], stats["spares"]) == (0, 0, 0)
    told = server.stats()
    assert set(told["scopes"]) == {f"s{number}" for number in range(ACCOUNTS)}
    assert set(told["answers"]) == {"200"}


async def test_an_assertion_is_taken_by_a_server_that_checks_it(
    authlib: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    _, key = make(tmp_path)
    server = authlib(key)
    post(server, "gone", {"subjects": ["eve@x"]})
    provider = section(
        server, "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=key
    )
    async with harness.node(valkey, tmp_path, provider, confirm_s=600, forced_ms=1) as side:
        # The first answer, which is hers, is lost: it is asked again by a new assertion.
        post(server, "fault", {"times": 1})
        await side.tokens.put("p/ann@x", {"scope": "s1"})
        await eventually(lambda: "ann@x" in server.stats()["answers"])
        for name in ("bob@x", "eve@x"):
            await side.tokens.put(f"p/{name}", {"scope": "s1"})
        for name in ("ann@x", "bob@x"):
            await in_state(side, "fresh", f"p/{name}")
            assert (await side.tokens.get(f"p/{name}")).scope == "s1"
        failing = await in_state(side, "failing", "p/eve@x")
        assert failing["error"] == "invalid_grant"
        post(server, "gone", {"subjects": []})
        await side.tokens.refresh("p/eve@x")
        await in_state(side, "fresh", "p/eve@x")
    stats = server.stats()
    assert stats["reused"] == 0
    assert stats["answers"]["ann@x"]["200"] >= 2
    assert stats["answers"]["eve@x"] == {"400 invalid_grant": 1, "200": 1}


async def test_a_key_that_the_server_does_not_know_is_refused(
    authlib: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    _, key = make(tmp_path)
    _, other = make(tmp_path, "other")
    provider = section(
        authlib(key), "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=other
    )
    async with harness.node(valkey, tmp_path, provider, confirm_s=60) as side:
        await side.tokens.put("p/ann@x", {"scope": "s1"})
        assert (await in_state(side, "failing", "p/ann@x"))["error"] == "invalid_grant"


async def test_a_refused_client_kills_nobody_and_all_go_on_when_it_is_back(
    authlib: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    _, key = make(tmp_path)
    server = authlib(key, life=3600)
    post(server, "gone", {"client": True})
    names = [f"p/a{number}" for number in range(20)]
    async with harness.node(valkey, tmp_path, section(server, "client_credentials")) as side:
        for number, name in enumerate(names):
            await side.tokens.put(name, {"scope": f"s{number}"})

        async def refused() -> bool:
            return bool((await side.tokens.stats())["p"]["state"] == "refusing")

        await eventually(refused)
        post(server, "gone", {"client": False})
        for name in names:
            await in_state(side, "fresh", name, 200)
        stats = (await side.tokens.stats())["p"]
        assert (stats["dead"], stats["stopped"]) == (0, 0)
    answers = server.stats()["answers"]
    assert all(counts["200"] == 1 for counts in answers.values())
    assert sum(counts.get("401 invalid_client", 0) for counts in answers.values()) <= 2 * len(names)


@pytest.mark.usefixtures("short_lives")
async def test_each_account_exchanges_its_own_token(
    exchanging: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    server = exchanging(LIFE_S)
    more = {
        "audience": "https://api.example",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    provider = section(server, "token_exchange", subject_token_type="jwt", parameters=more)
    async with harness.node(valkey, tmp_path, provider, confirm_s=60) as side:
        for name in ("ann", "bob"):
            await side.tokens.put(f"p/{name}", {"subject_token": f"sub-{name}", "scope": "s1 s2"})
        await side.tokens.put("p/eve", {"subject_token": "stolen"})

        async def lived() -> bool:
            found = await generations(side)
            return min(found["p/ann"], found["p/bob"]) > LIVES

        await eventually(lived, 200)
        assert (await side.tokens.get("p/ann", wait_ms=60_000)).scope == "s1 s2"
        assert (await in_state(side, "failing", "p/eve"))["error"] == "invalid_grant"
    stats = server.stats()
    assert set(stats["answers"]) == {"sub-ann", "sub-bob", "stolen"}
    assert stats["last"].items() >= more.items()


async def test_a_node_that_is_killed_mid_request_costs_nobody_a_grant(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whoever finds its intent open asks again as soon as the lease is over: a repeat does no harm,
    and nothing is doubted.
    """
    monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 3.5)
    async with scripted_provider(hold=True) as endpoint:
        settings = {"grant": "client_credentials", "rotation": "none", "timeout_s": 2.0}
        arguments = ("nowhere", valkey.path, tmp_path / "dying", endpoint.url, settings)
        (tmp_path / "dying").mkdir()
        process = multiprocessing.get_context("spawn").Process(
            target=dying_node.play, args=arguments
        )
        process.start()
        try:
            secrets = tmp_path / "dying" / "secrets"
            await eventually(lambda: (secrets / "vault.key").exists(), 120)
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "secrets").symlink_to(secrets)
            chosen = harness.provider(endpoint.url, **settings)
            async with harness.node(valkey, tmp_path / "other", chosen, "n2", go=False) as side:
                await side.tokens.put("p/a", {"scope": "s1"})
                await eventually(lambda: endpoint.held, 120)
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join(60)
                endpoint.hold = False
                endpoint.let_go()
                side.go()
                entry = await in_state(side, "fresh", limit_s=120)
                assert entry["generation"] == 2
                assert (await side.tokens.get("p/a")).access_token == "at-s1-2", (
                    "the first answer went with the node"
                )
                stats = (await side.tokens.stats())["p"]
                assert (stats["dead"], stats["lost_rotation"], stats["intents"]) == (0, 0, 0)
            assert endpoint.requests == {"s1": 2}
        finally:
            process.kill()
            process.join(60)
