"""A refresh whose outcome a node does not know: what follows from what the others reply."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from support.inspect import (
    accounts_of,
    answers_of,
    journal_of,
    journal_replay_of,
    under_way_of,
    vault_of,
)
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from support.tokens.peer_doors import door, served

from tidewarden.config.load import Cluster, Config
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import Opened
from tidewarden.tokens.journal.peer_queries import PeerReply
from tidewarden.tokens.refresh import pool as pool_module
from tidewarden.tokens.refresh import refresher as refresher_module
from tidewarden.tokens.refresh import token_request as token_request_module
from tidewarden.tokens.refresh.unknown_outcome import UnknownOutcomes

SECRET = "the cluster's"
# Longest of a refresh, whose lease is waited for: short, but a starved machine has to keep it.
REQUEST_S = 2.0


class Scene:
    """
    Node n0 whose answer does not reach the store, and n1 that finds its intent when its lease is
    over.
    """

    def __init__(self, store: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.folder = store, folder
        monkeypatch.setattr(refresher_module, "LEASE_SLACK_S", 1.4)
        monkeypatch.setattr(token_request_module, "SEND_SLACK_S", 0.3)
        monkeypatch.setattr(pool_module, "STOP_S", 0.0)
        self.doors = contextlib.AsyncExitStack()
        self.held = asyncio.Event()

    @contextlib.asynccontextmanager
    async def stuck(self, chosen: Any, **grant: Any) -> AsyncIterator[Any]:
        """n0, with the answer of ``p/a`` in its journal and no way to the store any more."""
        config = Config(
            cluster=Cluster(name="t", members={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"})
        )
        async with harness.node(
            self.store, self.folder / "a", chosen, "n0", config=config, cluster_secret=SECRET
        ) as one:

            async def away(*_args: Any) -> str:
                self.held.set()
                await asyncio.get_running_loop().create_future()
                return ""

            accounts_of(one.tokens).stored = away
            await one.tokens.put("p/a", {"refresh_token": "a.0", **grant})
            await one.tokens.refresh("p/a")
            await asyncio.wait_for(self.held.wait(), 60)
            yield one

    def other(self, chosen: Any, address: str) -> Any:
        (self.folder / "b").mkdir()
        shutil.copytree(self.folder / "a" / "secrets", self.folder / "b" / "secrets")
        config = Config(cluster=Cluster(name="t", members={"n0": address, "n1": "127.0.0.1:2"}))
        return harness.node(
            self.store, self.folder / "b", chosen, "n1", config=config, cluster_secret=SECRET
        )


@pytest.fixture
def scene(valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(valkey, tmp_path, monkeypatch)


async def entry(side: Any) -> dict[str, Any]:
    entries, _ = await side.tokens.list()
    return dict(entries[0])


async def test_an_answer_in_another_nodes_journal_is_found_there(scene: Scene) -> None:
    """Single use without grace: sent again, it would have ended the grant."""
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1)
        async with (
            scene.stuck(chosen) as one,
            door(one.tokens.answer_peer) as address,
            scene.other(chosen, address) as two,
        ):
            await two.tokens.get("p/a", wait_ms=60_000)
            assert (await two.tokens.get("p/a")).access_token == "secret-access-a-1"
            assert two.tokens.metrics()["adopted"] == 1
    assert endpoint.requests == {"a.0": 1}


async def test_an_answer_found_elsewhere_that_the_store_does_not_take_is_asked_for_again(
    scene: Scene,
) -> None:
    """
    The node that looked for it has written an intent of its own: whose answer it was must not be
    forgotten with that.
    """
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1)
        async with (
            scene.stuck(chosen) as one,
            door(one.tokens.answer_peer) as address,
            scene.other(chosen, address) as two,
        ):
            stored, refused = accounts_of(two.tokens).stored, asyncio.Event()

            async def away_once(*args: Any) -> str:
                if refused.is_set():
                    return await stored(*args)
                refused.set()
                raise StoreDown("it went away just then")

            accounts_of(two.tokens).stored = away_once
            await asyncio.wait_for(refused.wait(), 60)
            assert (await two.tokens.get("p/a", wait_ms=60_000)).access_token == "secret-access-a-1"
    assert endpoint.requests == {"a.0": 1}


async def test_a_doubt_that_is_noted_says_since_when_and_what_follows(scene: Scene) -> None:
    """It was found in an open intent, and then nothing could be sent."""
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1, rotation="none")
        async with scene.stuck(chosen), scene.other(chosen, "127.0.0.1:8") as two:

            async def lacking(*_args: Any) -> bytes:
                raise ConfigError(["vault: a key of another cluster"])

            vault_of(two.tokens).unseal = lacking

            async def noted() -> dict[str, Any] | None:
                found = await entry(two)
                return found if found["state"] == "failing" else None

            found = await harness.eventually(noted)
            assert found["error"] == "unknown"
            assert 1_700_000_000_000 < found["since_ms"] < found["next_ms"]
    assert endpoint.requests == {"a.0": 1}


async def test_a_request_under_way_elsewhere_is_waited_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1)
        async with scene.stuck(chosen) as one:
            answers_of(journal_of(one.tokens)).clear()  # Not written yet: the request hangs.

            async with door(one.tokens.answer_peer) as address, scene.other(chosen, address) as two:

                async def waits() -> bool:
                    return "is asking the provider" in (await entry(two))["message"]

                await harness.eventually(waits)
                assert endpoint.requests == {"a.0": 1}


async def test_one_that_knows_nothing_may_have_stored_it_just_now(scene: Scene) -> None:
    """
    Its answer reaches the store between this node's intent and its question: the row is looked at
    once more.
    """
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1)
        async with scene.stuck(chosen) as one:
            answer = journal_of(one.tokens).pending()[0]

            async def store_first(request: web.Request) -> web.StreamResponse:
                words = (answer.queue, "a", (1, 1), answer.row, answer.due_ms, answer.deadline_ms)
                assert (
                    await harness.AccountStore.stored(accounts_of(one.tokens), *words) == "STORED"
                )
                journal_of(one.tokens).stored(answer)
                under_way_of(journal_replay_of(one.tokens)).asking.clear()
                return web.Response(body=one.tokens.answer_peer(await request.read()))

            async with served(store_first) as address, scene.other(chosen, address) as two:
                assert (
                    await two.tokens.get("p/a", wait_ms=60_000)
                ).access_token == "secret-access-a-1"
                assert two.tokens.metrics()["adopted"] == 0
    assert endpoint.requests == {"a.0": 1}


async def test_while_a_token_lives_a_node_that_does_not_say_is_waited_for(scene: Scene) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=REQUEST_S, refreshers=1)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        async with (
            scene.stuck(chosen, access_token="x", expires_in=3600),
            scene.other(chosen, f"127.0.0.1:{port - 1}") as two,
        ):

            async def waits() -> bool:
                return "n0.1 may hold the answer" in (await entry(two))["message"]

            await harness.eventually(waits)
            found = await entry(two)
            assert found["next_ms"] - found["since_ms"] >= 29_000
            assert (await two.tokens.get("p/a")).access_token == "x"  # It is served on.
    assert endpoint.requests == {"a.0": 1}


@pytest.mark.parametrize("dead", [False, True])
async def test_an_account_that_was_given_up_waits_for_no_node(dead: bool) -> None:
    """
    Its refresh token was refused, so that to send it again spoils nothing; somebody wants it tried,
    or a new pair came.
    """

    async def away(*_args: Any) -> PeerReply:
        return PeerReply("away")

    nothing: Any = SimpleNamespace()
    peers: Any = SimpleNamespace(ask=away)
    chosen = harness.provider("http://127.0.0.1:9/token", rotation="single_use")
    row = AccountRow(1, 2, 1_000, 3_601_000, 3_001_000, b"a" * 8, b"b" * 8)
    opened = Opened(
        2_000, row, RefreshTroubles(dead=dead, doubts=1, doubt_ms=1_000, holder="n0.1"), None, None
    )
    found = await UnknownOutcomes(chosen, "q", "n1", nothing, peers, nothing).resolve("a", opened)
    assert found == "go" if dead else isinstance(found, Step)


async def test_a_previous_token_saves_an_account_within_the_grace(
    valkey: Any, tmp_path: Path
) -> None:
    """
    A provider that rotates once more than we hear of: the stored token is refused, the one before
    still works.
    """
    async with scripted_provider(life_s=3600) as endpoint:
        chosen = harness.provider(endpoint.url, grace_s=7200)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await side.tokens.get("p/a", wait_ms=60_000)
            assert (await side.tokens.stats())["p"]["spares"] == 1
            # It takes the old one within the grace, and knows nothing of the new one.
            endpoint.current["a"] = 0
            await side.tokens.refresh("p/a")

            async def saved() -> bool:
                return bool((await entry(side))["generation"] == 3)

            await harness.eventually(saved)
        endpoint.current["a"] = 5
        async with harness.node(
            valkey, tmp_path, replace(chosen, grace_s=0.0), boot=2, forced_ms=1
        ) as side:
            await side.tokens.refresh("p/a")

            async def refused() -> bool:
                return (await entry(side))["error"] == "invalid_grant"

            await harness.eventually(refused)
            await asyncio.sleep(0.3)
            # Its time is over; nothing is sent in a loop.
            assert (await side.tokens.stats())["p"]["spares"] == 0
    assert endpoint.requests == {"a.0": 2, "a.1": 2}
