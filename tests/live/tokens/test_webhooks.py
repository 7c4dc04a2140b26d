"""Events reach webhooks: signed, again after a failure, once for each webhook."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from support.providers.raw_provider import CONTINUE, Flood, listening
from support.providers.scripted_provider import scripted_provider
from support.providers.webhook_receiver import SECRETS, receiver
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.config.load import Secret, Webhook
from tidewarden.tokens.events import events, queue_worker
from tidewarden.tokens.events.webhooks import sign


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of standardwebhooks.com's reference libraries.
    secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signature = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign([secret, secret], "a", 1, body).count("v1,") == 2
    assert len(base64.b64decode(signature[3:])) == 32


async def test_a_death_and_a_recovery_are_told_once(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BACKOFF_MS", 50)
    async with receiver() as ops, receiver() as deaf, scripted_provider() as endpoint:
        endpoint.current["a"] = 9
        ops.answers.extend([(500, {}), (302, {"Location": "http://127.0.0.1:9/"})])
        hooks = {
            "ops": Webhook("ops", ops.url, ("account.*",), tuple(map(Secret, SECRETS))),
            "deaf": Webhook("deaf", deaf.url, ("provider.*",), tuple(map(Secret, SECRETS))),
        }
        sections = {"webhooks": hooks}
        chosen = harness.provider(endpoint.url)
        async with harness.node(
            valkey, tmp_path, chosen, sections=sections, confirm_s=0.005
        ) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: len(ops.got) == 1)
            message_id, dead = ops.got[0]
            assert (dead["type"], dead["id"]) == ("account.dead", message_id)
            assert dead["data"].pop("tries") >= 3
            assert dead["data"] | {"message": "", "since_ms": 0} == {
                "cluster": "t", "provider": "p", "account": "p/a", "error": "invalid_grant", "message": "", "since_ms": 0,
            }  # fmt: skip
            assert ops.tries == 3
            # A person consents again: that is a recovery, and is told.
            await side.tokens.put(
                "p/a", {"refresh_token": "a.9", "access_token": "x", "expires_in": 3600}
            )
            await eventually(lambda: len(ops.got) == 2)
            assert ops.got[1][1]["type"] == "account.recovered"
            # One that has never failed is none.
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            await eventually(lambda: endpoint.requests["b.0"] == 1)
            await harness.tell(
                side.tokens.events, "provider.breaker_open", "p", error="invalid_client"
            )
            await eventually(lambda: deaf.got)
            assert (len(ops.got), deaf.got[0][1]["type"]) == (2, "provider.breaker_open")
            sent = {("ops", "failed"): 2, ("ops", "delivered"): 2, ("deaf", "delivered"): 1}
            await eventually(lambda: side.tokens.metrics()["webhooks"] == sent)
            metrics = side.tokens.metrics()
            assert metrics["events"]["p", "account.dead"] == 1


async def test_a_webhook_that_answers_without_end_is_cut_off(valkey: Any, tmp_path: Path) -> None:
    """As a provider is: interim answers are kept, however many there are."""
    flood = Flood(b"", CONTINUE * 2000)
    async with listening(flood.serve) as port:
        where = f"http://127.0.0.1:{port}/"
        hooks = {"flood": Webhook("flood", where, ("*",), (Secret(SECRETS[0]),), 600.0)}
        chosen = harness.provider("http://127.0.0.1:9/token")
        async with harness.node(valkey, tmp_path, chosen, sections={"webhooks": hooks}) as side:
            await harness.tell(side.tokens.events, "account.failing", "p", "a")
            async with asyncio.timeout(60):
                await flood.cut_off.wait()


async def test_a_webhook_that_hangs_holds_up_no_other_and_tells_no_address(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "BACKOFF_MS", 50)
    monkeypatch.setattr(queue_worker, "STOP_S", 0.1)
    async with receiver() as ops, receiver() as mute:
        mute.silent = True
        refused = "http://127.0.0.1:9/s3cret"
        mutes = {
            f"mute{at}": Webhook(f"mute{at}", mute.url, ("*",), (Secret(SECRETS[0]),), 600.0)
            for at in range(6)
        }
        hooks = mutes | {
            "gone": Webhook("gone", refused, ("*",), (Secret(SECRETS[0]),)),
            "ops": Webhook("ops", ops.url, ("*",), tuple(map(Secret, SECRETS))),
        }
        chosen = harness.provider("http://127.0.0.1:9/token")
        async with harness.node(valkey, tmp_path, chosen, sections={"webhooks": hooks}) as side:
            for number in range(6):
                await harness.tell(side.tokens.events, "account.failing", "p", f"a{number}")
            await eventually(lambda: mute.tries >= 16)
            await eventually(
                lambda: (
                    len(ops.got) == 6 and side.tokens.metrics()["webhooks"]["gone", "failed"] > 1
                )
            )
    # Twice tried or more, once said.
    assert (
        caplog.text.count(
            "webhook gone does not take events (no connection: Connection refused): event evt_"
        )
        == 1
    )
    assert "s3cret" not in caplog.text
