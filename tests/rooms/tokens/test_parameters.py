"""
Accounts with addresses of their own, on a real store: each is asked about at its own, and none
anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.inspect import idle_connections_of
from support.providers.scripted_provider import ScriptedProvider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config.load import Provider, Secret
from tidewarden.errors import BadArg
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.accounts.account_record import AccountDetails
from tidewarden.tokens.events import revocation

SEALING = (b"k" * 32, b"i" * 16, 1)
EVIL = "127.0.0.3"


@dataclass
class Hosts(ScriptedProvider):
    """One server on three addresses of this machine; the patterns mean two of them."""

    late: dict[str, asyncio.Event] = field(default_factory=dict)
    """Refresh tokens that are answered when that is set."""

    @property
    def got(self) -> list[tuple[str, str, dict[str, Any], Mapping[str, str]]]:
        """Host and path of each request, its form and its headers."""
        names = [headers["Host"].partition(":")[0] for headers in self.headers]
        return list(zip(names, self.paths, self.forms, self.headers, strict=True))

    def asked(self, path: str = "/token") -> list[tuple[str, str, str]]:
        return [
            (host, at, form.get("refresh_token") or form["token"])
            for host, at, form, _ in self.got
            if at.endswith(path)
        ]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/revoke"):
            await self._noted(request)
            return web.Response()
        answer = await super().handle(request)
        if event := self.late.get(str((await request.post()).get("refresh_token"))):
            await event.wait()
        return answer


@contextlib.asynccontextmanager
async def hosts() -> AsyncIterator[Hosts]:
    made = Hosts()
    app = web.Application()
    app.router.add_post("/{tail:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    for host in ("127.0.0.1", "127.0.0.2", EVIL):
        site = web.TCPSite(runner, host, made.port)
        await site.start()
        made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


def provider(there: Hosts, **settings: Any) -> Provider:
    base = f"http://{{host}}:{there.port}/{{tenant}}"
    patterns = {"host": r"127\.0\.0\.1|127\.0\.0\.2", "tenant": "[a-z0-9-]+"}
    chosen: dict[str, Any] = {
        "account_parameters": patterns, "plain_http": True, "extras": ("api_domain", "org.id"),
        "parameters": {"resource": "urn:{tenant}"}, "headers": {"X-Tenant": "{tenant}"}, "revocation_url": f"{base}/revoke",
    }  # fmt: skip
    return harness.provider(f"{base}/token", **(chosen | settings))


def grant(number: int, name: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "refresh_token": f"{name}.0",
        "parameters": {"host": f"127.0.0.{number}", "tenant": f"t{number}"},
    } | more


async def access_of(side: harness.Side, account: str = "p/a", **newer: int) -> str:
    return (await side.tokens.get(account, wait_ms=60_000, **newer)).access_token


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is revoked is revoked at once."""
    monkeypatch.setattr(revocation, "DELAY_MS", 50)


async def test_each_account_is_refreshed_at_its_own_address(valkey: Any, tmp_path: Path) -> None:
    async with (
        hosts() as there,
        harness.node(valkey, tmp_path, provider(there, on_delete="revoke")) as side,
    ):
        for number, name in ((1, "a"), (2, "b")):
            await side.tokens.put(f"p/{name}", grant(number, name))
            assert await access_of(side, f"p/{name}") == f"secret-access-{name}-1"
        assert there.asked() == [
            ("127.0.0.1", "/t1/token", "a.0"),
            ("127.0.0.2", "/t2/token", "b.0"),
        ]
        forms = [form["resource"] for *_, form, _ in there.got]
        headers = [headers["X-Tenant"] for *_, headers in there.got]
        assert (forms, headers) == (["urn:t1", "urn:t2"], ["t1", "t2"])
        assert (await side.tokens.peek("p/b"))["parameters"] == {
            "host": "127.0.0.2",
            "tenant": "t2",
        }
        idle = idle_connections_of(side.tokens, "p")
        assert not any(idle.values()), "nobody comes back to a host of one account soon"
        listed, _ = await side.tokens.list()
        assert [
            one["parameters"]["tenant"] for one in sorted(listed, key=lambda one: one["account"])
        ] == ["t1", "t2"]
        await side.tokens.delete("p/b")
        await eventually(lambda: there.asked("/revoke"))
        assert there.asked("/revoke") == [("127.0.0.2", "/t2/revoke", "b.1")]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (None, "parameters.host is missing; p allows 127"),
        ({"host": "127.0.0.1"}, "parameters.tenant is missing"),
        (
            {"host": EVIL, "tenant": "t"},
            "parameters.host is '127.0.0.3', which its pattern does not match; p allows",
        ),
        ({"host": "127.0.0.1", "tenant": "../x"}, "parameters.tenant is '../x'"),
        ({"host": "127.0.0.1@127.0.0.3", "tenant": "t"}, "parameters.host"),
    ],
)
async def test_a_grant_that_would_lead_elsewhere_is_not_put(
    valkey: Any, tmp_path: Path, parameters: Any, says: str
) -> None:
    async with hosts() as there, harness.node(valkey, tmp_path, provider(there)) as side:
        with pytest.raises(BadArg, match=says):
            await side.tokens.put("p/a", {"refresh_token": "a.0", "parameters": parameters})
        assert (await side.tokens.stats())["p"]["total"] == 0
        assert there.got == []


async def test_no_secret_goes_where_the_patterns_do_not_lead_whatever_the_store_says(
    valkey: Any, tmp_path: Path
) -> None:
    """As after somebody has written into the store, or the patterns were narrowed."""
    async with hosts() as there:
        chosen = provider(there)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await side.tokens.put("p/a", grant(1))
            queue = "_tokens:p:c0"
            key = (
                f"{prefix_of('t', queue, side.queues.catalog.shard_of(queue, 'a'))}:account_details"
            )
            valkey.client.hset(key, "a", AccountDetails({"host": EVIL, "tenant": "t"}).pack(1))
            side.go()
            failing = await harness.in_state(side, "failing")
            assert (failing["error"], there.got) == ("no_parameters", [])
            assert "parameters.host is '127.0.0.3'" in failing["message"]
            assert failing["advice"].startswith(
                "Put it with its parameters (token import, T.PUT): see account_parameters of [pro"
            )
        narrower = {"host": r"127\.0\.0\.2", "tenant": "[a-z0-9-]+"}
        async with harness.node(
            valkey, tmp_path, replace(chosen, account_parameters=narrower), boot=2
        ) as side:
            await side.tokens.put("p/b", grant(2, "b"))
            assert (await side.tokens.get("p/b", wait_ms=60_000)).generation == 2
            assert {host for host, *_ in there.got} == {"127.0.0.2"}


@pytest.mark.thorough
@pytest.mark.parametrize("kept_before", [False, True])
async def test_a_spare_of_another_tenant_is_never_sent_to_the_account_s_new_one(
    valkey: Any, tmp_path: Path, kept_before: bool
) -> None:
    """
    The first tenant's answer comes when the account is another's already, or lay there as a spare
    when it became that.
    """
    async with hosts() as there, harness.node(valkey, tmp_path, provider(there)) as side:
        there.late = {"a.0": asyncio.Event(), "b.0": asyncio.Event()}
        there.refused = {"c.0"}
        await side.tokens.put("p/a", grant(1))
        await eventually(lambda: there.asked())
        if kept_before:
            await side.tokens.put("p/a", grant(1, "b"))
            there.late["a.0"].set()
            await eventually(lambda: side.tokens.counts.spares)
        await side.tokens.put("p/a", grant(2, "c"))
        there.late["a.0"].set()
        there.late["b.0"].set()
        await harness.in_state(side, "failing", limit_s=20)
        assert {token for host, _, token in there.asked() if host == "127.0.0.2"} == {"c.0"}
        assert (await side.tokens.stats())["p"]["spares"] == 0


@pytest.mark.thorough
async def test_a_spare_of_the_same_tenant_is_kept(valkey: Any, tmp_path: Path) -> None:
    async with hosts() as there, harness.node(valkey, tmp_path, provider(there)) as side:
        there.late["a.0"] = asyncio.Event()
        there.refused = {"b.0"}
        await side.tokens.put("p/a", grant(1))
        await eventually(lambda: there.asked())
        await side.tokens.put("p/a", grant(1, "b"))
        there.late["a.0"].set()
        await eventually(lambda: ("127.0.0.1", "/t1/token", "a.1") in there.asked())


async def test_an_account_of_before_gets_its_parameters_by_the_put_of_its_token(
    valkey: Any, tmp_path: Path
) -> None:
    async with hosts() as there:
        first = provider(there, account_parameters={}, parameters={}, headers={}, revocation_url="")
        first = replace(first, token_url=f"http://127.0.0.1:{there.port}/t1/token")
        async with harness.node(valkey, tmp_path, first, go=False) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
        async with harness.node(valkey, tmp_path, provider(there), boot=2) as side:
            assert (await harness.in_state(side, "failing"))["error"] == "no_parameters"
            assert (await side.tokens.put_told("p/a", grant(2))).change == "same"
            assert await access_of(side) == "secret-access-a-1"
            assert there.asked() == [("127.0.0.2", "/t2/token", "a.0")]
            # An old file, whose token is not the account's any more, moves nothing.
            await side.tokens.put("p/a", grant(1))
            assert (await side.tokens.peek("p/a"))["parameters"]["tenant"] == "t2"


async def test_what_else_an_answer_says_is_kept_and_read_with_the_token(
    valkey: Any, tmp_path: Path
) -> None:
    async with (
        hosts() as there,
        harness.node(valkey, tmp_path, provider(there), forced_ms=1) as side,
    ):
        there.extra = {
            "api_domain": "https://eu.example",
            "org": {"id": 7},
            "other": "x",
            "refresh_token_expires_in": 86_400,
        }
        await side.tokens.put(
            "p/a",
            grant(
                1, extras={"api_domain": "https://first.example"}, access_token="x", expires_in=3600
            ),
        )
        assert (await side.tokens.get("p/a")).extras == {"api_domain": "https://first.example"}
        token = await side.tokens.get("p/a", newer=1, wait_ms=60_000)
        assert token.extras == {"api_domain": "https://eu.example", "org.id": 7}
        there.extra = {"api_domain": "https://us.example"}
        token = await side.tokens.get("p/a", newer=2, wait_ms=60_000)
        assert token.extras == {"api_domain": "https://us.example", "org.id": 7}
        shown = await side.tokens.peek("p/a")
        assert shown["extras"] == token.extras
        assert shown["consent_expires_ms"] == 0, "the refresh token that it was told of is used"


async def test_a_sealed_export_carries_all_that_is_known(valkey: Any, tmp_path: Path) -> None:
    async with hosts() as there:
        chosen = provider(there)
        there.extra = {"api_domain": "https://eu.example"}
        async with harness.node(valkey, tmp_path / "a", chosen) as side:
            await side.tokens.put("p/a", grant(2, consent_expires_ms=2**41))
            assert (await side.tokens.get("p/a", wait_ms=60_000)).generation == 2
            lines, _, unreadable = await side.tokens.custody.export(SEALING)
            assert unreadable == []
            known = ("parameters", "extras", "consent_expires_ms", "consent_moves")
            before = await side.tokens.peek("p/a")
        valkey.client.flushdb()
        async with harness.node(
            valkey, tmp_path / "b", replace(chosen, extras=("api_domain",)), go=False
        ) as side:
            assert await side.tokens.custody.import_sealed(SEALING, lines) == [1]
            after = await side.tokens.peek("p/a")
            assert {name: after[name] for name in known} == {name: before[name] for name in known}
            assert after["consent_expires_ms"] == 2**41


def own_clients(there: Hosts, **settings: Any) -> Provider:
    patterns = {"host": r"127\.0\.0\.1|127\.0\.0\.2", "tenant": "[a-z0-9-]+"}
    return replace(
        provider(there, client_id="app-{tenant}", account_parameters=patterns, **settings),
        account_secret=True, client_secret=Secret(),
    )  # fmt: skip


def shown(there: Hosts) -> list[str]:
    """By which client and secret each request proved itself."""
    return [
        b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
        for *_, headers in there.got
    ]


async def test_each_account_has_a_client_of_its_own(
    valkey: Any, tmp_path: Path, caplog: Any
) -> None:
    async with hosts() as there:
        chosen = own_clients(there, on_delete="revoke")
        async with harness.node(valkey, tmp_path, chosen, forced_ms=1) as side:
            put = side.tokens.put_told
            for number, name in ((1, "a"), (2, "b")):
                await put(f"p/{name}", grant(number, name, client_secret=f"hush-{name}"))
                assert await access_of(side, f"p/{name}") == f"secret-access-{name}-1"
            assert await access_of(side, newer=2) == "secret-access-a-2"
            assert shown(there) == ["app-t1:hush-a", "app-t2:hush-b", "app-t1:hush-a"]
            assert [token for *_, token in there.asked()] == ["a.0", "b.0", "a.1"]
            # An old file changes nothing, another secret takes the place of the account's.
            assert (await put("p/a", grant(1, client_secret="hush-c"))).change == "same"
            current = grant(1, client_secret="hush-c") | {"refresh_token": "a.2"}
            assert [(await put("p/a", current)).change for _ in range(2)] == ["renewed", "same"]
            assert await access_of(side) == "secret-access-a-3"
            await side.tokens.delete("p/a")
            await eventually(lambda: there.asked("/revoke"))
            assert there.asked("/revoke") == [("127.0.0.1", "/t1/revoke", "a.3")]
            assert shown(there)[-2:] == ["app-t1:hush-c", "app-t1:hush-c"]
            with pytest.raises(
                BadArg, match="client_secret is missing: each account of p has its own"
            ):
                await put("p/c", grant(1, "c"))
        everything = b"".join(
            b"".join(part for pair in valkey.client.hgetall(key).items() for part in pair)
            for key in valkey.client.keys("*") if valkey.client.type(key) == b"hash"
        )  # fmt: skip
        assert len(everything) > 100
        assert b"hush" not in everything
        assert "hush" not in caplog.text


async def test_a_sealed_export_carries_each_accounts_own_secret(
    valkey: Any, tmp_path: Path
) -> None:
    async with hosts() as there:
        chosen = own_clients(there)
        async with harness.node(valkey, tmp_path / "a", chosen) as side:
            await side.tokens.put("p/a", grant(1, client_secret="hush"))
            assert (await side.tokens.get("p/a", wait_ms=60_000)).generation == 2
            lines, _, unreadable = await side.tokens.custody.export(SEALING)
            assert unreadable == []
        valkey.client.flushdb()
        async with harness.node(valkey, tmp_path / "b", chosen) as side:
            assert await side.tokens.custody.import_sealed(SEALING, lines) == [1]
            assert await access_of(side, newer=1) == "secret-access-a-2"
            assert shown(there) == ["app-t1:hush", "app-t1:hush"]


async def test_nothing_is_sent_for_an_account_without_the_secret_that_it_needs(
    valkey: Any, tmp_path: Path
) -> None:
    async with hosts() as there:
        async with harness.node(
            valkey, tmp_path, provider(there, client_id="app-{tenant}"), go=False
        ) as side:
            await side.tokens.put("p/a", grant(1))
        async with harness.node(valkey, tmp_path, own_clients(there), boot=2) as side:
            failing = await harness.in_state(side, "failing")
            assert (failing["error"], there.got) == ("unfit", [])
            assert (
                await side.tokens.put_told("p/a", grant(1, client_secret="hush"))
            ).change == "renewed"
            assert await access_of(side) == "secret-access-a-1"
            assert shown(there) == ["app-t1:hush"]


async def test_an_application_of_each_account_needs_no_refresh_token(
    valkey: Any, tmp_path: Path
) -> None:
    async with hosts() as there:
        chosen = replace(own_clients(there), grant="client_credentials", rotation="none")
        async with harness.node(valkey, tmp_path, chosen) as side:
            fields = grant(1, client_secret="hush")
            del fields["refresh_token"]
            await side.tokens.put("p/a", fields)
            assert await access_of(side) == "at-client-1"
            assert shown(there) == ["app-t1:hush"]
