"""
The refreshers against a real store and a token endpoint over HTTP: what survives which failure.

Each failure is told step by step in ``transcripts/refresh``; here is what else must hold.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from support.inspect import (
    accounts_of,
    journal_of,
    note_outcome,
    owed_of,
    pools_of,
    refresher_of,
    vault_of,
)
from support.providers.scripted_provider import answers, cut, rotate_and_cut, scripted_provider
from support.tokens import harness
from support.tokens.harness import described, eventually, in_state

from tidewarden import errors
from tidewarden.queue import Taken
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import Opened
from tidewarden.tokens.provider.token_response import Verdict
from tidewarden.tokens.refresh.refresher import _ended
from tidewarden.tokens.vault.vault import Place, Unsealable

SOON_S = 0.005
"""
Between the first refusal and the second; what else concerns giving up follows from it: a day is 0.7
s.
"""


@pytest.mark.usefixtures("short_lives")
async def test_a_token_is_refreshed_again_and_again_before_it_expires(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(life_s=0.6) as endpoint:
        chosen = harness.provider(endpoint.url, margin_s=0.2)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.current.get("a", 0) >= 4)
    assert max(endpoint.requests.values()) == 1


@pytest.mark.parametrize("life_s", [0, -1, 1])
async def test_a_token_that_is_over_at_once_is_told_and_not_served(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, life_s: int
) -> None:
    async with scripted_provider(life_s=life_s) as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path, chosen) as side:
            for name in ("a", "b"):
                await side.tokens.put(f"p/{name}", {"refresh_token": f"{name}.0"})
            found = await in_state(side, "late")
            assert found["due_ms"] - found["stored_ms"] == 10_000
            with pytest.raises(errors.Timeout):
                await side.tokens.get("p/a")
            await eventually(lambda: side.tokens.metrics()["short_lives"] == {"p": 2})
            story = await side.tokens.why("p/a")
            assert "10 s" in str(story["concluded"])
    assert caplog.text.count("access tokens of p live for") == 1


async def test_an_account_goes_by_the_name_that_its_identity_provider_gave(
    valkey: Any, tmp_path: Path
) -> None:
    name = "p/auth0|o'brien+müller@bücher.example?#%,"
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        await side.tokens.put(name, {"refresh_token": "a.0"})
        assert (await side.tokens.get(name, wait_ms=60_000)).generation == 2
        entries, _ = await side.tokens.list()
        assert [entry["account"] for entry in entries] == [name]
        assert await side.tokens.delete(name)


async def test_503_and_retry_after_are_waited_for(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(answers(503, {"error": "temporarily_unavailable"}, Retry_After="1"))
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            began = asyncio.get_running_loop().time()
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            failing = await in_state(side, "failing")
            assert (failing["error"], failing["message"]) == (
                "unavailable",
                "HTTP 503 temporarily_unavailable",
            )
            await in_state(side, "fresh")
            assert asyncio.get_running_loop().time() - began >= 1
            assert side.tokens.metrics()["refreshes"] == {("p", "unavailable"): 1, ("p", "ok"): 1}


async def test_refusals_that_lie_apart_end_an_account_and_it_is_kept(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.current["a"] = 5
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), confirm_s=0.4
        ) as side:
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            await in_state(side, "fresh", "p/b")
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.requests["a.0"] == 2)
            # Another account of the client is refreshed well meanwhile.
            await side.tokens.refresh("p/b")
            dead = await in_state(side, "dead")
            assert dead["error"] == "invalid_grant"
            assert endpoint.requests["a.0"] == 3
            assert (await side.queues.admin.stats("_tokens:p:c0"))["total"] == 1
            # A new consent brings it back.
            await side.tokens.put("p/a", {"refresh_token": "a.5"})
            assert (await in_state(side, "fresh"))["grant"] == 2


async def test_a_reset_is_tried_again_at_once_where_that_is_safe(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(cut)
        chosen = harness.provider(endpoint.url, rotation="rolling")
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            token = await side.tokens.get("p/a", wait_ms=60_000)
            assert token.access_token == "secret-access-a-1"
    assert endpoint.requests["a.0"] == 2


async def test_a_lost_answer_is_asked_for_again_and_then_reported(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(rotate_and_cut)
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), confirm_s=SOON_S
        ) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            dead = await in_state(side, "lost_rotation")
            assert dead["error"] == "lost_rotation"
            assert side.tokens.metrics()["lost_rotations"] == 1
    assert endpoint.requests["a.0"] >= 4
    assert "p/a lost_rotation: an earlier refresh" in caplog.text


async def test_html_in_a_200_is_kept_for_whoever_has_to_look(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(answers(200, "<html>your token is secret-html</html>"))
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "fresh")
            raws = journal_of(side.tokens).raws()
            assert [(raw.account, raw.generation) for raw in raws] == [("a", 1)]
            place = Place("p", "a", "raw", 1, 1)
            assert b"secret-html" in await vault_of(side.tokens).unseal(raws[0].body, place)
            assert b"secret-html" not in (tmp_path / "tokens.journal").read_bytes()
            # So is an answer with an access token that does, and a refresh token that does not.
            endpoint.faults.append(
                answers(200, {"access_token": "secret-half", "refresh_token": {"value": "b.1"}})
            )
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            assert (await side.tokens.get("p/b", wait_ms=20_000)).access_token == "secret-half"
            body = await vault_of(side.tokens).unseal(
                journal_of(side.tokens).raws()[1].body, Place("p", "b", "raw", 1, 1)
            )
            assert b"b.1" in body


@pytest.mark.parametrize(
    "silent", [False, True], ids=["at once", "after an answer that never came"]
)
async def test_a_refused_row_tries_its_spare(valkey: Any, tmp_path: Path, silent: bool) -> None:
    async with scripted_provider() as endpoint:
        endpoint.current = {"a": 0, "old": 9}
        gate = asyncio.Event()

        async def slow(_request: Any, made: Any, token: str) -> Any:
            await gate.wait()
            return made.rotate(token)

        endpoint.faults += [slow, slow, cut] if silent else [slow]
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.requests["a.0"])
            # While it is under way somebody puts a token that will not do.
            await side.tokens.put("p/a", {"refresh_token": "old.1"})
            gate.set()
            token = await side.tokens.get("p/a", min_ttl_ms=1, wait_ms=10_000)
            assert token.access_token == "secret-access-a-2"
            assert side.tokens.metrics()["spares"] == 1
            assert (await side.tokens.stats())["p"]["spares"] == 0
    assert endpoint.requests == {"a.0": 1, "old.1": 1, "a.1": 1 + silent}


async def test_a_put_during_a_refresh_wins_and_a_refusal_of_the_old_means_nothing(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        gate = asyncio.Event()

        async def refuse(_request: Any, _made: Any, _token: str) -> Any:
            await gate.wait()
            return await answers(400, {"error": "invalid_grant"})(_request, _made, _token)

        endpoint.faults.append(refuse)
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.7"})
            await eventually(lambda: endpoint.requests["a.7"])
            await side.tokens.put("p/a", {"refresh_token": "b.0"})
            gate.set()
            assert (await in_state(side, "fresh"))["grant"] == 2
    assert endpoint.requests == {"a.7": 1, "b.0": 1}


async def test_a_pair_that_does_not_open_says_since_when_and_what_follows(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(rotate_and_cut)
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), confirm_s=SOON_S
        ) as side:
            vault, refused = vault_of(side.tokens), asyncio.Event()
            unseal = vault.unseal

            async def shut(record: bytes, place: Place) -> bytes:
                if endpoint.requests and not refused.is_set():
                    raise Unsealable("p/a refresh: the sealed record does not open here")
                return await unseal(record, place)

            vault.unseal = shut
            await side.tokens.put("p/a", {"refresh_token": "a.0"})

            async def told() -> dict[str, Any] | None:
                entry = await described(side)
                return entry if entry["error"] == "unsealable" else None

            entry = await eventually(told)
            assert entry["since_ms"] > 1_700_000_000_000
            assert entry["next_ms"] > entry["since_ms"]
            refused.set()
            # What was known before is not forgotten: one answer never came.
            await in_state(side, "lost_rotation")


async def test_what_ends_before_the_request_leaves_no_doubt(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):

        async def lacking(_record: bytes, _place: Place) -> bytes:
            raise errors.ConfigError(["vault: a key of another cluster"])

        unseal, vault_of(side.tokens).unseal = vault_of(side.tokens).unseal, lacking
        await side.tokens.put("p/a", {"refresh_token": "a.0"})

        async def closed() -> bool:
            return bool((await side.tokens.stats())["p"]["intents"] == 0)

        await asyncio.sleep(0.2)
        await eventually(closed)
        vault_of(side.tokens).unseal = unseal
        await in_state(side, "fresh")
    assert endpoint.requests == {"a.0": 1}


async def test_expiry_is_reported_as_late(valkey: Any, tmp_path: Path) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        await side.tokens.put(
            "p/a", {"refresh_token": "a.0", "access_token": "x", "expires_at_ms": 1000}
        )
        await in_state(side, "fresh")
        assert side.tokens.metrics()["late"] == {"p": 1}


async def test_no_secret_in_logs_journal_or_store(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_provider() as endpoint:
        endpoint.current = {"sekret-a": 0, "sekret-b": 1}
        endpoint.faults.append(
            answers(
                400,
                {
                    "error": "invalid_grant",
                    "error_description": "bad sekret-b-refresh-token-0123456789",
                },
            )
        )
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), confirm_s=SOON_S
        ) as side:
            await side.tokens.put(
                "p/b", {"refresh_token": "sekret-b.0", "access_token": "sekret-x"}
            )
            await side.tokens.refresh("p/b")
            await in_state(side, "dead", "p/b")
            await side.tokens.put("p/a", {"refresh_token": "sekret-a.0"})
            token = await side.tokens.get("p/a", wait_ms=60_000)
            shown = (
                repr(token)
                + repr(side.tokens.metrics())
                + repr(await side.tokens.list())
                + repr(side.tokens)
            )
            keys = await side.link.call("KEYS", "*")
            stored = b"".join([await side.link.call("DUMP", key) for key in keys])
        journal = (tmp_path / "tokens.journal").read_bytes()
    for secret in ("sekret", "secret-access", "cl-secret"):
        assert secret not in caplog.text
        assert secret not in shown
        assert secret.encode() not in stored + journal


async def test_what_a_provider_quotes_of_our_headers_and_parameters_is_not_shown(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = {
        "error": "invalid_request",
        "error_description": "key hunter2 or member p4ss of json is bad",
    }
    async with scripted_provider() as endpoint:
        endpoint.faults.append(answers(400, said))
        own = {"headers": {"X-Key": "hunter2"}, "parameters": {"api_key": "p4ss", "format": "json"}}
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url, **own)) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            failing = await in_state(side, "failing")
            shown = repr(await side.tokens.why("p/a")) + repr(failing) + caplog.text
    assert failing["message"] == "HTTP 400 invalid_request key … or member … of json is bad"
    assert "hunter2" not in shown
    assert "p4ss" not in shown


async def test_what_is_owed_to_the_store_is_not_taken_for_nothing_that_was_sent(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        refresher = refresher_of(pools_of(side.tokens)["p"])
        first, second = (Taken(refresher.queue, "a", lease, b"", 1, 0, 0) for lease in (1, 2))

        async def missed(*_: Any) -> bool:
            raise errors.NoQuorum("not on enough stores in time")

        with monkeypatch.context() as patch:
            patch.setattr(accounts_of(refresher), "failed", missed)
            assert await note_outcome(
                refresher, first, Step("retry", 1.0, RefreshTroubles(doubts=1))
            )
            assert await note_outcome(refresher, second, Step("hold", 0.0, RefreshTroubles()))
        assert refresher.owing.is_set()
        # Of the second nothing was sent; of the first it may have been.
        assert not refresher.unsent("a")
        owed_of(refresher).pop(0)
        assert refresher.unsent("a")
        assert not refresher.unsent("b")
        await refresher.pay()
        assert not refresher.owing.is_set()


@pytest.mark.parametrize(
    ("outcome", "refusals", "before"),
    [("invalid_grant", 0, True), ("rejected", 0, True), ("invalid_client", 0, True), ("unauthorized_client", 0, True),
     ("unavailable", 1, True), ("unavailable", 0, False), ("rate_limited", 0, False), ("", 0, False)],
)  # fmt: skip
def test_who_was_refused_in_a_quarantine_shows_that_it_is_over(
    outcome: str, refusals: int, before: bool
) -> None:
    """None of the refusals counted: the account is one of the sample all the same."""
    opened = Opened(
        1,
        AccountRow(1, 1, 0, 0, 0, b"", b""),
        RefreshTroubles(outcome=outcome, refusals=refusals),
        None,
        None,
    )
    assert _ended("a", Verdict("ok", "ok", ""), opened).refused_before == before
