"""Providers that are put while nodes run: the same on all nodes, and sealed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import answer_within, pools_of, vault_of
from support.providers.scripted_provider import ScriptedProvider, scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config import stored_provider
from tidewarden.config.settings import Config, Limits, Tokens
from tidewarden.errors import BadArg, Exists, Full, NotFound, TooBig
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.custody import key_sync, stored_providers
from tidewarden.tokens.vault import provider_records
from tidewarden.tokens.vault.vault import key_id_of
from tidewarden.user_limits import ACTING

DUE = {"refresh_token": "a.0", "access_token": "old", "expires_in": 1}
KEY = f"{prefix_of('t', provider_records.QUEUE, 0)}:providers"
VAULT_KEY = base64.b64encode(os.urandom(32)).decode()
SECRET = "a-very-secret-word"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_providers, "LOOK_S", 0.02)
    monkeypatch.setattr(key_sync, "LOOK_S", 0.02)


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedProvider]:
    async with scripted_provider() as made:
        yield made


def document(url: str, **more: Any) -> bytes:
    settings = {"token_url": url, "client_id": "c1", "client_secret": SECRET, **more}
    return json.dumps(settings).encode()


@contextlib.asynccontextmanager
async def nodes(
    valkey: Any, folder: Path, endpoint: ScriptedProvider, count: int = 2
) -> AsyncIterator[list[harness.Side]]:
    key = VAULT_KEY
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(node(valkey, folder, endpoint, f"n{number}", key=key))
            for number in range(count)
        ]


@contextlib.asynccontextmanager
async def node(
    valkey: Any,
    folder: Path,
    endpoint: ScriptedProvider,
    name: str,
    chosen: Any = None,
    key: str = "",
    networks: tuple[str, ...] = ("127.0.0.0/8",),
) -> AsyncIterator[harness.Side]:
    (folder / name / "secrets").mkdir(parents=True, exist_ok=True)
    if key:
        (folder / name / "secrets" / "vault.key").write_text(key)
    chosen = chosen or harness.provider(endpoint.url)
    sections = {"tokens": Tokens(put_networks=networks)}
    async with harness.node(valkey, folder / name, chosen, name, sections=sections) as side:
        yield side


async def test_what_a_node_does_not_allow_is_not_in_force_there(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        nodes(valkey, tmp_path, endpoint, 1) as (one,),
        node(valkey, tmp_path, endpoint, "n9", key=VAULT_KEY, networks=()) as other,
    ):
        with pytest.raises(BadArg, match="token_url: found an address that is not public, which"):
            await other.tokens.stored_providers.put("q", document(endpoint.url))
        await one.tokens.stored_providers.put("q", document(endpoint.url))
        told = await other.tokens.stored_providers.one("q")
        assert "found an address that is not public" in told["fault"]
        assert "q" not in pools_of(other.tokens)
        assert "not in force here: q: providers.q.token_url: found an address" in caplog.text


async def test_a_provider_is_put_at_one_node_and_in_force_on_all(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    async with nodes(valkey, tmp_path, endpoint) as (one, two):
        told = await one.tokens.stored_providers.put("q", document(endpoint.url))
        assert told["settings"] == {
            "token_url": endpoint.url,
            "client_id": "c1",
            "client_secret": "set",
        }
        assert (told["provider"], told["fault"]) == ("q", "")
        await one.tokens.put("q/a", DUE)
        await eventually(lambda: "q" in pools_of(two.tokens))
        assert await two.tokens.stored_providers.all() == [told]
        assert (await two.tokens.get("q/a", 9000, 20_000)).generation >= 2
        pool = pools_of(two.tokens)["p"]
        await two.tokens.stored_providers.put("q", document(endpoint.url, margin_s=7))
        await eventually(lambda: pools_of(one.tokens)["q"].limits.provider.margin_s == 7)
        assert pools_of(two.tokens)["p"] is pool
        assert await one.tokens.stored_providers.remove("q")
        assert not await one.tokens.stored_providers.remove("q")
        await eventually(lambda: "q" not in pools_of(two.tokens))
        for side in (one, two):
            with pytest.raises(NotFound, match="its accounts are kept, and not refreshed until"):
                await side.tokens.get("q/a")
            with pytest.raises(NotFound, match="'q' that was put: nobody put one"):
                await side.tokens.stored_providers.one("q")


async def test_a_node_that_starts_reads_it_and_nothing_of_it_lies_open(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    async with nodes(valkey, tmp_path, endpoint, 1) as (one,):
        await one.tokens.stored_providers.put("q", document(endpoint.url, client_id="a-client"))
        raw = b"".join(await one.link.call("HGETALL", KEY))
        assert len(raw) > 100
        assert not [w for w in (SECRET, endpoint.url, "a-client") if w.encode() in raw]
    async with node(valkey, tmp_path, endpoint, "n0") as again:
        assert set(pools_of(again.tokens)) == {"p", "q"}
        await again.tokens.put("q/a", DUE)
        await eventually(lambda: endpoint.requests["a.0"])
        assert pools_of(again.tokens)["q"].limits.provider.client_secret.reveal() == SECRET


async def test_what_the_configuration_file_has_counts(
    valkey: Any,
    tmp_path: Path,
    endpoint: ScriptedProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    of_file = harness.provider(endpoint.url)
    async with nodes(valkey, tmp_path, endpoint, 1) as (one,):
        stored = one.tokens.stored_providers
        with pytest.raises(Exists, match="'p' is in the configuration file: change it there"):
            await stored.put("p", document(endpoint.url))
        with pytest.raises(NotFound, match="'p' that was put: it is in the configuration file"):
            await stored.one("p")
        one.tokens.change(Config())  # as by SIGHUP
        await stored.put("p", document(endpoint.url))
        assert pools_of(one.tokens)["p"].limits.provider.client_id == "c1"
        with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
            for _ in range(2):
                one.tokens.change(Config(providers={"p": of_file}))
        assert caplog.text.count("not in force here: p: it is in the configuration file") == 1
        assert pools_of(one.tokens)["p"].limits.provider is of_file
        (told,) = await stored.all()
        assert told["fault"].startswith("it is in the configuration file of this node")
        one.tokens.change(Config())
        assert pools_of(one.tokens)["p"].limits.provider.client_id == "c1"


async def test_limits(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_records, "RECORDS_MAX", 2)
    async with nodes(valkey, tmp_path, endpoint, 1) as (one,):
        stored = one.tokens.stored_providers
        for name in ("a", "b", "a"):
            await stored.put(name, document(endpoint.url))
        with pytest.raises(Full, match="there are 2 providers that were put, the most"):
            await stored.put("c", document(endpoint.url))
        with pytest.raises(TooBig, match="16384 bytes"):
            await stored.put("a", document(endpoint.url, scope="x" * 16_384))
        with pytest.raises(BadArg, match="client_id: missing"):
            await stored.put("a", b'{"token_url": "https://x/t", "client_secret": "s"}')
        assert [one["provider"] for one in await stored.all()] == ["a", "b"]
        await stored.remove("b")
        await stored.put("c", document(endpoint.url))
        assert set(pools_of(one.tokens)) == {"p", "a", "c"}


async def test_what_did_not_change_is_not_read_again(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one user's many providers hold up every node whenever one of them is put."""
    read: list[str] = []

    def provider_from(name: str, *rest: Any) -> Any:
        read.append(name)
        return stored_provider.provider_from(name, *rest)

    monkeypatch.setattr(stored_providers, "provider_from", provider_from)
    async with nodes(valkey, tmp_path, endpoint) as (one, other):
        stored = one.tokens.stored_providers
        for name in ("a", "b"):
            await stored.put(name, document(endpoint.url))
        await eventually(lambda: pools_of(other.tokens).keys() >= {"a", "b"})
        read.clear()
        await stored.put("b", document(endpoint.url, margin_s=7))
        await eventually(lambda: pools_of(other.tokens)["b"].limits.provider.margin_s == 7)
        assert set(read) == {"b"}


@pytest.fixture
def acting() -> Iterator[Callable[[str], object]]:
    """Sets for whom the test works; nobody afterwards."""
    yield ACTING.set
    ACTING.set("")


async def test_a_user_puts_its_share_of_providers_and_no_more(
    valkey: Any,
    tmp_path: Path,
    endpoint: ScriptedProvider,
    monkeypatch: pytest.MonkeyPatch,
    acting: Any,
) -> None:
    monkeypatch.setattr(provider_records, "RECORDS_MAX", 10)
    async with nodes(valkey, tmp_path, endpoint, 1) as (one,):
        stored, there = one.tokens.stored_providers, one.queues.catalog.names
        one.queues.user_limits.follow(["eve", "bob"])
        acting("eve")
        for n in range(8):
            await stored.put(f"eve{n}", document(endpoint.url))
        before = await there()
        with pytest.raises(Full) as told:
            await stored.put("eve8", document(endpoint.url))
        assert str(told.value) == (
            "the user eve has made 8 providers, where 2 of 10 (as many as may be put) are free: the"
            " rest is for others (limits.user_share)"
        )
        assert await there() == before, "what is refused leaves no queue"
        await stored.put("eve0", document(endpoint.url, client_secret="another"))  # it is there
        acting("bob")
        await stored.put("bob0", document(endpoint.url))
        await stored.remove("eve1")
        acting("eve")
        await stored.put("eve8", document(endpoint.url))


async def test_the_queues_of_what_a_user_puts_are_of_its_share(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider, acting: Any
) -> None:
    """Each provider and each of its client ids has a queue, which stays, of 16 shards."""
    sections = {
        "limits": Limits(queues_max=20),
        "tokens": Tokens(put_networks=("127.0.0.0/8",)),
    }
    async with harness.node(
        valkey, tmp_path, harness.provider(endpoint.url), sections=sections
    ) as one:
        stored, there = one.tokens.stored_providers, one.queues.catalog.names
        one.queues.user_limits.follow(["eve", "bob"])
        acting("eve")

        async def put_ever_new() -> None:
            for n in range(20):
                await stored.put("eve", document(endpoint.url, client_id=f"c{n}"))

        with pytest.raises(Full, match=r"eve has made \d+ queues, .*\(limits\.queues_max\) are"):
            await put_ever_new()
        assert 10 < len(await there()) < 20
        before = await there()
        with pytest.raises(Full, match=r"limits\.user_share"):
            await stored.put("eve2", document(endpoint.url))
        assert [one["provider"] for one in await stored.all()] == ["eve"]
        assert await there() == before
        acting("bob")
        await stored.put("bob", document(endpoint.url))


@pytest.mark.thorough
async def test_a_rotation_seals_them_anew_and_drops_no_key_that_is_needed(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    async with nodes(valkey, tmp_path, endpoint) as (one, two):
        for side in (one, two):
            answer_within(side.tokens.custody.rotator, 5.0)
        stored = one.tokens.stored_providers
        for name in ("a", "b"):
            await stored.put(name, document(endpoint.url))

        async def rotated() -> Any:
            await one.tokens.custody.rotate()

            async def ended() -> Any:
                found = (await one.tokens.custody.status())["rotation"]
                return found if found["state"] == "done" else None

            return await eventually(ended)

        for _ in range(3):
            found = await rotated()
            raws = await one.link.call("HMGET", KEY, "a", "b")
            assert {key_id_of(bytes(raw)[8:]) for raw in raws} == {found["key"]}
            assert found["unreadable"] == 0
        assert found["dropped"] >= 1
        assert [told["fault"] for told in await two.tokens.stored_providers.all()] == ["", ""]
        async with node(valkey, tmp_path, endpoint, "n0") as again:
            assert set(pools_of(again.tokens)) == {"p", "a", "b"}
        # One that is damaged keeps every key, and is shown as what it is.
        raw = bytes((await one.link.call("HMGET", KEY, "b"))[0])
        await one.link.call("HSET", KEY, "b", raw[:-1] + bytes([raw[-1] ^ 1]), "", "7")
        found = await rotated()
        assert (found["unreadable"], found["dropped"]) == (1, 0)
        faults = {told["provider"]: told["fault"] for told in await stored.all()}
        assert faults["a"] == ""
        assert "does not open here" in faults["b"]
        assert set(pools_of(one.tokens)) == {"p", "a"}


async def test_one_that_is_put_while_it_is_sealed_anew_stays(
    valkey: Any, tmp_path: Path, endpoint: ScriptedProvider
) -> None:
    """And one that is moved under another name does not open."""
    async with nodes(valkey, tmp_path, endpoint, 1) as (one,):
        await one.tokens.stored_providers.put("a", document(endpoint.url))
        vault = vault_of(one.tokens)
        between = asyncio.Event()

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            if name == "tokens.provider_change" and not between.is_set():
                between.set()
                await one.tokens.stored_providers.put("a", document(endpoint.url, margin_s=9))
            return await one.queues.scripts.run(name, queue, shard, args)

        records = provider_records.ProviderRecords(script, vault, harness.SystemClock())
        await vault.add_data_key(vault.next_id())
        assert await records.reseal() == (0, 0)
        assert between.is_set()
        told = await one.tokens.stored_providers.one("a")
        assert told["settings"]["margin_s"] == 9
        (raw,) = await one.link.call("HMGET", KEY, "a")
        await one.link.call("HSET", KEY, "other", raw, "", "8")
        faults = [told["fault"] for told in await one.tokens.stored_providers.all()]
        assert faults[0] == ""
        assert "does not open here" in faults[1]
