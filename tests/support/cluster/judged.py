"""
A trial of what is concluded from answers: two nodes, a real authorization server, and a reverse
proxy that puts in faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.providers.provider_settings import provider_of
from support.providers.reverse_proxy import ReverseProxy, lateness, reverse_proxy
from support.tokens import harness

from tidewarden.tokens.events.events import START

LIFE_S = 12
"""Of an access token: it is refreshed eight seconds after it came."""
GONE = ("dead", "lost_rotation")
Seeds = Sequence[tuple[str, str]]


@dataclass
class Trial:
    """What a trial is made of; ``sides``: the nodes."""

    server: Any
    proxy: ReverseProxy
    sides: list[harness.Side]

    async def put(self, name: str, seeds: Seeds, **fields: Any) -> None:
        """
        Take in grants of a provider; ``fields``: more of each, such as an access token that it has
        already.
        """
        tokens = self.sides[0].tokens
        await asyncio.gather(
            *(
                tokens.put(f"{name}/{who}", {"refresh_token": token} | fields)
                for who, token in seeds
            )
        )

    async def rows(self, name: str) -> dict[str, dict[str, Any]]:
        """Every account of a provider as a list shows it."""
        found, after = {}, ""
        while True:
            page, after = await self.sides[0].tokens.list(name, count=500, after=after)
            found |= {row["account"].partition("/")[2]: row for row in page}
            if not after:
                return found

    async def states(self, name: str, accounts: Collection[str] | None = None) -> Counter[str]:
        """How many are how."""
        rows = await self.rows(name)
        return Counter(
            row["state"] for who, row in rows.items() if accounts is None or who in accounts
        )

    async def refreshed(
        self, name: str, accounts: Collection[str], since: float = 0.0, limit_s: float = 150
    ) -> None:
        """Wait until each of these was answered well after that moment."""

        def left() -> set[str]:
            return set(accounts) - {
                one.account for one in self.proxy.asked(name, since) if one.status == 200
            }

        try:
            await harness.eventually(lambda: not left(), limit_s)
        except AssertionError:
            for who in list(left())[:5]:
                print(who, [one for one in self.proxy.asked(name) if one.account == who])
            raise

    def late(
        self, name: str, accounts: Iterable[str], begun: float, ended: float
    ) -> dict[str, float]:
        """
        Who of these was without a living token between the moments, and for how long at the worst.
        """
        times = self.proxy.refreshed(name)
        return lateness({who: times.get(who, []) for who in accounts}, begun, ended, LIFE_S)

    async def events(self, name: str) -> list[str]:
        """The kinds of what was told of a provider itself, in order."""
        events, after = self.sides[0].tokens.events, START
        found: dict[str, str] = {}  # By id: each is told at least once.
        while page := await events.after(after):
            after = page[-1][0]
            for _, one in page:
                if one.data["provider"] == name and "account" not in one.data:
                    found[one.id] = one.type
        return list(found.values())

    async def accepted_again(
        self, name: str, accounts: Iterable[str], limit_s: float = 150
    ) -> None:
        """
        No fault is put in any more, and each account is refreshed once more: the refresh token that
        we hold is the living one.
        """
        self.proxy.rules.pop(name, None)
        before = {who: row["generation"] for who, row in (await self.rows(name)).items()}
        since = self.proxy.mark()
        wanted = set(accounts)

        await asyncio.gather(*(self.sides[0].tokens.refresh(f"{name}/{who}") for who in wanted))

        async def done() -> bool:
            rows = await self.rows(name)
            return not [who for who in wanted if rows[who]["generation"] <= before[who]]

        await harness.eventually(done, limit_s)
        refused = [one for one in self.proxy.asked(name, since) if one.own and one.status != 200]
        assert not refused, refused

    async def check_grants(self, name: str, accounts: Collection[str]) -> None:
        """Every grant lives at the server, and none of them is given up here."""
        alive, rows = set(self.server.stats()["alive"]), await self.rows(name)
        given_up = {who: rows[who]["message"] for who in accounts if rows[who]["state"] in GONE}
        assert not given_up
        assert not set(accounts) - alive, "the server has ended grants"


@contextlib.asynccontextmanager
async def trial(
    server: Any,
    store: Any,
    folder: Path,
    *names: str,
    seed: int = 1,
    nodes: int = 2,
    of_each: Any = None,
    **settings: Any,
) -> AsyncIterator[Trial]:
    """
    Nodes that run, with providers of these names, which are all the same server; ``settings``: of
    each of them.
    """
    with reverse_proxy(server, seed) as proxy:
        settings = {"rotation": "single_use", **settings}
        urls = [f"{proxy.url}/{name}/token" for name in names]
        chosen = [
            provider_of(server, name, token_url=url, **settings)
            for name, url in zip(names, urls, strict=True)
        ]
        async with contextlib.AsyncExitStack() as stack:
            sides = []
            for number in range(nodes):
                home = folder / f"n{number}"
                if number:  # One vault for all of them.
                    shutil.copytree(folder / "n0" / "secrets", home / "secrets")
                made = harness.node(
                    store,
                    home,
                    chosen[0],
                    f"n{number}",
                    more=chosen[1:],
                    nodes=lambda: nodes,
                    **(of_each or {}),
                )
                sides.append(await stack.enter_async_context(made))
            yield Trial(server, proxy, sides)


async def passed(seconds: float) -> None:
    """Let a scene go on for so long: the length of an incident, or what is looked at."""
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        await asyncio.sleep(left_s)
