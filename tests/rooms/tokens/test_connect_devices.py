"""Consents on other devices (RFC 8628): asked for until they are there, by whichever node lives."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import accounts_of, journal_of
from support.providers.consenting_provider import ConsentingProvider, consenting_provider
from support.providers.scripted_provider import answers, cut
from support.tokens import harness
from support.tokens.consents import QUEUE, Place, place
from support.tokens.harness import eventually

from tidewarden.config.load import Connect, Secret
from tidewarden.errors import BadArg, StoreDown, Timeout
from tidewarden.queue.partitioning import prefix_of
from tidewarden.tokens.connect import device_codes, devices, given_grants
from tidewarden.tokens.custody import stored_providers

TWO_SECRETS = {"client_secret": Secret("old-secret"), "next_secret": Secret("cl-secret")}


@pytest.fixture
async def there(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConsentingProvider]:
    monkeypatch.setattr(devices, "SLOWER_S", 0.05)
    monkeypatch.setattr(device_codes, "INTERVAL_MIN_S", 0.0)
    async with consenting_provider() as made:
        yield made


async def started(made: Place, **asked: Any) -> Any:
    return await made.tokens.devices.start("p/ada", **{"scope": "read write"} | asked)


async def over(made: Place) -> bool:
    """Whether no consent on a device is waited for."""
    queues = made.sides[0].queues
    if not await queues.catalog.exists(devices.QUEUE):
        return True
    return (await queues.admin.stats(devices.QUEUE))["total"] == 0


def told(caplog: pytest.LogCaptureFixture) -> str:
    """How the consent ended, by the log."""
    lines = [one.getMessage() for one in caplog.records if "on a device: " in one.getMessage()]
    return lines[-1].partition("on a device: ")[2].partition(" ")[0] if lines else ""


async def test_a_consent_on_another_device_becomes_an_account(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """No public address is needed for it."""
    url = f"{there.url}/device"
    async with place(valkey, tmp_path, there, connect=Connect(), device_url=url) as made:
        link = await started(made)
        assert (link.user_code, link.verification_uri) == ("WDJB-MJHT", url)
        await eventually(lambda: len(there.forms) >= 3)
        assert await made.row() is None
        (code,) = there.devices
        assert {form["device_code"] for form in there.forms} == {code}
        kept = made.sides[0].link.call("KEYS", "*")
        raw = [await made.sides[0].link.call("DUMP", key) for key in await kept]
        assert not [one for one in raw if one and code.encode() in one], "it lies sealed"
        there.answer_devices()
        await eventually(made.row)
        assert (await made.tokens.get("p/ada")).access_token == "at-ada-1"
        assert (await made.row()).scope == "read write"
        assert [kind for kind, _ in await made.events()] == ["account.connected"]
        await eventually(lambda: over(made))


async def test_it_is_asked_on_through_what_tells_nothing(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    slow = answers(400, {"error": "slow_down"})
    there.faults.extend([cut, answers(503, {}), slow, answers(200, "<html>"), answers(429, {})])
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        await started(made)
        there.answer_devices()
        await eventually(made.row)
        assert len(there.forms) == 6


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("access_denied", "denied"),
        ("expired_token", "expired"),
        ("invalid_grant", "refused"),
        ("invalid_client", "refused"),
    ],
)
async def test_it_is_asked_no_more_when_it_came_to_nothing(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    caplog: pytest.LogCaptureFixture,
    error: str,
    word: str,
) -> None:
    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        await started(made)
        there.answer_devices(error)
        await eventually(lambda: told(caplog))
        assert told(caplog) == word
        await eventually(lambda: over(made))
        assert await made.row() is None


async def test_tokens_that_went_with_an_answer_are_told(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def given_and_cut(request: Any, by: Any, _code: str) -> Any:
        by.devices.clear()
        return await cut(request, by, "")

    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        there.faults.append(given_and_cut)
        await started(made)
        await eventually(lambda: told(caplog))
        assert told(caplog) == "outcome_unknown"


async def test_a_code_has_its_time(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    there.life_s = 0.5
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        await started(made)
        await eventually(lambda: told(caplog))
        assert told(caplog) == "expired"
        await eventually(lambda: over(made))


async def test_another_node_asks_on_when_one_goes(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    url = f"{there.url}/device"
    async with place(valkey, tmp_path, there, "n0", "n1", device_url=url, go=False) as made:
        first, second = made.sides
        first.go()
        await started(made)
        await eventually(lambda: len(there.forms) >= 2)
        await first.tokens.stop()
        second.go()
        before = len(there.forms)
        await eventually(lambda: len(there.forms) > before + 1)
        there.answer_devices()

        async def put() -> Any:
            return (await accounts_of(second.tokens).get(QUEUE, "ada")).row

        await eventually(put)


# --- a code that has given tokens is sent no more


async def away(*_: Any, **__: Any) -> Any:
    raise StoreDown("the store is away")


def losing_acks(queues: Any, monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Have so many acks of codes come to nothing; returns the tasks of those that did."""
    acked, lost = queues.ack, []

    async def ack(session: Any, queue: str, pairs: Any, *more: Any) -> Any:
        if queue == devices.QUEUE and len(lost) < times:
            lost.extend(task_id for task_id, _ in pairs)
            await away()
        return await acked(session, queue, pairs, *more)

    monkeypatch.setattr(queues, "ack", ack)
    return lost


async def test_a_code_that_has_given_tokens_is_sent_no_more(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task comes again, because nobody heard that it is over."""
    monkeypatch.setattr(devices, "LEASE_SLACK_S", 0.2)
    settings = {"device_url": f"{there.url}/device", "timeout_s": 1.0, "connect_timeout_s": 1.0}
    async with place(valkey, tmp_path, there, **settings) as made:
        lost = losing_acks(made.sides[0].queues, monkeypatch, 1)
        await started(made)
        there.answer_devices()
        await eventually(lambda: lost)
        sent = len(there.forms)
        await eventually(lambda: over(made))
        assert len(there.forms) == sent
        assert (await made.row()).grant == 1


@pytest.mark.parametrize("deleted", [False, True])
async def test_another_node_sends_no_code_that_has_given_tokens(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    monkeypatch: pytest.MonkeyPatch,
    deleted: bool,
) -> None:
    """It knows by the account; where that was deleted since, by the deletion."""
    url = f"{there.url}/device"
    async with place(valkey, tmp_path, there, "n0", "n1", device_url=url, go=False) as made:
        first, second = made.sides
        lost = losing_acks(first.queues, monkeypatch, 99)
        await started(made)
        there.answer_devices()
        first.go()
        await eventually(lambda: lost)
        sent = len(there.forms)
        await first.tokens.stop()
        if deleted:
            assert await second.tokens.delete("p/ada")
        second.go()
        await eventually(lambda: over(made))
        assert len(there.forms) == sent
        row = (await accounts_of(second.tokens).get(QUEUE, "ada")).row
        assert (row is None) == deleted


@pytest.mark.thorough
async def test_no_code_is_sent_whose_tokens_wait_in_the_journal(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is started anew meanwhile, so that its journal alone knows. They are put later."""
    url = f"{there.url}/device"
    with monkeypatch.context() as patch:
        patch.setattr(given_grants.Grants, "put_consent", away)
        async with place(valkey, tmp_path, there, device_url=url) as made:
            await made.tokens.put("p/eve", {"refresh_token": "r", "access_token": "a"})
            assert await made.tokens.delete("p/eve"), "a deletion of before"
            lost = losing_acks(made.sides[0].queues, monkeypatch, 99)
            await started(made)
            there.answer_devices()
            await eventually(lambda: lost)
            sent = len(there.forms)
        async with place(valkey, tmp_path, there, device_url=url) as made:
            await eventually(lambda: over(made))
            assert len(there.forms) == sent
            assert len(journal_of(made.tokens).consents()) == 1
            patch.undo()
            await eventually(made.row)


@pytest.mark.parametrize("change", ["put", "deleted"])
async def test_an_account_that_changed_meanwhile_is_asked_for_no_more(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        await made.tokens.put("p/ada", {"refresh_token": "old", "access_token": "a"})
        await started(made)
        await eventually(lambda: there.forms)
        if change == "put":
            await made.tokens.put("p/ada", {"refresh_token": "new", "access_token": "b"})
        else:
            await made.tokens.delete("p/ada")
        await eventually(lambda: told(caplog))
        assert told(caplog) == "link_used"
        await eventually(lambda: over(made))
        assert len(there.devices) == 1, "it gave no tokens"


@pytest.mark.thorough
async def test_no_node_asks_beside_another_that_stops(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    """The answer takes longer than other tasks are given at a node's end."""
    held = asyncio.Event()

    async def slowly(request: Any, by: Any, code: str) -> Any:
        by.forms.pop()
        await held.wait()
        return await by.token(request)

    url = f"{there.url}/device"
    async with place(valkey, tmp_path, there, "n0", "n1", device_url=url, go=False) as made:
        first, second = made.sides
        there.faults.append(slowly)
        first.go()
        await started(made)
        await eventually(lambda: not there.faults)
        there.answer_devices()
        stopping = asyncio.create_task(first.tokens.stop())
        second.go()
        _, still = await asyncio.wait([stopping], timeout=3)
        assert (len(still), len(there.forms)) == (1, 0), "it waits, and nobody asks beside it"
        held.set()
        await stopping
        assert len(there.forms) == 1
        await eventually(lambda: over(made))
        row = (await accounts_of(second.tokens).get(QUEUE, "ada")).row
        assert (row.grant, len(there.forms)) == (1, 1)


async def test_a_code_is_sent_to_no_other_provider_of_that_name(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {
        "token_url": there.token_url,
        "device_url": f"{there.url}/device",
        "client_id": "c0",
        "client_secret": "cl-secret",
        "rotation": "rolling",
    }
    async with (
        consenting_provider() as evil,
        place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made,
    ):
        put = made.tokens.stored_providers.put
        await put("q", json.dumps(settings).encode())
        await made.tokens.devices.start("q/ada")
        await eventually(lambda: there.forms)
        await put("q", json.dumps(settings | {"token_url": evil.token_url}).encode())
        await eventually(lambda: "is another here" in caplog.text)
        asked = len(there.forms)
        there.answer_devices()
        await asyncio.sleep(0.3)
        assert (len(there.forms), evil.forms) == (asked, [])
        assert caplog.text.count("is another here") == 1
        # It had the tokens of nobody, so that it is asked on where its provider is what it was.
        await put("q", json.dumps(settings).encode())
        await eventually(lambda: told(caplog))
        assert (told(caplog), evil.forms) == ("connected", [])


async def test_a_node_that_does_not_know_the_provider_ends_no_consent(
    valkey: Any,
    tmp_path: Path,
    there: ConsentingProvider,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A provider was put at another node, or this one's file has not been read again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(stored_providers, "LOOK_S", 3600.0)
    url = f"{there.url}/device"
    async with place(valkey, tmp_path, there, "n0", "n1", device_url=url, go=False) as made:
        (knows, other) = made.sides
        other.go()
        settings = {
            "token_url": there.token_url,
            "device_url": url,
            "client_id": "c0",
            "client_secret": "cl-secret",
            "rotation": "rolling",
        }
        await knows.tokens.stored_providers.put("q", json.dumps(settings).encode())
        await knows.tokens.devices.start("q/ada")
        await eventually(lambda: "there is no provider 'q'" in caplog.text)
        assert (told(caplog), there.forms) == ("", [])
        there.answer_devices()
        knows.go()
        await eventually(lambda: told(caplog))
        assert told(caplog) == "connected"


# --- many codes, and two secrets


async def test_a_code_that_nobody_types_in_holds_up_no_other(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "AT_ONCE", 1)
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        await made.tokens.devices.start("p/eve", user="eve")
        await eventually(lambda: there.forms)
        (never,) = there.devices
        await started(made, user="ada")
        there.answer_devices()
        there.devices[never]["ended"] = "authorization_pending"
        await eventually(made.row)
        assert await made.row("eve") is None


async def test_codes_are_had_and_asked_for_by_the_secret_that_is_taken(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another one from one moment to the next: what is refused for it used up no code."""
    async with place(
        valkey, tmp_path, there, device_url=f"{there.url}/device", **TWO_SECRETS
    ) as made:
        await started(made)
        await eventually(lambda: there.forms)
        monkeypatch.setattr("support.providers.consenting_provider.CLIENT_SECRET", "old-secret")
        there.answer_devices()
        await eventually(made.row)


async def test_who_consents_has_to_be_the_same(
    valkey: Any, tmp_path: Path, there: ConsentingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with place(valkey, tmp_path, there, device_url=f"{there.url}/device") as made:
        for subject, word in (("ada", "connected"), ("eve", "other_subject")):
            there.subject = subject
            caplog.clear()
            await started(made, scope="openid read")
            there.answer_devices()
            await eventually(lambda: told(caplog))
            assert told(caplog) == word
        assert (await made.row()).details.subject == "ada"


async def test_codes_by_the_issuers_metadata(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    there.metadata = {"device_authorization_endpoint": f"{there.url}/device"}
    async with place(valkey, tmp_path, there, issuer=there.url) as made:
        await started(made)
        there.answer_devices()
        await eventually(made.row)


async def test_codes_that_cannot_be_had(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        with pytest.raises(BadArg, match="p has no device_url, and no issuer whose metadata"):
            await started(made)
    gone = f"{there.url}/nowhere"
    async with place(valkey, tmp_path, there, "n1", device_url=gone) as made:
        with pytest.raises(BadArg, match="p gives no device code: HTTP 404"):
            await started(made)
    away = "http://127.0.0.1:9/device"
    async with place(valkey, tmp_path, there, "n2", device_url=away) as made:
        with pytest.raises(Timeout, match="p cannot be asked: no connection"):
            await started(made)
        assert await over(made)


async def test_where_no_provider_has_codes_no_queue_is_made(
    valkey: Any, tmp_path: Path, there: ConsentingProvider
) -> None:
    async with place(valkey, tmp_path, there) as made:
        await made.tokens.put("p/ada", {"refresh_token": "r", "access_token": "a"})
        assert not await made.sides[0].queues.catalog.exists(devices.QUEUE)
        key = f"{prefix_of('t', devices.QUEUE, 0)}:shard"
        assert not await made.sides[0].link.call("EXISTS", key)
        assert device_codes.INTERVAL_S == 5.0
        assert harness.provider("http://127.0.0.1:9/").device_url == ""
