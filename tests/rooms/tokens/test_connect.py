"""
A consent in a browser, from the link to the account, at real nodes' HTTP ports; and whoever would
rather have another's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from aiohttp import web
from support.doors.http_app import serving_app
from support.doors.http_store import bearer
from support.inspect import accounts_of, journal_of, vault_of
from support.providers.consenting_provider import (
    ConsentingProvider,
    consenting_provider,
    query_of,
)
from support.providers.scripted_provider import answers, cut
from support.tokens import harness
from support.tokens.consents import APP, PUBLIC, QUEUE, SETTINGS, held_answer, place

from tidewarden.config.load import Config, Connect, Secret
from tidewarden.errors import BadArg, StoreDown
from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step
from tidewarden.tokens.connect import claims, connecting, given_grants, sealed_visits
from tidewarden.tokens.custody import stored_providers

TWO_SECRETS = {"client_secret": Secret("old-secret"), "next_secret": Secret("cl-secret")}


@pytest.fixture
async def there() -> AsyncIterator[ConsentingProvider]:
    async with consenting_provider() as made:
        yield made


async def test_a_consent_becomes_an_account(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with place(valkey, tmp_path, there, connect=replace(SETTINGS, link_s=60)) as made:
        asked = {"return_to": f"{APP}?user=7", "scope": "read write"}
        path = "/v1/tokens/p/ada@example.com%2F7/connect"
        (door,) = made.doors
        link = await door.good("POST", path, asked, headers=bearer())
        left_s = (link["until_ms"] - time.time() * 1000) / 1000
        assert 0 < left_s <= 60
        browser = made.browser()
        status, location = await browser.open(link["url"])
        assert status == 302
        sent = query_of(location)
        assert sent["redirect_uri"] == f"{PUBLIC}/v1/connect/callback"
        assert (sent["response_type"], sent["client_id"]) == ("code", "c0")
        assert (sent["scope"], sent["code_challenge_method"]) == ("read write", "S256")
        assert len(sent["state"]) == 32
        assert "nonce" not in sent
        (name,) = browser.cookies
        assert name == f"__Secure-tidewarden-connect-{sent['state'][:16]}"
        assert browser.attributes.pop("expires", None) is None
        assert browser.attributes == {
            "path": "/v1/connect",
            "max-age": "900",
            "secure": True,
            "httponly": True,
            "samesite": "Lax",
        }
        assert browser.headers["Referrer-Policy"] == "no-referrer"
        assert browser.headers["Cache-Control"] == "no-store"
        back = there.sign_in(location)
        status, location = await browser.open(back)
        assert (status, location.partition("&")[0]) == (302, f"{APP}?user=7")
        told = query_of(location)
        assert told == {"user": "7", "result": "connected", "account": "p/ada@example.com/7"}
        assert browser.cookies == {}
        token = await made.tokens.get("p/ada@example.com/7")
        assert (token.access_token, token.scope) == ("at-ada-1", "read write")
        assert [kind for kind, _ in await made.events()] == ["account.connected"]
        (_, data) = (await made.events())[0]
        assert (data["account"], data["change"]) == ("p/ada@example.com/7", "new")
        assert data["scope"] == "read write"
        assert made.noted[-1] == ("admin", "T.CONNECT", "p/ada@example.com/7", "connected")
        assert journal_of(made.tokens).consents() == []
        code = query_of(back)["code"]
        hidden = (code, str(there.forms[0]["code_verifier"]), "rt-ada-1", "at-ada-1")
        assert not [one for one in hidden if one in caplog.text]


async def test_any_node_answers_each_step(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, "n0", "n1", "n2") as made:
        for _ in range(3):  # each step at another one
            assert (await made.consent())["result"] == "connected"
        assert [form["grant_type"] for form in there.forms] == ["authorization_code"] * 3
        assert (await made.row()).grant == 3


async def test_without_a_return_address_a_page_says_how_it_ended(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link(return_to=""))
        status, page = await browser.open(back)
        assert (status, "The account is connected" in page) == (200, True)
        policy = browser.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert browser.headers["X-Frame-Options"] == "DENY"
        assert "<script" not in page


async def test_the_same_link_way_mends_a_dead_account(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, go=False) as made:
        await made.tokens.put("p/ada", {"refresh_token": "old"})
        store, queue, queues = accounts_of(made.tokens), QUEUE, made.sides[0].queues
        shard = queues.catalog.shard_of(queue, "ada")
        found = await queues.scripts.run("queue.take", queue, shard, (200, 1, 60_000, 0, "ada"))
        lease = found[0][0][1]
        dead = Step("dead", 0, RefreshTroubles(refusals=3, dead=True), event="account.dead")
        await store.intend(queue, "ada", lease, 60_000)
        assert await store.failed(queue, "ada", lease, dead)
        assert (await made.tokens.peek("p/ada"))["state"] == "dead"
        made.sides[0].go()
        assert (await made.consent())["result"] == "connected"
        assert (await made.tokens.peek("p/ada"))["state"] == "fresh"
        kinds = [(kind, data.get("change")) for kind, data in await made.events()]
        assert kinds[0] == ("account.dead", None)
        assert {*kinds[1:]} == {("account.recovered", None), ("account.connected", "renewed")}


async def test_nobody_sees_whose_account_it_is(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        assert (await made.consent("p/ada@example.com"))["result"] == "connected"
        await made.browser().open(f"{PUBLIC}/v1/connect/p/eve@example.com?link=x")
        tables = made.traffic.harvest()
        keys = [key for entries in tables.by.values() for key, *_ in entries.entries()]
        assert ("T.CONNECT",) in keys
        assert "example.com" not in str(keys)


# --- hostile callbacks


async def test_a_state_that_is_forged_leads_nowhere(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        real = query_of(back)["state"]
        for state in (
            "A" * 32,
            real[:16] + "A" * 16,  # the cookie is found, and sealed for another
            real[:-1] + ("A" if real[-1] != "A" else "B"),
            real.lower(),
            "",
        ):
            status, page = await browser.open(back.replace(real, state))
            assert (status, "not begun in this browser" in page) == (400, True), state
        assert there.forms == []
        assert await made.row() is None
        assert (await made.told(browser, back))["result"] == "connected"


async def test_a_cookie_that_was_changed_or_made_up_counts_as_none(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        ((name, real),) = browser.cookies.items()
        middle = len(real) // 2
        other = "A" if real[middle] != "A" else "B"
        for value in (real[:middle] + other + real[middle + 1 :], real[:-3], "x", "", real * 9):
            browser.cookies[name] = value
            status, _ = await browser.open(back)
            assert status == 400
        assert there.forms == []


async def test_a_callback_that_comes_twice_sends_no_code_twice(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        kept = dict(browser.cookies)
        assert (await made.told(browser, back))["result"] == "connected"
        status, _ = await browser.open(back)
        assert status == 400, "the browser has forgotten it"
        for _ in range(4):  # the answer was lost on its way: the browser has the cookie still
            browser.cookies = dict(kept)
            assert (await made.told(browser, back))["result"] == "connected"
        browser.cookies = dict(kept)
        other = back.replace(query_of(back)["code"], "another")
        assert (await made.told(browser, other))["result"] == "connected"
        assert len(there.forms) == 1
        assert (await made.row()).grant == 1
        assert len(made.noted) == 1
        assert len(await made.events()) == 1


async def test_many_callbacks_at_once_send_one_code(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        first = made.browser()
        back = await made.left(first, await made.link())
        browsers = [made.browser() for _ in range(8)]
        for one in browsers:
            one.cookies = dict(first.cookies)
        results = await asyncio.gather(*(made.told(one, back) for one in browsers))
        ended = {one.get("error", one["result"]) for one in results}
        assert "connected" in ended
        assert ended <= {"connected", "pending"}
        assert len(there.forms) == 1


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_page_that_is_loaded_again_too_early_is_not_told_that_it_failed(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, nodes: int
) -> None:
    held = held_answer(there)
    async with place(valkey, tmp_path, there, *("n0", "n1")[:nodes]) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        asking = asyncio.create_task(made.told(browser, back))
        await harness.eventually(lambda: not there.faults)
        again = asyncio.create_task(made.told(browser, back))
        if nodes == 2:  # the next node knows no more than that it is under way
            assert (await again)["result"] == "pending"
            held.set()
        else:
            await asyncio.wait([again], timeout=0.2)
            assert not again.done()
            held.set()
            assert (await again)["result"] == "connected"
        assert (await asking)["result"] == "connected"
        assert len(there.forms) == 1
        assert len(made.noted) == 1


async def test_a_node_that_died_with_a_code_under_way_leaves_nobody_waiting(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there, timeout_s=0.2) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        state, kept = query_of(back)["state"], dict(browser.cookies)
        link = sealed_visits.Link("another", 0, "", "", {}, "")
        store = claims.Claims(accounts_of(made.tokens).script, connecting.VISIT_S * 1000)
        await store.use_up(state, link, 0.2)
        assert (await made.told(browser, back))["result"] == "pending"
        assert browser.cookies == kept, "the browser may ask again"
        monkeypatch.setattr(claims, "SLACK_MS", -1_000_000)
        assert (await made.told(browser, back))["error"] == "replayed"
        assert there.forms == []


async def test_new_settings_cut_off_no_consent(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    held = held_answer(there)
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        asking = asyncio.create_task(made.told(browser, back))
        await harness.eventually(lambda: not there.faults)
        before = made.doors[0].transports()
        made.doors[0].server.reload(["admin"])
        assert [one.is_closing() for one in before] == [False]
        held.set()
        assert (await asking)["result"] == "connected"


async def test_one_users_callback_is_nothing_in_anothers_browser(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        ada, eve = made.browser(), made.browser()
        back_of_ada = await made.left(ada, await made.link("p/ada"))
        there.subject = "eve"
        back_of_eve = await made.left(eve, await made.link("p/eve"))
        status, _ = await ada.open(back_of_eve)
        assert status == 400
        status, _ = await eve.open(back_of_ada)
        assert status == 400
        assert there.forms == []
        # With the other's cookie in its place, too.
        (of_ada,), (of_eve,) = ada.cookies, eve.cookies
        mixed = made.browser()
        mixed.cookies = {of_ada: eve.cookies[of_eve], of_eve: ada.cookies[of_ada]}
        assert (await mixed.open(back_of_ada))[0] == 400
        assert (await made.told(ada, back_of_ada))["account"] == "p/ada"
        assert (await made.told(eve, back_of_eve))["account"] == "p/eve"
        assert (await made.tokens.get("p/ada")).access_token.startswith("at-ada-")
        assert (await made.tokens.get("p/eve")).access_token.startswith("at-eve-")


async def test_a_code_of_another_request_is_refused_by_its_proof(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        ada, eve = made.browser(), made.browser()
        stolen = query_of(await made.left(ada, await made.link("p/ada")))["code"]
        back = await made.left(eve, await made.link("p/eve"))
        injected = back.replace(query_of(back)["code"], stolen)
        assert await made.told(eve, injected) == {
            "result": "failed",
            "error": "refused",
            "account": "p/eve",
        }
        assert await made.row("eve") is None


async def test_a_code_of_another_request_is_refused_by_its_nonce_where_there_is_no_proof(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, pkce=False) as made:
        ada, eve = made.browser(), made.browser()
        asked = {"scope": "openid read"}
        stolen = query_of(await made.left(ada, await made.link("p/ada", **asked)))["code"]
        back = await made.left(eve, await made.link("p/eve", **asked))
        injected = back.replace(query_of(back)["code"], stolen)
        assert (await made.told(eve, injected))["error"] == "wrong_id_token"
        assert "code_verifier" not in there.forms[0]
        assert await made.row("eve") is None


@pytest.mark.parametrize(
    ("settings", "said", "fits"),
    [
        ({"consent_issuer": "https://p.example"}, "https://p.example", True),
        ({"consent_issuer": "https://p.example"}, "", True),
        ({"consent_issuer": "https://p.example"}, "https://evil.example", False),
        ({}, "https://unheard-of.example", True),
        ({}, "https://q.example", False),
    ],
)
async def test_the_answer_of_another_provider_is_refused(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    settings: dict[str, str],
    said: str,
    fits: bool,
) -> None:
    other = replace(
        harness.provider("https://q.example/token", consent_issuer="https://q.example"), name="q"
    )
    there.issuer = said
    async with place(valkey, tmp_path, there, more=(other,), **settings) as made:
        told = await made.consent()
        assert told.get("error", told["result"]) == ("connected" if fits else "wrong_issuer")
        assert len(there.forms) == fits


async def test_an_issuer_that_is_announced_has_to_be_there(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    there.metadata = {"authorization_response_iss_parameter_supported": True}
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        assert (await made.consent())["error"] == "wrong_issuer"
        there.issuer = there.url
        assert (await made.consent())["result"] == "connected"


async def test_a_provider_that_was_put_is_sent_no_code_of_another(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """It leads the browser on to another provider, whose answer comes to that one's address."""
    async with consenting_provider() as evil, place(valkey, tmp_path, there) as made:
        settings = {
            "token_url": evil.token_url,
            "authorization_url": evil.authorization_url,
            "client_id": "c0",
            "client_secret": "cl-secret",
            "rotation": "rolling",
        }
        await made.tokens.stored_providers.put("evil", json.dumps(settings).encode())
        browser = made.browser()
        status, location = await browser.open(await made.link("evil/ada"))
        sent = query_of(location)
        own = f"{PUBLIC}/v1/connect/put-callback/evil"
        assert not own.startswith(SETTINGS.redirect_uri), "some servers take what is below"
        assert (status, sent["redirect_uri"]) == (302, own)
        # What it does: the victim's state, at the other's authorization endpoint.
        led = location.replace(evil.authorization_url, there.authorization_url)
        back = there.sign_in(led).replace(own, f"{PUBLIC}/v1/connect/callback")
        assert (await made.told(browser, back))["error"] == "wrong_issuer"
        assert evil.forms == there.forms == []
        # By its own address it is served.
        browser = made.browser()
        _, location = await browser.open(await made.link("evil/ada"))
        assert (await made.told(browser, evil.sign_in(location)))["result"] == "connected"
        assert evil.forms[0]["redirect_uri"] == own


@pytest.mark.parametrize("own", [False, True])
async def test_a_provider_of_the_files_with_its_own_address_has_no_code_go_to_another(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, own: bool
) -> None:
    """Neither says iss: one leads a victim on to the other with the challenge of an own visit."""
    async with consenting_provider() as evil:
        settings = {"authorization_url": evil.authorization_url}
        other = harness.provider(evil.token_url, rotation="rolling", **settings)
        more = (replace(other, name="evil"),)
        async with place(valkey, tmp_path, there, own_callback=own, more=more) as made:
            attacker, victim = made.browser(), made.browser()
            _, mine = await attacker.open(await made.link("p/attacker"))
            _, asked = await victim.open(await made.link("evil/victim"))
            led = query_of(mine) | {"state": query_of(asked)["state"]}
            back = there.sign_in(f"{there.authorization_url}?{urlencode(led)}")
            told = (await made.told(victim, back))["error"]
            assert (told, len(evil.forms)) == (("wrong_issuer", 0) if own else ("refused", 1))
            assert there.forms == []
            assert (await made.consent())["result"] == "connected"
            where = f"{PUBLIC}/v1/connect/put-callback/p" if own else SETTINGS.redirect_uri
            assert there.forms[0]["redirect_uri"] == where


async def test_a_provider_that_was_put_keeps_nobody_from_another(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """It says that it is the issuer of a provider whose settings name none."""
    there.issuer = "https://p.example"
    async with place(valkey, tmp_path, there) as made:
        settings = {
            "token_url": "http://127.0.0.1:9/token",
            "authorization_url": "http://127.0.0.1:9/authorize",
            "client_id": "c0",
            "client_secret": "x",
            "rotation": "rolling",
            "consent_issuer": "https://p.example",
        }
        await made.tokens.stored_providers.put("evil", json.dumps(settings).encode())
        assert (await made.consent())["result"] == "connected"


async def test_two_clients_of_one_server_have_one_issuer(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    there.issuer = there.url
    settings = {"authorization_url": there.authorization_url, "consent_issuer": there.url}
    other = replace(harness.provider(there.token_url, rotation="rolling", **settings), name="q")
    async with place(valkey, tmp_path, there, more=(other,)) as made:
        assert (await made.consent())["result"] == "connected"


async def test_metadata_say_nothing_that_is_ours_to_say(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """The challenge of another visit, at an authorization endpoint of metadata."""
    there.metadata = {"authorization_endpoint": f"{there.authorization_url}?code%5Fchallenge=x"}
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        status, page = await made.browser().open(await made.link())
        assert (status, "The provider refused the request" in page) == (502, True)


@pytest.mark.parametrize("end", ["a\x00b", "a\x7f", "a\ud800", "a#"])
async def test_metadata_name_no_address_that_no_browser_could_be_sent_to(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, end: str
) -> None:
    there.metadata = {"authorization_endpoint": f"{there.url}/{end}"}
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        status, page = await made.browser().open(await made.link())
        assert (status, "cannot be reached" in page) == (503, True)


@pytest.mark.parametrize("uri", ["urn:\ud800", "a\r\nb", "x" * 3000])
async def test_a_pushed_request_has_a_name_that_a_browser_can_bring(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, uri: str
) -> None:
    async def push(_: Any) -> web.Response:
        return web.json_response({"request_uri": uri}, status=201)

    app = web.Application()
    app.router.add_post("/par", push)
    async with serving_app(app) as port:
        par = f"http://127.0.0.1:{port}/par"
        async with place(valkey, tmp_path, there, par_url=par) as made:
            status, page = await made.browser().open(await made.link())
            assert (status, "The provider refused the request" in page) == (502, True)


async def test_parameters_that_come_twice_are_refused(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        for more in ("&code=x", f"&state={query_of(back)['state']}", "&iss=a&iss=b"):
            assert (await browser.open(back + more))[0] == 400
        assert there.forms == []
        assert (await made.told(browser, f"{back}&hd=a&hd=b"))["result"] == "connected"


# --- links


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/connected",
        "https://app.example.com/connected/../x",
        "https://app.example.com@evil.example/connected",
        "//evil.example",
        "javascript:alert(1)",
        "https://app.example.com/connected?result=connected",
    ],
)
async def test_a_link_leads_to_no_address_that_is_not_allowed(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, address: str
) -> None:
    async with place(valkey, tmp_path, there) as made:
        path = "/v1/tokens/p/ada/connect"
        status, found = await made.doors[0].call(
            "POST", path, {"return_to": address}, headers=bearer()
        )
        assert (status, found["error"]) == (400, "BADARG")
        assert "the return address" in found["message"]


@pytest.mark.parametrize("when", ["opened", "back"])
async def test_another_provider_of_the_same_name_is_sent_nobody_and_no_code(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    when: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def settings(by: ConsentingProvider, **more: str) -> bytes:
        chosen = {
            "token_url": by.token_url,
            "authorization_url": by.authorization_url,
            "client_id": "c0",
            "client_secret": "cl-secret",
            "rotation": "rolling",
        }
        return json.dumps(chosen | more).encode()

    async with consenting_provider() as evil, place(valkey, tmp_path, there) as made:
        put = made.tokens.stored_providers.put
        await put("shop", settings(there))
        browser, link = made.browser(), await made.link("shop/ada")
        if when == "opened":
            await put("shop", settings(evil))
            status, page = await browser.open(link)
            assert (status, "not one of ours" in page) == (400, True)
        else:
            back = await made.left(browser, link)
            kept = dict(browser.cookies)
            await put("shop", settings(evil))
            assert (await made.told(browser, back))["error"] == "link_invalid"
            await put("shop", settings(there, client_secret="other"))
            browser.cookies = kept
            assert (await made.told(browser, back))["error"] == "refused", "it was sent this time"
        assert evil.forms == []
        assert "the provider of that name is another by now" in caplog.text


async def test_a_node_that_does_not_know_the_provider_calls_no_link_invalid(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put at another node a moment ago, or is not in force here."""
    monkeypatch.setattr(stored_providers, "LOOK_S", 3600.0)
    settings = {
        "token_url": there.token_url,
        "authorization_url": there.authorization_url,
        "client_id": "c0",
        "client_secret": "cl-secret",
        "rotation": "rolling",
    }
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        await made.tokens.stored_providers.put("shop", json.dumps(settings).encode())
        link = await made.link("shop/ada")
        browser = made.browser()
        back = await made.left(browser, link)
        assert (await made.told(browser, back))["error"] == "unavailable"  # at the second node
        assert there.forms == []
        browser = made.browser()  # begins there
        status, page = await browser.open(link)
        assert (status, "Open the link again" in page) == (503, True)
        back = await made.left(browser, link)
        await made.sides[1].tokens.stored_providers.look()
        assert (await made.told(browser, back))["result"] == "connected"


async def test_an_address_that_is_allowed_no_more_is_not_opened(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        made.tokens.connecting.settings = replace(SETTINGS, return_to=())
        status, page = await browser.open(back)
        assert (status, "The account is connected" in page) == (200, True)


async def test_a_link_that_was_altered_opens_nothing(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        link = await made.link("p/ada")
        sealed = parse_qs(urlsplit(link).query)["link"][0]
        middle = len(sealed) // 2
        other = "A" if sealed[middle] != "A" else "B"
        for url in (
            link.replace("/p/ada", "/p/eve"),
            link.replace("/p/ada", "/q/ada"),
            link.replace(sealed, sealed[:middle] + other + sealed[middle + 1 :]),
            link.replace(sealed, sealed[:-2]),
            link.replace(sealed, ""),
            link.replace(sealed, "x" * 5000),
            link.replace("?link=", "?other="),
            f"{PUBLIC}/v1/connect/p/%FF?link={sealed}",
            f"{PUBLIC}/v1/connect/p/a%00?link={sealed}",
        ):
            status, page = await made.browser().open(url)
            assert (status, "not one of ours" in page) == (400, True), url
        assert (await made.browser().open(link))[0] == 302


async def test_a_link_lives_for_its_time(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, connect=replace(SETTINGS, link_s=1.0)) as made:
        browser, late = made.browser(), made.browser()
        link = await made.link()
        back = await made.left(browser, link)

        async def over() -> bool:
            return (await late.open(link))[0] == 410

        await harness.eventually(over)
        assert (await made.told(browser, back))["result"] == "connected", "it was begun in time"


async def test_a_visit_lives_for_its_time(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser that keeps the cookie beyond its time, that is."""
    async with place(valkey, tmp_path, there) as made:
        browser, link = made.browser(), await made.link()
        with monkeypatch.context() as patch:
            patch.setattr(connecting, "VISIT_S", 0)
            back = await made.left(browser, link)
        assert (await made.told(browser, back))["error"] == "expired"
        assert there.forms == []


async def test_a_link_serves_one_consent(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        link = await made.link()
        ada, eve = made.browser(), made.browser()
        back_of_ada, back_of_eve = await made.left(ada, link), await made.left(eve, link)
        assert (await made.told(ada, back_of_ada))["result"] == "connected"
        assert (await made.told(eve, back_of_eve))["error"] == "link_used"
        assert len(there.forms) == 1


async def test_a_link_serves_on_after_a_consent_that_came_to_nothing(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "STATES_MAX", 3)
    monkeypatch.setattr(claims, "STATES_MAX", 3)
    async with place(valkey, tmp_path, there) as made:
        link = await made.link()
        for error, word in (("access_denied", "denied"), ("server_error", "provider_error")):
            browser = made.browser()
            status, location = await browser.open(link)
            assert status == 302
            back = there.sign_in(location, error=error)
            assert (await made.told(browser, back))["error"] == word
        assert there.forms == []
        browser = made.browser()
        assert (await made.told(browser, await made.left(browser, link)))["result"] == "connected"


async def test_a_link_uses_up_so_many_states_and_no_more(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "STATES_MAX", 2)
    async with place(valkey, tmp_path, there) as made:
        link = await made.link()
        told = []
        for _ in range(3):
            browser = made.browser()
            _, location = await browser.open(link)
            back = there.sign_in(location, error="access_denied")
            told.append((await made.told(browser, back))["error"])
        assert told == ["denied", "denied", "link_used"]


async def test_a_browser_keeps_a_few_visits(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """Its cookies have to fit into the head of its next request."""
    async with place(valkey, tmp_path, there) as made:
        browser, link = made.browser(), await made.link()
        backs = []
        for number in range(9):
            backs.append(await made.left(browser, link))
            assert len(browser.cookies) == min(number + 1, 4)
        for back in backs[:-4]:
            assert (await browser.open(back))[0] == 400
        assert (await made.told(browser, backs[-4]))["result"] == "connected"
        for back in backs[-3:]:
            assert (await made.told(browser, back))["error"] == "link_used"


@pytest.mark.parametrize(
    ("settings", "asked", "fault"),
    [
        ({"authorization_url": ""}, {}, "p has no authorization_url, and no issuer"),
        ({"grant": "client_credentials", "authorization_url": ""}, {}, "need nobody's consent"),
        ({"account_secret": True}, {}, "clients of their own"),
        ({}, {"scope": "a\nb"}, "scope must be printable ASCII"),
        ({}, {"scope": "x" * 1501}, "scope must be printable ASCII"),
        ({}, {"scope": "x" * 1500, "return_to": f"{APP}?{'y' * 900}"}, "too long together"),
        ({}, {"parameters": {"shop": "x"}}, "parameters has 'shop'; p knows none"),
    ],
)
async def test_links_that_cannot_be_made(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    settings: dict[str, Any],
    asked: dict[str, Any],
    fault: str,
) -> None:
    async with place(valkey, tmp_path, there, **settings) as made:
        with pytest.raises(BadArg, match=fault):
            await made.link(**asked)


@pytest.mark.parametrize("name", ["callback", "put-callback"])
async def test_a_link_has_no_path_of_those_that_browsers_come_back_to(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, name: str
) -> None:
    other = replace(harness.provider("https://q.example/t", authorization_url=APP), name=name)
    async with place(valkey, tmp_path, there, more=(other,)) as made:
        with pytest.raises(BadArg, match="no link has a path"):
            await made.link(f"{name}/ada")


async def test_nobody_consents_where_it_is_not_set_up(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, connect=Connect()) as made:
        with pytest.raises(BadArg, match=r"connect\.url is not set"):
            await made.link(return_to="")


async def test_a_node_without_the_address_of_others_sends_nobody_on(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        browser, link = made.browser(), await made.link()
        back = await made.left(browser, link)  # by the first node; the second is asked next
        made.sides[1].tokens.connecting.settings = Connect()
        assert (await browser.open(back))[0] == 503
        assert caplog.text.count("connect.url is not set") == 1
        assert (await made.told(browser, back))["result"] == "connected"
        late = made.browser()  # it begins at the second
        assert (await late.open(link))[0] == 503
        assert caplog.text.count("connect.url is not set") == 2


async def test_a_visit_that_no_browser_could_keep_is_not_begun(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, scope = "p/" + "a" * 200, "x" * 900
    issuer = f"https://{'i' * 900}.example"
    async with place(valkey, tmp_path, there, consent_issuer=issuer) as made:
        for chars in range(0, 1500, 100):
            try:
                link = await made.link(account, scope=scope, return_to=f"{APP}?{'y' * chars}")
            except BadArg:
                break
            browser = made.browser()
            back = await made.left(browser, link)
            assert (await made.told(browser, back))["result"] == "connected", chars
        assert chars > 0
        link = await made.link()
        monkeypatch.setattr(connecting, "VISIT_CHARS_MAX", 100)
        status, _ = await made.browser().open(link)
        assert status == 400
        with pytest.raises(BadArg, match="too long together"):
            await made.link()


async def test_why_a_link_leads_nowhere_is_in_the_log_and_strangers_are_not(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there, par_url=f"{there.url}/token") as made:
        browser = made.browser()
        assert (await browser.open(await made.link()))[0] == 502
        assert "a consent cannot go on: provider_error (its pushed request" in caplog.text
        caplog.clear()
        await browser.open(f"{PUBLIC}/v1/connect/p/ada?link=xyz")
        await browser.open(f"{PUBLIC}/v1/connect/callback?state={'A' * 32}&code=a&code=b")
        assert "a consent" not in caplog.text


# --- answers of the provider


async def test_a_lost_answer_is_told_and_its_code_not_sent_again(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    there.faults.append(cut)
    async with place(valkey, tmp_path, there, "n0", "n1") as made:
        browser, link = made.browser(), await made.link()
        back = await made.left(browser, link)
        kept = dict(browser.cookies)
        for _ in range(3):
            browser.cookies = dict(kept)
            assert (await made.told(browser, back))["error"] == "outcome_unknown"
        assert len(there.forms) == 1
        assert "the consent of p/ada: outcome_unknown" in caplog.text
        assert await made.row() is None
        again = made.browser()
        assert (await made.told(again, await made.left(again, link)))["result"] == "connected"


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (answers(400, {"error": "invalid_grant"}), "refused"),
        (answers(503, {}), "unavailable"),
        (answers(200, "<html>"), "outcome_unknown"),
        (answers(200, {"access_token": "a"}), "no_refresh_token"),
    ],
)
async def test_answers_that_bring_nothing(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, fault: Any, word: str
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        there.faults.append(fault)
        assert (await made.consent())["error"] == word
        assert (await made.row()).grant == 1, "what was there stays"


async def test_a_client_secret_that_is_rolled_costs_one_try(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, **TWO_SECRETS) as made:
        assert (await made.consent())["error"] == "refused"
        assert len(there.forms) == 1
        assert (await made.consent())["result"] == "connected"


async def test_less_than_was_asked_for_is_refused_unless_it_may_be(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    there.scope = "read"
    async with place(valkey, tmp_path, there) as made:
        assert (await made.consent())["error"] == "scope_missing"
        assert await made.row() is None
    async with place(valkey, tmp_path, there, "n5", narrower_scope="accept") as made:
        assert (await made.consent())["result"] == "connected"
        assert (await made.row()).scope == "read"


async def test_the_providers_scope_is_asked_for_where_a_link_names_none(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    further = {"access_type": "offline"}
    async with place(
        valkey, tmp_path, there, consent_scope="all", authorization_parameters=further
    ) as made:
        _, location = await made.browser().open(await made.link(scope=""))
        assert (query_of(location)["scope"], query_of(location)["access_type"]) == (
            "all",
            "offline",
        )


OPENID = {"scope": "openid read"}


async def test_who_consents_again_has_to_be_the_same(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        assert (await made.consent(**OPENID))["result"] == "connected"
        assert (await made.row()).details.subject == "ada"
        there.subject = "eve"
        assert (await made.consent(**OPENID))["error"] == "other_subject"
        assert (await made.tokens.get("p/ada")).access_token.startswith("at-ada-")
        there.subject = "ada"
        assert (await made.consent(**OPENID))["result"] == "connected"
        there.subject = "eve"
        await made.tokens.delete("p/ada")
        assert (await made.consent(**OPENID))["result"] == "connected"
        assert (await made.row()).details.subject == "eve"


@pytest.mark.parametrize(
    "claims_",
    [{"nonce": "other"}, {"aud": "c1"}, {"exp": 1}, {"sub": ""}, {"iss": "https://evil.example"}],
)
async def test_an_id_token_that_does_not_fit_is_refused(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, claims_: dict[str, Any]
) -> None:
    there.claims = claims_
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        assert (await made.consent(**OPENID))["error"] == "wrong_id_token"
        assert await made.row() is None


async def test_an_id_token_that_was_asked_for_has_to_come(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    there.extra = {"id_token": None}
    async with place(valkey, tmp_path, there) as made:
        assert (await made.consent(**OPENID))["error"] == "wrong_id_token"


async def test_a_request_is_pushed_where_the_provider_takes_that(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "STATES_MAX", 3)
    there.metadata = {"pushed_authorization_request_endpoint": f"{there.url}/par"}
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        browser, link = made.browser(), await made.link()
        _, location = await browser.open(link)
        assert query_of(location).keys() == {"client_id", "request_uri"}
        (pushed,) = there.pushed.values()
        assert pushed["scope"] == "read write"
        assert {"state", "code_challenge", "redirect_uri"} <= pushed.keys()
        assert (await made.told(browser, there.sign_in(location)))["result"] == "connected"
        for _ in range(2):
            assert (await made.browser().open(link))[0] == 302
        status, page = await made.browser().open(link)
        assert (status, "served its purpose" in page) == (410, True)


async def test_a_request_is_pushed_by_the_secret_that_is_taken(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """Nothing was used up by the one that was refused; the code goes with the other at once."""
    url = f"{there.url}/par"
    async with place(valkey, tmp_path, there, par_url=url, **TWO_SECRETS) as made:
        assert (await made.consent())["result"] == "connected"
        assert len(there.forms) == 1


async def test_accounts_with_addresses_of_their_own(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    settings = {
        "authorization_url": there.authorization_url,
        "authorization_parameters": {"tenant": "{tenant}"},
        "account_parameters": {"tenant": "[a-z]+"},
    }
    async with place(valkey, tmp_path, there, **settings) as made:
        with pytest.raises(BadArg, match=r"parameters\.tenant is missing"):
            await made.link()
        browser = made.browser()
        _, location = await browser.open(await made.link(parameters={"tenant": "acme"}))
        assert query_of(location)["tenant"] == "acme"
        assert (await made.told(browser, there.sign_in(location)))["result"] == "connected"
        assert (await made.row()).details.parameters == {"tenant": "acme"}
        _, location = await made.browser().open(await made.link())
        assert query_of(location)["tenant"] == "acme", "those that the account has"


# --- while the store is away


async def test_nothing_is_sent_while_the_store_is_away(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise StoreDown("the store is away")

    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        with monkeypatch.context() as patch:
            patch.setattr(claims.Claims, "use_up", away)
            status, page = await browser.open(back)
            assert (status, "Reload this page" in page) == (503, True)
        assert there.forms == []
        assert (await made.told(browser, back))["result"] == "connected"


async def test_what_was_given_is_put_when_the_store_is_back(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreDown("the store is away")

    monkeypatch.setattr(given_grants, "REPLAY_S", 3600.0)
    async with place(valkey, tmp_path, there) as made:
        browser, link = made.browser(), await made.link()
        back = await made.left(browser, link)
        with monkeypatch.context() as patch:
            patch.setattr(given_grants.Grants, "put_consent", away)
            assert (await made.told(browser, back))["result"] == "pending"
        assert len(journal_of(made.tokens).consents()) == 1
        assert await made.row() is None
        # Its node dies here, and is there again.
    async with place(valkey, tmp_path, there, go=False) as made:
        assert len(journal_of(made.tokens).consents()) == 1
        await made.tokens.connecting.given.replay()
        assert journal_of(made.tokens).consents() == []
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-1"
        made.sides[0].go()
        assert [kind for kind, _ in await made.events()] == ["account.connected"]
        again = made.browser()
        status, page = await again.open(link)
        assert status == 302
        told = await made.told(again, there.sign_in(page))
        assert told["error"] == "link_used"
    assert len(there.forms) == 1


@pytest.mark.parametrize("later", ["consent", "deletion"])
async def test_what_was_given_before_a_later_consent_or_a_deletion_is_not_put(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
    later: str,
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreDown("the store is away")

    monkeypatch.setattr(given_grants, "REPLAY_S", 3600.0)
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        with monkeypatch.context() as patch:
            patch.setattr(given_grants.Grants, "put_consent", away)
            assert (await made.consent())["result"] == "pending"
        if later == "deletion":
            await made.tokens.delete("p/ada")
        else:
            assert (await made.consent())["result"] == "connected"
        await made.tokens.connecting.given.replay()
        assert journal_of(made.tokens).consents() == []
        row = await made.row()
        assert (row is None) if later == "deletion" else row.grant == 2


async def test_a_journal_that_takes_nothing_keeps_a_code_from_being_sent(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there, go=False) as made:
        browser, link = made.browser(), await made.link()
        back = await made.left(browser, link)
        journal_of(made.tokens).fault = "tokens.journal: No space left on device"
        assert (await made.told(browser, back))["error"] == "unavailable"
        assert there.forms == []
        journal_of(made.tokens).fault = ""
        again = made.browser()
        assert (await made.told(again, await made.left(again, link)))["result"] == "connected"


async def test_a_browser_that_goes_away_loses_nothing(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    held = held_answer(there)
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        asking = asyncio.create_task(browser.open(back))
        await harness.eventually(lambda: not there.faults)
        asking.cancel()
        held.set()
        await harness.eventually(made.row)
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-1"
        await harness.eventually(lambda: made.noted)
        assert made.noted == [("admin", "T.CONNECT", "p/ada", "connected")]


async def test_strangers_ask_the_store_for_no_keys(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed text names the key that it is under; whoever makes one up may name any."""
    async with place(valkey, tmp_path, there, go=False) as made:
        loads = []
        vault = vault_of(made.tokens)

        async def load() -> None:
            loads.append(1)

        monkeypatch.setattr(vault, "load", load)
        for number in (0, 0, *range(2**30, 2**30 + 20)):
            raw = b"\x01" + number.to_bytes(4, "big") + bytes(60)
            text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
            url = f"{PUBLIC}/v1/connect/p/ada?link={text}"
            assert (await made.browser().open(url))[0] == 400
        assert len(loads) == 1
        assert sealed_visits.LOOK_S >= 1


async def test_only_get_is_served_there(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        for path in ("/v1/connect/callback", "/v1/connect/p/ada", "/v1/connect/put-callback/p"):
            for method in ("HEAD", "POST", "PUT", "DELETE"):
                status, _ = await made.doors[0].call(method, path)
                assert status == 405, (method, path)
            status, _ = await made.doors[0].call("GET", path)
            assert status == 400


def test_the_settings_are_those_of_a_section() -> None:
    assert Config().connect == Connect()
    assert SETTINGS.redirect_uri == f"{PUBLIC}/v1/connect/callback"
    assert replace(SETTINGS, url=f"{PUBLIC}/").redirect_uri == f"{PUBLIC}/v1/connect/callback"
