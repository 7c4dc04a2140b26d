"""
Consents in a real browser at authorization servers that none of us wrote, django-oauth-toolkit and
oidc-provider: from the link over their pages to tokens that work and are refreshed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import httpx
import pytest
from aiohttp import web
from support.console.browser import browsing, needs_browser
from support.doors import doubles
from support.doors.http_app import serving_app
from support.doors.http_store import http_door
from support.inspect import accounts_of
from support.providers.consenting_provider import query_of
from support.providers.provider_settings import provider_of
from support.tokens import harness
from support.tokens.harness import eventually

from benchmarks.ports import free_ports
from tidewarden.config.load import Connect, Provider

pytestmark = [needs_browser, pytest.mark.timeout(400)]  # the first run may install oidc-provider

CALLBACK = "/v1/connect/callback"
LOCAL = "http://127.0.0.1:"


@dataclass
class Front:
    """The public address: a proxy before the node, which can keep a callback from it."""

    session: aiohttp.ClientSession
    port: int = 0
    door: int = 0
    """The node's port behind it."""
    catching: bool = False
    caught: str = ""

    @property
    def url(self) -> str:
        return f"{LOCAL}{self.port}"

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Ask the node, or catch the callback."""
        if self.catching and request.path == CALLBACK:
            self.caught = f"{self.url}{request.raw_path}"
            return web.Response(text="caught")
        asked = aiohttp.client.URL(f"{LOCAL}{self.door}{request.raw_path}", encoded=True)
        headers = {"Cookie": request.headers["Cookie"]} if "Cookie" in request.headers else {}
        async with self.session.get(asked, headers=headers, allow_redirects=False) as answer:
            response = web.Response(status=answer.status, body=await answer.read())
            for name, value in answer.headers.items():
                if name not in ("Content-Length", "Date", "Server"):
                    response.headers.add(name, value)
            return response


@contextlib.asynccontextmanager
async def front() -> AsyncIterator[Front]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        made = Front(session)
        app = web.Application()
        app.router.add_get("/{path:.*}", made.pass_on)
        async with serving_app(app) as made.port:
            yield made


@dataclass
class Stage:
    """A node, an application, and a browser; ``visited``: the addresses that it asked for."""

    side: harness.Side
    front: Front
    browser: Any
    app: str
    sign_in: Callable[[Any, str], Any]
    visited: list[str] = field(default_factory=list)

    async def link(self, account: str, **asked: Any) -> str:
        asked = {"return_to": f"{self.app}/connected"} | asked
        return str((await self.side.tokens.connecting.link(account, **asked)).url)

    @contextlib.asynccontextmanager
    async def person(self) -> AsyncIterator[Any]:
        """A page of somebody who comes for the first time; what is not of this machine is not."""
        context = await self.browser.new_context()
        try:
            page = await context.new_page()
            page.set_default_timeout(30_000)
            page.on("request", lambda request: self.visited.append(request.url))
            await page.route("**/*", self._route)
            yield page
        finally:
            await context.close()

    async def _route(self, route: Any) -> None:
        if route.request.url.startswith(LOCAL):
            await route.continue_()
        else:
            await route.abort()  # fonts and styles of their pages

    async def consent(self, page: Any, link: str, who: str) -> dict[str, str]:
        """Open a link, sign in and consent; returns what the application was told."""
        await page.goto(link)
        await self.sign_in(page, who)
        await page.wait_for_url(f"{self.app}/connected?**")
        return query_of(page.url)

    async def caught(self, page: Any, link: str, who: str) -> str:
        """Do the same, and catch the callback before it reaches the node."""
        self.front.catching = True
        await page.goto(link)
        await self.sign_in(page, who)
        await page.get_by_text("caught").wait_for()
        self.front.catching = False
        return self.front.caught


@contextlib.asynccontextmanager
async def stage(
    valkey: Any, folder: Path, before: Front, chosen: Provider, sign_in: Callable[[Any, str], Any]
) -> AsyncIterator[Stage]:
    async def connected(request: web.Request) -> web.Response:
        return web.Response(text=f"back: {request.query_string}")

    app = web.Application()
    app.router.add_get("/connected", connected)
    async with contextlib.AsyncExitStack() as stack:
        here = f"{LOCAL}{await stack.enter_async_context(serving_app(app))}"
        sections = {"connect": Connect(url=before.url, return_to=(f"{here}/connected",))}
        node = harness.node(valkey, folder, chosen, sections=sections)
        side = await stack.enter_async_context(node)
        rooms = {"tokens": side.tokens}
        door = http_door(side.queues, users=(doubles.ADMIN,), rooms=rooms)
        before.door = (await stack.enter_async_context(door)).port
        browser = await stack.enter_async_context(browsing())
        yield Stage(side, before, browser, here, sign_in)


# --- django-oauth-toolkit


async def sign_in_at_dot(page: Any, who: str) -> None:
    await page.get_by_label("User").fill(who)
    await page.get_by_role("button", name="Log in").click()
    await page.locator("input[name=allow]").click()


@contextlib.asynccontextmanager
async def at_dot(dot: Callable[..., Any], valkey: Any, folder: Path) -> AsyncIterator[Any]:
    async with front() as before:
        server = dot(accounts=3, life=3600, redirect_uri=f"{before.url}{CALLBACK}")
        chosen = provider_of(
            server, authorization_url=f"{server.base}/o/authorize/", consent_scope="mail files"
        )
        async with stage(valkey, folder, before, chosen, sign_in_at_dot) as made:
            yield server, made


def whose(server: Any, access_token: str) -> str:
    """Whose the token is, by a resource that the library guards."""
    headers = {"Authorization": f"Bearer {access_token}"}
    answer = httpx.get(f"{server.base}/api/mail", headers=headers, trust_env=False)
    return str(answer.raise_for_status().json()["user"])


async def test_a_consent_at_django_oauth_toolkit_becomes_tokens_that_are_refreshed(
    dot: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    async with at_dot(dot, valkey, tmp_path) as (server, made), made.person() as page:
        told = await made.consent(page, await made.link("p/ada"), "u1")
        assert told == {"result": "connected", "account": "p/ada"}
        first = await made.side.tokens.get("p/ada")
        assert (whose(server, first.access_token), first.scope) == ("u1", "mail files")
        left = [one["name"] for one in await page.context.cookies()]
        assert not [name for name in left if name.startswith("tidewarden")]
        await made.side.tokens.refresh("p/ada")

        async def refreshed() -> Any:
            found = await made.side.tokens.get("p/ada")
            return found if found.generation > first.generation else None

        second = await eventually(refreshed)
        assert second.access_token != first.access_token
        assert whose(server, second.access_token) == "u1"
        (asked,) = [url for url in made.visited if "/o/authorize/" in url and "state=" in url][:1]
        assert query_of(asked)["code_challenge_method"] == "S256"


async def test_hostile_callbacks_at_django_oauth_toolkit(
    dot: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    async with (
        at_dot(dot, valkey, tmp_path) as (server, made),
        made.person() as ada,
        made.person() as eve,
    ):
        back_of_ada = await made.caught(ada, await made.link("p/ada"), "u1")
        back_of_eve = await made.caught(eve, await made.link("p/eve"), "u2")
        # Crossed: each is nothing in the other's browser.
        for page, back in ((ada, back_of_eve), (eve, back_of_ada)):
            response = await page.goto(back)
            assert response.status == 400
            await page.get_by_text("not begun in this browser").wait_for()
        # Forged: a state of one's own making.
        forged = query_of(back_of_ada) | {"state": "A" * 32}
        response = await ada.goto(f"{back_of_ada.partition('?')[0]}?{urlencode(forged)}")
        assert response.status == 400
        # Injected: the victim's code in the attacker's own request, whose proof does not fit it.
        stolen = query_of(back_of_eve) | {"code": query_of(back_of_ada)["code"]}
        await eve.goto(f"{back_of_eve.partition('?')[0]}?{urlencode(stolen)}")
        assert query_of(eve.url)["error"] == "refused"
        with pytest.raises(Exception, match="no account p/eve"):
            await made.side.tokens.get("p/eve")
        # Replayed: the second time it is only told how the first ended.
        asked = server.stats()["answers"]
        await eve.goto(f"{back_of_eve.partition('?')[0]}?{urlencode(stolen)}")
        await eve.get_by_text("not begun in this browser").wait_for()
        assert server.stats()["answers"] == asked


async def test_a_no_at_django_oauth_toolkit(
    dot: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    async with at_dot(dot, valkey, tmp_path) as (_, made), made.person() as page:
        await page.goto(await made.link("p/ada"))
        await page.get_by_label("User").fill("u1")
        await page.get_by_role("button", name="Log in").click()
        await page.locator("input[type=submit]:not([name=allow])").first.click()
        await page.wait_for_url(f"{made.app}/connected?**")
        told = {"result": "failed", "error": "denied", "account": "p/ada"}
        assert query_of(page.url) == told


# --- oidc-provider


async def sign_in_at_oidc(page: Any, who: str) -> None:
    await page.locator("input[name=login]").fill(who)
    await page.locator("input[name=password]").fill("any")
    await page.locator("button[type=submit]").click()
    await page.get_by_role("button", name="Continue").click()


@contextlib.asynccontextmanager
async def at_oidc(oidc: Callable[..., Any], valkey: Any, folder: Path) -> AsyncIterator[Stage]:
    async with front() as before:
        theirs, redirect_uri = free_ports(1), f"{before.url}{CALLBACK}"
        server = oidc(accounts=1, life=3600, PORT=str(theirs), REDIRECT=redirect_uri)
        chosen = provider_of(
            server,
            token_url="",
            issuer=server.base,
            consent_scope="openid offline_access mail",
            authorization_parameters={"prompt": "consent"},
        )
        async with stage(valkey, folder, before, chosen, sign_in_at_oidc) as made:
            yield made


async def test_a_consent_at_oidc_provider_by_its_metadata(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    """Its request is pushed, its answer names the issuer, its ID token says who consented."""
    async with (
        at_oidc(oidc, valkey, tmp_path) as made,
        made.person() as ada,
        made.person() as eve,
    ):
        told = await made.consent(ada, await made.link("p/a"), "ada")
        assert told == {"result": "connected", "account": "p/a"}
        row = (await accounts_of(made.side.tokens).get("_tokens:p:c0", "a")).row
        assert row.details.subject == "ada"
        (sent,) = [url for url in made.visited if urlsplit(url).path == "/auth"]
        assert query_of(sent).keys() == {"client_id", "request_uri"}
        (back,) = [url for url in made.visited if urlsplit(url).path == CALLBACK]
        assert query_of(back)["iss"] == f"{urlsplit(sent).scheme}://{urlsplit(sent).netloc}"
        told = await made.consent(eve, await made.link("p/a"), "eve")
        assert (told["result"], told["error"]) == ("failed", "other_subject")
        first = await made.side.tokens.get("p/a")
        await made.side.tokens.refresh("p/a")

        async def refreshed() -> bool:
            return (await made.side.tokens.get("p/a")).generation > first.generation

        await eventually(refreshed)


async def test_an_answer_of_oidc_provider_without_its_issuer_is_refused(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path
) -> None:
    async with at_oidc(oidc, valkey, tmp_path) as made:
        for change in ({}, {"iss": "https://evil.example"}):
            link = await made.link("p/a")
            async with made.person() as page:
                back = await made.caught(page, link, "ada")
                told = {name: text for name, text in query_of(back).items() if name != "iss"}
                await page.goto(f"{back.partition('?')[0]}?{urlencode(told | change)}")
                assert query_of(page.url)["error"] == "wrong_issuer"
