"""Nodes at which people consent: their HTTP ports, one provider, and browsers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from support.doors import doubles
from support.doors.http_store import HttpDoor, http_door
from support.inspect import accounts_of
from support.providers.consenting_provider import Browser, ConsentingProvider, query_of
from support.tokens import harness

from tidewarden.clock import SystemClock
from tidewarden.config.load import Connect, Tokens
from tidewarden.server.traffic.recorder import Recorder

PUBLIC = "https://auth.example.com"
APP = "https://app.example.com/connected"
QUEUE = "_tokens:p:c0"
SETTINGS = Connect(url=PUBLIC, return_to=(APP, "https://other.example.com/below/"))
VAULT_KEY = base64.b64encode(os.urandom(32)).decode()


@dataclass
class Place:
    """Nodes with an HTTP port each, one provider, and browsers."""

    there: ConsentingProvider
    sides: list[harness.Side]
    doors: list[HttpDoor]
    client: aiohttp.ClientSession
    noted: list[tuple[str, ...]] = field(default_factory=list)
    traffic: Recorder = field(default_factory=lambda: Recorder(SystemClock()))
    """Of all nodes together."""
    browsers: int = 0

    @property
    def tokens(self) -> Any:
        return self.sides[0].tokens

    def browser(self) -> Browser:
        """A new one, which begins at the next node."""
        ports = [door.port for door in self.doors]
        first = self.browsers % len(ports)
        self.browsers += 1
        return Browser(self.client, PUBLIC, *ports[first:], *ports[:first])

    async def link(self, account: str = "p/ada", **asked: Any) -> str:
        asked = {"return_to": APP, "scope": "read write"} | asked
        return str((await self.tokens.connecting.link(account, **asked, user="admin")).url)

    async def left(self, browser: Browser, link: str) -> str:
        """Where the provider sends a browser back to that has opened the link."""
        status, location = await browser.open(link)
        assert status == 302, location
        return self.there.sign_in(location)

    async def consent(self, account: str = "p/ada", **asked: Any) -> dict[str, str]:
        """Consent, and return what the application is told."""
        browser = self.browser()
        return await self.told(browser, await self.left(browser, await self.link(account, **asked)))

    async def told(self, browser: Browser, back: str) -> dict[str, str]:
        status, location = await browser.open(back)
        assert status == 302, location
        assert location.startswith(f"{APP}?"), location
        return query_of(location)

    async def row(self, account: str = "ada") -> Any:
        return (await accounts_of(self.tokens).get(QUEUE, account)).row

    async def events(self) -> list[Any]:
        await harness.eventually(self._told_all)
        found = await self.tokens.events.after("0-0")
        return [(event.type, event.data) for _, event in found]

    async def _told_all(self) -> bool:
        have = self.sides[0].queues.scripts.having
        return not await have([QUEUE], "account_outbox")


class Noting:
    """An audit log that keeps what it is told."""

    def __init__(self, noted: list[tuple[str, ...]]) -> None:
        self._noted = noted

    def account(self, user: str, peer: str, action: str, account: str, outcome: str = "ok") -> None:
        assert peer.startswith("127.0.0.1:")
        self._noted.append((user, action, account, outcome))


def held_answer(there: ConsentingProvider) -> asyncio.Event:
    """Have the next code answered when the event is set."""
    held = asyncio.Event()

    async def slowly(request: Any, by: Any, code: str) -> Any:
        by.forms.pop()
        await held.wait()
        return await by.token(request)

    there.faults.append(slowly)
    return held


@contextlib.asynccontextmanager
async def place(
    valkey: Any,
    folder: Path,
    there: ConsentingProvider,
    *names: str,
    connect: Connect = SETTINGS,
    more: tuple[Any, ...] = (),
    go: bool = True,
    **settings: Any,
) -> AsyncIterator[Place]:
    if "issuer" not in settings:
        settings = {"authorization_url": there.authorization_url} | settings
    url = "" if "issuer" in settings else there.token_url
    chosen = harness.provider(url, rotation="rolling", **settings)
    sections = {"connect": connect, "tokens": Tokens(put_networks=("127.0.0.0/8",))}
    async with contextlib.AsyncExitStack() as stack:
        made = Place(there, [], [], await stack.enter_async_context(aiohttp.ClientSession()))
        for name in names or ("n0",):
            (folder / name / "secrets").mkdir(parents=True, exist_ok=True)
            (folder / name / "secrets" / "vault.key").write_text(VAULT_KEY)
            side = await stack.enter_async_context(
                harness.node(
                    valkey, folder / name, chosen, name, sections=sections, more=more, go=go
                )
            )
            rooms = {
                "tokens": side.tokens,
                "audit": Noting(made.noted),
                "traffic": made.traffic,
            }
            door = http_door(side.queues, users=(doubles.ADMIN,), rooms=rooms)
            made.sides.append(side)
            made.doors.append(await stack.enter_async_context(door))
        yield made
