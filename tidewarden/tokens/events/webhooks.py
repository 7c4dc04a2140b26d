"""
Delivers events to webhooks, signed as Standard Webhooks says (standardwebhooks.com, 1.0).

A delivery is a task of ``_webhooks``, in the lane of its webhook, so that one that hangs holds up
no other; whichever node takes it sends it. Anything but 2xx is tried again with a growing pause;
when the tries are used up the task is buried.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Iterable, Mapping

import aiohttp
import msgspec

from tidewarden.bounded_connector import BoundedConnector
from tidewarden.clock import Clock
from tidewarden.config.load import Secret, Webhook
from tidewarden.histograms import WEBHOOKS, Family
from tidewarden.log import OncePer
from tidewarden.queue import Queues, Taken
from tidewarden.tokens.provider.retry_after_header import retry_after
from tidewarden.tokens.provider.token_endpoint import reason_of
from tidewarden.tracing import client_span, failed

from .events import ATTEMPTS, QUEUE, Delivery
from .queue_worker import QueueWorker

log = logging.getLogger("tidewarden.tokens")

# Of one webhook, as the lanes of the queue have it: so many hold a place each though all receivers
# hang.
AT_ONCE = 4
LEASE_SLACK_S = 15.0
SAY_S = 60.0


def sign(secrets: Iterable[Secret], message_id: str, timestamp_s: int, body: bytes) -> str:
    """
    Return the ``webhook-signature`` of a delivery.

    It is ``v1,`` and the base64 of HMAC-SHA256 over id, time and body, once for each secret.
    """
    content = f"{message_id}.{timestamp_s}.".encode() + body
    signatures = []
    for secret in secrets:
        key = base64.b64decode(secret.reveal().removeprefix("whsec_"))
        signatures.append(
            "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
        )
    return " ".join(signatures)


class Webhooks:
    """
    Delivers for one node. :meth:`run` until cancelled; ``sent`` counts by webhook and outcome.
    """

    def __init__(self, queues: Queues, webhooks: Mapping[str, Webhook], clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        self._worker = QueueWorker(queues, QUEUE, clock, at_once=0, lease_ms=0)
        self._session = self._worker.session
        self._complaints: dict[str, OncePer] = {}
        self._webhooks: Mapping[str, Webhook] = {}
        self.sent: Counter[tuple[str, str]] = Counter()
        self.times = Family(WEBHOOKS)
        self.change(webhooks)

    def change(self, webhooks: Mapping[str, Webhook]) -> None:
        """Use these webhooks; a delivery under way ends as it began."""
        longest_s = max((hook.timeout_s for hook in webhooks.values()), default=0.0) + LEASE_SLACK_S
        self._webhooks = webhooks
        self._complaints = {name: OncePer(self._clock, SAY_S) for name in webhooks}
        self._worker.resize(AT_ONCE * len(webhooks), int(longest_s * 1000))

    async def run(self) -> None:
        """Deliver queued events, for ever."""
        # as many connections as deliveries are under way
        connector = BoundedConnector(limit=0, ttl_dns_cache=30)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as client:
            await self._worker.run(lambda task: self._deliver(client, task))

    async def _deliver(self, client: aiohttp.ClientSession, task: Taken) -> None:
        delivery = msgspec.json.decode(task.payload, type=Delivery)
        name = delivery.webhook
        hook = self._webhooks.get(name)
        if hook is None:
            self.sent[name, "unknown"] += 1
            await self._queues.fail(
                self._session, QUEUE, task.id, task.lease, reason="no such webhook here"
            )
            return
        about: dict[str, str | int] = {
            "tidewarden.webhook": name,
            "tidewarden.event": delivery.event,
            "tidewarden.attempt": task.attempt,
        }
        began = self._clock.monotonic()
        with client_span(f"webhook {name}", about) as span:
            fault, pause_s = await self._post(client, hook, delivery)
            if fault:
                failed(span, fault)
        outcome = "failed" if fault else "delivered"
        self.sent[name, outcome] += 1
        self.times.of(name, outcome).observe(self._clock.monotonic() - began)
        if not fault:
            await self._queues.ack(self._session, QUEUE, [(task.id, task.lease)])
            return
        self._say(name, delivery.event, task.attempt, fault)
        delay_ms = int(pause_s * 1000) if pause_s else None
        await self._queues.fail(self._session, QUEUE, task.id, task.lease, delay_ms, reason=fault)

    def _say(self, name: str, event: str, attempt: int, fault: str) -> None:
        """Log each delivery that is given up, and the first other failure of each minute."""
        if attempt >= ATTEMPTS:
            log.error(
                "webhook %s: event %s is not delivered after %d tries, and buried: %s",
                name,
                event,
                attempt,
                fault,
            )
        elif name in self._complaints and self._complaints[name].passes():
            log.warning(
                "webhook %s does not take events (%s): event %s, try %d of %d; tried again by"
                " itself, for a minute nothing more is said",
                name,
                fault,
                event,
                attempt,
                ATTEMPTS,
            )

    async def _post(
        self, client: aiohttp.ClientSession, hook: Webhook, delivery: Delivery
    ) -> tuple[str, float | None]:
        """
        Post an event to its receiver.

        Returns what went wrong, empty if nothing did, and how many seconds the receiver asked us to
        wait.
        """
        body, now_s = delivery.body.encode(), self._clock.unix_ms() // 1000
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tidewarden",
            "webhook-id": delivery.event,
            "webhook-timestamp": str(now_s),
            "webhook-signature": sign(hook.secrets, delivery.event, now_s, body),
        }
        try:
            async with (
                asyncio.timeout(hook.timeout_s),
                client.post(
                    hook.url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if 200 <= response.status < 300:
                    return "", None
                told = {name.lower(): value for name, value in response.headers.items()}
                return f"HTTP {response.status}", retry_after(told, self._clock.unix_ms())
        except TimeoutError:
            return f"no answer within {hook.timeout_s:g} s", None
        except aiohttp.ClientConnectorError as error:
            return f"no connection: {reason_of(error.os_error, type(error).__name__)}", None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may quote the address, which may hold a secret.
            return type(error).__name__, None
