"""
The sandbox authorization server: rotation, reuse, grace, client authentication, faults, and its
memory.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import pytest
from support.manual_clock import ManualClock

from tidewarden.errors import BadArg, ConfigError
from tidewarden.sandbox.grants import CLIENT_ID, CLIENT_SECRET
from tidewarden.sandbox.server import PUBLIC_CLIENT_ID, Sandbox

FORM = "application/x-www-form-urlencoded"
Start = Callable[..., Awaitable["Client"]]


class Client:
    """Speaks to a sandbox as a client of its own would."""

    def __init__(self, sandbox: Sandbox, clock: ManualClock, http: aiohttp.ClientSession) -> None:
        self.sandbox, self.clock, self.http = sandbox, clock, http

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.sandbox.url + path, headers=headers) as answer:
            return (
                answer.status,
                await answer.json() if "json" in answer.content_type else await answer.text(),
            )

    async def token(self, form: dict[str, str], **headers: str) -> tuple[int, dict[str, Any]]:
        headers = headers or {
            "Authorization": basic(quote_plus(CLIENT_ID), quote_plus(CLIENT_SECRET))
        }
        async with self.http.post(self.sandbox.token_url, data=form, headers=headers) as answer:
            return answer.status, await answer.json()

    async def refresh(self, token: str) -> tuple[int, dict[str, Any]]:
        return await self.token({"grant_type": "refresh_token", "refresh_token": token})

    async def seed(self, query: str = "n=1") -> list[list[str]]:
        _, text = await self.get(f"/seed?{query}")
        return [line.split("\t") for line in text.splitlines()]


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a sandbox on a folder of this test; starting again stops the one before."""
    clock = ManualClock()
    clients: list[Client] = []

    async def stop() -> None:
        client = clients.pop()
        await client.http.close()
        await client.sandbox.stop()

    async def starter(**options: Any) -> Client:
        if clients:
            await stop()
        sandbox = Sandbox(tmp_path / "sandbox", clock, **options)
        await sandbox.start()
        clients.append(Client(sandbox, clock, aiohttp.ClientSession()))
        return clients[-1]

    yield starter
    if clients:
        await stop()


async def test_seeds_are_a_table_that_token_import_takes(start: Start) -> None:
    client = await start(life_s=100)
    header, first, second = await client.seed("n=2")
    assert header == ["account", "refresh_token", "access_token", "expires_at_ms"]
    assert (first[0], second[0]) == ("user-000000", "user-000001")
    left_s = (int(first[3]) - client.clock.unix_ms()) / 1000
    assert 25 <= left_s <= 100
    assert await client.seed("n=2") == [header, first, second]
    assert [row[0] for row in await client.seed("n=3&from=2")] == ["account", "user-000002"]
    assert (await client.seed("n=3&access=0"))[0] == ["account", "refresh_token"]


async def test_a_refresh_rotates_and_the_access_token_lives_briefly(start: Start) -> None:
    client = await start(life_s=60)
    seed = (await client.seed())[1]
    status, pair = await client.refresh(seed[1])
    assert status == 200
    assert (pair["token_type"], pair["expires_in"], pair["scope"]) == ("Bearer", 60, "files mail")
    assert pair["refresh_token"] != seed[1]
    bearer = f"Bearer {pair['access_token']}"
    assert await client.get("/me", Authorization=bearer) == (200, {"account": "user-000000"})
    await client.clock.advance(61)
    assert (await client.get("/me", Authorization=bearer))[0] == 401
    assert (await client.refresh(pair["refresh_token"]))[0] == 200


async def test_a_reuse_revokes_the_grant_and_is_counted(start: Start) -> None:
    client = await start()
    seed = (await client.seed("n=2"))[1]
    _, pair = await client.refresh(seed[1])
    status, answer = await client.refresh(seed[1])
    assert (status, answer["error"]) == (400, "invalid_grant")
    assert (await client.refresh(pair["refresh_token"]))[1]["error"] == "invalid_grant"
    assert (await client.get("/me", Authorization=f"Bearer {pair['access_token']}"))[0] == 401
    _, stats = await client.get("/stats?grants=1")
    assert stats["accounts"] == {
        "user-000000": {"generation": 1, "revoked": True, "presented_again": {"0": 2}},
        "user-000001": {"generation": 0, "revoked": False, "presented_again": {}},
    }
    totals = {
        name: stats[name]
        for name in ("refreshes", "reuse_attempts", "live_grants", "revoked_grants", "grants")
    }
    assert totals == {
        "refreshes": 1,
        "reuse_attempts": 1,
        "live_grants": 1,
        "revoked_grants": 1,
        "grants": 2,
    }
    assert [row[0] for row in (await client.seed("n=2"))[1:]] == ["user-000001"]


async def test_within_grace_the_last_used_token_gets_its_successor_again(start: Start) -> None:
    client = await start(grace_s=10)
    seed = (await client.seed())[1]
    _, pair = await client.refresh(seed[1])
    status, again = await client.refresh(seed[1])
    assert (status, again["refresh_token"]) == (200, pair["refresh_token"])
    _, stats = await client.get("/stats")
    assert (stats["refreshes"], stats["reuse_attempts"], stats["reuse_graced"]) == (1, 1, 1)
    await client.refresh(pair["refresh_token"])
    assert (await client.refresh(seed[1]))[0] == 400


async def test_grace_ends(start: Start) -> None:
    client = await start(grace_s=10)
    seed = (await client.seed())[1]
    await client.refresh(seed[1])
    await client.clock.advance(10)
    assert (await client.refresh(seed[1]))[0] == 400


@pytest.mark.parametrize("options", [{}, {"grace_s": 30.0}])
async def test_a_restart_forgets_nothing(
    start: Start, options: dict[str, float], tmp_path: Path
) -> None:
    client = await start(**options)
    _, first, second, third = await client.seed("n=3")
    _, pair = await client.refresh(first[1])
    await client.refresh(second[1])
    await client.refresh(second[1])
    _, before = await client.get("/stats?grants=1")
    for _ in range(2):  # the second time it reads what the first has rewritten
        with open(tmp_path / "sandbox" / "grants.log", "a") as log:
            log.write("r 2 1")  # cut short by a kill: was not answered for
        client = await start(**options)
        _, after = await client.get("/stats?grants=1")
        assert {**after, "requests": 0} == {**before, "requests": 0}
    assert (await client.refresh(pair["refresh_token"]))[0] == 200
    assert (await client.refresh(third[1]))[0] == 200
    assert ((await client.refresh(second[1]))[0] == 200) == bool(options)


async def test_clients_authenticate_as_the_rfc_says(start: Start) -> None:
    client = await start()
    token = (await client.seed())[1][1]
    form = {"grant_type": "refresh_token", "refresh_token": token}

    async def once(extra: dict[str, str], header: str = "") -> int:
        nonlocal token
        headers = {"Authorization": header} if header else {"X-None": "1"}
        status, answer = await client.token({**form, "refresh_token": token, **extra}, **headers)
        token = answer.get("refresh_token", token)
        return status

    encoded = basic(quote_plus(CLIENT_ID), quote_plus(CLIENT_SECRET))
    assert await once({}, encoded) == 200
    assert await once({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}) == 200
    assert await once({"client_id": PUBLIC_CLIENT_ID}) == 200
    assert await once({}, basic(CLIENT_ID, CLIENT_SECRET)) == 401
    assert await once({}, "Basic %%%") == 401
    assert await once({}, "Bearer x") == 401
    assert await once({}) == 401
    assert await once({"client_id": CLIENT_ID}) == 401
    assert await once({"client_id": "stranger", "client_secret": CLIENT_SECRET}) == 401
    assert await once({"client_secret": CLIENT_SECRET}, encoded) == 400
    assert await once({}, encoded) == 200


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "invalid_request"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "refresh_token"}, "invalid_request"),
        ({"grant_type": "refresh_token", "refresh_token": "x"}, "invalid_grant"),
        (
            {"grant_type": "refresh_token", "refresh_token": "sandbox-refresh.0.0.0.forged"},
            "invalid_grant",
        ),
        (
            {"grant_type": "refresh_token", "refresh_token": "sandbox-refresh.9.0.0.x"},
            "invalid_grant",
        ),
        ({"grant_type": "refresh_token", "refresh_token": "é.0.0.0.é"}, "invalid_grant"),
        (
            {"grant_type": "refresh_token", "refresh_token": "x", "scope": "everything"},
            "invalid_scope",
        ),
    ],
)
async def test_wrong_requests_get_the_word_of_the_rfc(
    start: Start, form: dict[str, str], error: str
) -> None:
    client = await start()
    await client.seed()
    status, answer = await client.token(form)
    assert (status, answer["error"]) == (400, error)


async def test_a_body_of_another_kind_and_a_doubled_parameter_are_refused(start: Start) -> None:
    client = await start()
    for body, kind in [("{}", "application/json"), ("grant_type=a&grant_type=b", FORM)]:
        async with client.http.post(
            client.sandbox.token_url, data=body, headers={"Content-Type": kind}
        ) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"] == "invalid_request"


async def test_an_access_token_is_no_refresh_token(start: Start) -> None:
    client = await start()
    _, _, access, _ = (await client.seed())[1]
    assert (await client.refresh(access))[1]["error"] == "invalid_grant"


async def test_a_narrower_scope_is_given(start: Start) -> None:
    client = await start()
    token = (await client.seed())[1][1]
    status, pair = await client.token(
        {"grant_type": "refresh_token", "refresh_token": token, "scope": "mail"}
    )
    assert (status, pair["scope"]) == (200, "mail")


async def test_faults_come_with_every_nth_request_and_use_nothing_up(start: Start) -> None:
    client = await start()
    token = (await client.seed())[1][1]
    assert (await client.get("/fault?status=503&retry_after=2&every=2&body=busy"))[0] == 200
    seen = []
    for _ in range(4):
        form = {
            "grant_type": "refresh_token",
            "refresh_token": token,
            "client_id": PUBLIC_CLIENT_ID,
        }
        async with client.http.post(client.sandbox.token_url, data=form) as answer:
            seen.append((answer.status, answer.headers.get("Retry-After")))
            if answer.status == 200:
                token = (await answer.json())["refresh_token"]
            else:
                assert await answer.text() == "busy"
    assert seen == [(200, None), (503, "2"), (200, None), (503, "2")]
    await client.get("/fault")
    assert (await client.refresh(token))[0] == 200


async def test_a_dropped_answer_has_been_processed(start: Start) -> None:
    client = await start()
    token = (await client.seed())[1][1]
    await client.get("/fault?drop_after=1")
    with pytest.raises(aiohttp.ClientError):
        await client.refresh(token)
    await client.get("/fault")
    assert (await client.refresh(token))[1]["error"] == "invalid_grant"
    assert (await client.get("/stats"))[1]["refreshes"] == 1


async def test_a_delay_runs_on_the_clock(start: Start) -> None:
    client = await start()
    token = (await client.seed())[1][1]
    await client.get("/fault?delay_ms=5000")
    refreshing = asyncio.create_task(client.refresh(token))
    while (await client.get("/stats"))[1]["requests"] == 0:
        pass
    assert not refreshing.done()
    while not refreshing.done():
        await client.clock.advance(5)
    assert (await refreshing)[0] == 200


@pytest.mark.parametrize(
    "query", ["status=99", "status=x", "delay_ms=-1", "every=0", "drop_after=2", "stats=503"]
)
async def test_a_wrong_fault_is_refused(start: Start, query: str) -> None:
    client = await start()
    assert (await client.get(f"/fault?{query}"))[0] == 400


@pytest.mark.parametrize(
    "query", ["n=x", "n=-1", "n=99999999999999999999999", "from=x", "access=2"]
)
async def test_a_wrong_seed_is_refused(start: Start, query: str) -> None:
    client = await start()
    assert (await client.get(f"/seed?{query}"))[0] == 400


async def test_it_says_what_it_is(start: Start) -> None:
    client = await start()
    assert "never for real accounts" in (await client.get("/"))[1]


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ManualClock())
    try:
        with pytest.raises(BadArg, match="loopback only"):
            await sandbox.start("0.0.0.0")
    finally:
        await sandbox.stop()


async def test_a_second_sandbox_on_its_folder_is_refused(start: Start, tmp_path: Path) -> None:
    await start()
    with pytest.raises(ConfigError, match="another sandbox uses this folder"):
        Sandbox(tmp_path / "sandbox", ManualClock())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used by the sandbox"):
        Sandbox(tmp_path / "file" / "below", ManualClock())
