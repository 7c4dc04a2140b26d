"""What providers gave for consents, from a node's journal to the store: what wins, what is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import journal_of, vault_of
from support.providers.consenting_provider import ConsentingProvider, consenting_provider
from support.tokens import harness
from support.tokens.consents import QUEUE, held_answer, place

from tidewarden.errors import StoreDown, Timeout
from tidewarden.tokens.connect import claims, given_grants
from tidewarden.tokens.connect.claims import Claim
from tidewarden.tokens.vault.vault import Place as SealedPlace

OPENID = {"scope": "openid read"}


@pytest.fixture
async def there() -> AsyncIterator[ConsentingProvider]:
    async with consenting_provider() as made:
        yield made


@pytest.fixture(autouse=True)
def replays_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_grants, "REPLAY_S", 3600.0)


async def away(*_: Any, **__: Any) -> Any:
    raise StoreDown("the store is away")


async def waiting(made: Any, monkeypatch: pytest.MonkeyPatch, account: str = "p/ada") -> None:
    """Consent for an account while the store takes nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(given_grants.Grants, "put_consent", away)
        assert (await made.consent(account))["result"] == "pending"


async def replayed(made: Any) -> list[Any]:
    """Replay; returns what waits after that."""
    await made.tokens.connecting.given.replay()
    return list(journal_of(made.tokens).consents())


# --- an account that was deleted stays so


async def test_what_was_put_and_deleted_is_not_put_again_when_its_end_is_noted(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        with monkeypatch.context() as patch:
            patch.setattr(claims.Claims, "end", away)
            assert (await made.consent())["result"] == "connected"
        assert len(journal_of(made.tokens).consents()) == 1
        await made.tokens.delete("p/ada")
        assert await replayed(made) == []
        assert await made.row() is None


@pytest.mark.parametrize("existed", [False, True])
async def test_what_was_put_and_deleted_while_its_node_was_down_is_not_put_again(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    existed: bool,
) -> None:
    async with place(valkey, tmp_path, there) as made:
        if existed:
            await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        with monkeypatch.context() as patch:
            patch.setattr(claims.Claims, "end", away)
            assert (await made.consent())["result"] == "connected"
        await made.tokens.delete("p/ada")
    async with place(valkey, tmp_path, there, go=False) as made:
        assert len(journal_of(made.tokens).consents()) == 1
        assert await replayed(made) == []
        assert await made.row() is None
        assert "what was given for p/ada is dropped" in caplog.text


async def test_what_was_put_before_its_node_died_is_known_to_be_there(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        browser = made.browser()
        back = await made.left(browser, await made.link())
        with monkeypatch.context() as patch:
            patch.setattr(claims.Claims, "end", away)
            kept = dict(browser.cookies)
            assert (await made.told(browser, back))["result"] == "connected"
    async with place(valkey, tmp_path, there, go=False) as made:
        assert await replayed(made) == []
        assert (await made.row()).grant == 1
        again = made.browser()
        again.cookies = kept
        assert (await made.told(again, back))["result"] == "connected"


async def test_a_deletion_after_another_consent_wins(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await waiting(made, monkeypatch)
        assert (await made.consent())["result"] == "connected"
        await made.tokens.delete("p/ada")
        assert await replayed(made) == []
        assert await made.row() is None


async def test_a_deletion_while_a_code_is_under_way_wins(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    held = held_answer(there)
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        browser = made.browser()
        back = await made.left(browser, await made.link())
        asking = asyncio.create_task(made.told(browser, back))
        await harness.eventually(lambda: not there.faults)
        await made.tokens.delete("p/ada")
        held.set()
        assert (await asking)["error"] == "not_stored"
        assert await made.row() is None


async def test_a_new_account_is_put_whatever_else_is_deleted_meanwhile(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    held = held_answer(there)
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/other", {"refresh_token": "old", "access_token": "a"})
        browser = made.browser()
        back = await made.left(browser, await made.link())
        asking = asyncio.create_task(made.told(browser, back))
        await harness.eventually(lambda: not there.faults)
        await made.tokens.delete("p/other")
        held.set()
        assert (await asking)["result"] == "connected"
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-1"


# --- of two consents one is put


async def test_of_two_that_wait_the_later_is_put(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await waiting(made, monkeypatch)
        await waiting(made, monkeypatch)
        assert await replayed(made) == []
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-2"


async def test_while_the_later_has_to_wait_the_earlier_does_too(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await waiting(made, monkeypatch)
        await waiting(made, monkeypatch)
        real, tries = given_grants.Grants.put_consent, []

        async def once(*args: Any) -> Any:
            tries.append(args)
            if len(tries) == 1:
                raise Timeout("it changed too often")
            return await real(*args)

        monkeypatch.setattr(given_grants.Grants, "put_consent", once)
        assert len(await replayed(made)) == 2
        assert await replayed(made) == []
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-2"


@pytest.mark.parametrize("links", [1, 2])
async def test_of_two_persons_at_once_the_first_has_the_new_account(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, links: int
) -> None:
    async with place(valkey, tmp_path, there) as made:
        link = await made.link(**OPENID)
        ada, eve = made.browser(), made.browser()
        back_of_ada = await made.left(ada, link)
        there.subject = "eve"
        back_of_eve = await made.left(eve, link if links == 1 else await made.link(**OPENID))
        held = held_answer(there)
        asking = asyncio.create_task(made.told(eve, back_of_eve))
        await harness.eventually(lambda: not there.faults)
        assert (await made.told(ada, back_of_ada))["result"] == "connected"
        held.set()
        assert (await asking)["error"] == "not_stored"
        assert (await made.row()).details.subject == "ada"


async def test_what_waits_is_not_put_over_somebody_else(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account has the same grant still; by now it is known whose that is."""
    same = {"refresh_token": "old", "access_token": "a"}
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", same)
        browser = made.browser()
        back = await made.left(browser, await made.link(**OPENID))
        kept = dict(browser.cookies)
        with monkeypatch.context() as patch:
            patch.setattr(given_grants.Grants, "put_consent", away)
            assert (await made.told(browser, back))["result"] == "pending"
        await made.tokens.put("p/ada", same | {"subject": "eve"})
        assert await replayed(made) == []
        row = await made.row()
        assert (row.grant, row.details.subject) == (1, "eve")
        browser.cookies = kept
        assert (await made.told(browser, back))["error"] == "other_subject"


async def test_what_was_dropped_is_not_told_as_connected(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        browser, link = made.browser(), await made.link()
        back = await made.left(browser, link)
        with monkeypatch.context() as patch:
            patch.setattr(given_grants.Grants, "put_consent", away)
            assert (await made.told(browser, back))["result"] == "pending"
        await made.tokens.delete("p/ada")
        assert await replayed(made) == []
        # The browser has its cookie still, to hear how it ended.
        assert (await made.told(browser, back))["error"] == "not_stored"
        again = made.browser()
        assert (await made.told(again, await made.left(again, link)))["result"] == "connected"


# --- what cannot be put


async def test_one_account_that_takes_nothing_holds_up_no_other(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with place(valkey, tmp_path, there) as made:
        for account in ("p/good", "p/bad", "p/well"):
            await waiting(made, monkeypatch, account)
        real = given_grants.Grants.put_consent

        async def some(self: Any, provider: Any, queue: str, name: str, *args: Any) -> Any:
            if name == "bad":
                raise Timeout("it changed too often")
            return await real(self, provider, queue, name, *args)

        monkeypatch.setattr(given_grants.Grants, "put_consent", some)
        for _ in range(3):
            (left,) = await replayed(made)
        assert left.account == "bad"
        assert await made.row("good") is not None
        assert await made.row("well") is not None
        assert caplog.text.count("a consent of bad waits in the journal") == 1


async def test_a_store_that_is_away_is_asked_once(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        for account in ("p/ada", "p/bob"):
            await waiting(made, monkeypatch, account)
        asked = []

        async def gone(*args: Any) -> Any:
            asked.append(args)
            raise StoreDown("the store is away")

        monkeypatch.setattr(given_grants.Grants, "put_consent", gone)
        assert len(await replayed(made)) == 2
        assert len(asked) == 1


async def test_what_does_not_open_is_kept_and_said_once(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async with place(valkey, tmp_path, there) as made:
        journal, vault = journal_of(made.tokens), vault_of(made.tokens)
        sealed = vault.seal(b"{}", SealedPlace("p", "other", "consent", 0, 0))
        odd = vault.seal(b"[", SealedPlace("p", "eve", "consent", 0, 0))
        key = vault.wrapped_key(sealed)
        claim: Claim = ("s:x", "l:x")
        await journal.add_consent(QUEUE, "ada", (0, 0), sealed, claim, key)
        await journal.add_consent(QUEUE, "eve", (0, 0), odd, claim, key)
        await journal.add_consent("_tokens:gone:c0", "ada", (0, 0), sealed, claim, key)
        for _ in range(3):
            assert len(await replayed(made)) == 3
        lines = [one.getMessage() for one in caplog.records if "in the journal" in one.getMessage()]
        assert len(lines) == 3
        assert any("its provider is not configured here" in line for line in lines)


async def test_what_waits_is_counted(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await waiting(made, monkeypatch)
        assert made.tokens.metrics()["journal_pending"] == 1
        assert await replayed(made) == []
        assert made.tokens.metrics()["journal_pending"] == 0


async def test_what_a_replay_finds_stored_meanwhile_is_left_alone(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there) as made:
        await waiting(made, monkeypatch, "p/ada")
        await waiting(made, monkeypatch, "p/bob")
        real, names = given_grants.Grants.put_consent, []

        async def noted(self: Any, provider: Any, queue: str, name: str, *args: Any) -> Any:
            names.append(name)
            if len(names) == 1:  # another replay is through before this one goes on
                await made.tokens.connecting.given.replay()
            return await real(self, provider, queue, name, *args)

        monkeypatch.setattr(given_grants.Grants, "put_consent", noted)
        assert await replayed(made) == []
        assert names.count("ada") == 1
        assert "is dropped" not in caplog.text
