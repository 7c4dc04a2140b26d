"""
Lets people consent on another device than the one that asks for it (RFC 8628).

The provider gives two codes. The short one a person types in at the provider's page; by the long
one the provider is asked again and again until the person has done so. The long one lies sealed in
a task of ``_devices``: the node that holds it asks, and if that node dies another one goes on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import sleep
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.queue import Taken
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.events.queue_worker import QueueWorker
from tidewarden.tokens.provider.discovery import NotFoundError
from tidewarden.tokens.provider.token_response import HttpAnswer, classify, rules_of
from tidewarden.tokens.shared_parts import SharedParts
from tidewarden.tokens.vault.vault import Place, Unsealable

from .authorization_request import device_grant, wants_identity
from .device_codes import INTERVAL_MAX_S, SLOWER_S, DeviceCode, poll_of, read_device_code
from .given_grants import GivenGrants
from .granted import check_scope, pair_of, put_fields, subject_of
from .link_checks import check_connectable, check_parameters, check_scope_text
from .outcomes import CONNECTED, PENDING, ConsentFailed

log = logging.getLogger("tidewarden.tokens")

QUEUE = "_devices"
AT_ONCE = 200
"""Consents that one node asks for at a time; each is a request every five seconds."""
LANE_LIMIT = 50
"""Of them, those of one user."""
LEASE_MS = 60_000
LEASE_SLACK_S = 15.0
STOP_S = 13.0


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """Says where a person consents, and until when."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str
    until_ms: int


class DeviceTask(msgspec.Struct, frozen=True, array_like=True):
    """Holds the payload of a task. Fields are added at the end."""

    provider: str
    account: str
    """Its name within the provider."""
    scope: str
    parameters: dict[str, str]
    until_ms: int
    """When the codes expire, unix milliseconds of the node that asked for them."""
    interval_s: float
    sealed: bytes
    """The long code."""

    def __repr__(self) -> str:
        return f"DeviceTask({self.provider}/{self.account})"


class Devices:
    """
    Asks for device codes, and for the tokens of those that a person has typed in.

    :meth:`run` until cancelled; :meth:`stop` waits for what is under way.
    """

    def __init__(self, shared: SharedParts, given: GivenGrants) -> None:
        """Bring by ``given`` to the store what providers give."""
        self._directory = shared.directory
        self._accounts = shared.accounts
        self._queues = shared.queues
        self._vault = shared.vault
        self._endpoint = shared.endpoint
        self._clock = shared.clock
        self._given = given
        self._worker = QueueWorker(shared.queues, QUEUE, shared.clock, at_once=0, lease_ms=LEASE_MS)
        self._polls: set[asyncio.Task[str]] = set()
        self.change(shared.config.providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use these providers; where none may give device codes, none are waited for."""
        may = any(one.device_url or one.issuer for one in providers.values() if one.renews)
        self._worker.resize(AT_ONCE if may else 0, LEASE_MS)

    async def start(
        self,
        account: str,
        scope: str = "",
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> DeviceLink:
        """
        Ask a provider for codes by which somebody consents for an account on another device.

        ``scope`` and ``parameters``: as of a link; ``user``: who asks. Raises: BadArg: the provider
        has no such codes, or refuses them. NotFound: there is no such provider. Timeout: it cannot
        be reached. What the store raises.
        """
        provider, queue, name = self._directory.account(account)
        check_connectable(provider)
        scope = check_scope_text(scope or provider.consent_scope)
        own = await check_parameters(self._accounts, provider, queue, name, parameters)
        code = await self._codes(placeholders.filled(provider, own), scope)
        await self._vault.ready()
        until_ms = self._clock.unix_ms() + int(code.life_s * 1000)
        sealed = self._vault.seal(code.device_code.encode(), _place(provider.name, name))
        task = DeviceTask(provider.name, name, scope, own, until_ms, code.interval_s, sealed)
        await self._queues.put(
            QUEUE,
            TaskSpec(
                msgspec.msgpack.encode(task),
                id=secrets.token_urlsafe(9),
                delay_ms=int(code.interval_s * 1000),
                lane=user or None,
            ),
        )
        return DeviceLink(
            code.user_code, code.verification_uri, code.verification_uri_complete, until_ms
        )

    async def run(self) -> None:
        """Ask for the tokens of device codes, for ever."""
        await self._worker.run(self._settle)

    async def stop(self) -> None:
        """Wait for requests that are under way, in 13 s at most."""
        if self._polls:
            await asyncio.wait(self._polls, timeout=STOP_S)

    async def _codes(self, provider: Provider, scope: str) -> DeviceCode:
        """Ask the provider for codes. Raises: BadArg, Timeout."""
        try:
            url = (await self._endpoint.consent_endpoints(provider)).device
        except NotFoundError as error:
            raise errors.Timeout(f"{provider.name} cannot be asked: {error}; try again") from None
        if not url:
            raise errors.BadArg(
                f"{provider.name} has no device_url, and no issuer whose metadata name one"
            )
        asked = {"client_id": provider.client_id, **({"scope": scope} if scope else {})}
        number = self._endpoint.credentials.order(provider)[0]
        outcome = await self._endpoint.ask_beside(provider, url, asked, number)
        if not isinstance(outcome, HttpAnswer):
            raise errors.Timeout(f"{provider.name} cannot be asked: {outcome.message}; try again")
        try:
            return read_device_code(outcome)
        except ValueError as error:
            raise errors.BadArg(f"{provider.name} gives no device code: {error}") from None

    async def _settle(self, task: Taken) -> None:
        """Ask until it is known how a consent ends; its task is over then."""
        try:
            wanted = msgspec.msgpack.decode(task.payload, type=DeviceTask)
        except msgspec.DecodeError as error:
            log.error("a consent on a device cannot be read, and is dropped: %s", error)
            await self._queues.ack(self._worker.session, QUEUE, [(task.id, task.lease)])
            return
        account = f"{wanted.provider}/{wanted.account}"
        try:
            word = await self._ended(task, wanted)
        except ConsentFailed as failed:
            level = logging.WARNING if failed.word == "outcome_unknown" else logging.INFO
            reason = failed.reason or "-"
            log.log(level, "the consent of %s on a device: %s (%s)", account, failed.word, reason)
        else:
            log.info("the consent of %s on a device: %s", account, word)
        await self._queues.ack(self._worker.session, QUEUE, [(task.id, task.lease)])

    async def _ended(self, task: Taken, wanted: DeviceTask) -> str:
        """
        Return how a consent ends, when it does.

        Raises: ConsentFailed: it came to nothing. NotHeld: another node asks. What the store
        raises.
        """
        interval_s, lost = wanted.interval_s, False
        place = _place(wanted.provider, wanted.account)
        try:
            code = (await self._vault.unseal(wanted.sealed, place)).decode()
        except Unsealable as error:
            raise ConsentFailed("link_invalid", str(error)) from None
        while self._clock.unix_ms() < wanted.until_ms:
            try:
                provider, queue, _ = self._directory.account(f"{wanted.provider}/{wanted.account}")
                provider = placeholders.filled(provider, wanted.parameters)
            except (errors.NotFound, errors.BadArg) as error:
                raise ConsentFailed("link_invalid", str(error)) from None
            lease_ms = int((provider.timeout_s + interval_s + LEASE_SLACK_S) * 1000)
            await self._queues.touch(self._worker.session, QUEUE, task.id, task.lease, lease_ms)
            # Whatever becomes of this node's run, what is given is put to its use.
            poll = asyncio.create_task(
                self._polled(provider, queue, wanted, code, task.id), name="a device's consent"
            )
            self._polls.add(poll)
            poll.add_done_callback(self._polls.discard)
            try:
                word = await asyncio.shield(poll)
            except ConsentFailed as failed:
                if lost and failed.word == "refused":
                    raise ConsentFailed("outcome_unknown", failed.reason) from None
                raise
            if word in (CONNECTED, PENDING):
                return word
            lost |= word == "lost"
            if word != "waiting":
                interval_s = min(interval_s + SLOWER_S, INTERVAL_MAX_S)
            await sleep(self._clock, interval_s)
        raise ConsentFailed("outcome_unknown" if lost else "expired")

    async def _polled(
        self, provider: Provider, queue: str, wanted: DeviceTask, code: str, task_id: str
    ) -> str:
        """
        Ask once; return how the consent ends, or ``waiting``, ``slower``, ``lost``.

        Raises: ConsentFailed, and what the store raises before anything is sent.
        """
        reading = await self._accounts.get(queue, wanted.account)
        try:
            await self._given.ready()
        except ConsentFailed:
            return "slower"  # nothing is asked for that could not be kept
        credentials = self._endpoint.credentials
        grant = {"client_id": provider.client_id, **device_grant(code)}
        outcome = await self._endpoint.exchange(provider, grant, credentials.order(provider)[0])
        rules = rules_of(provider.paths, provider.errors, provider.extras)
        verdict = classify(outcome, self._clock.unix_ms(), rules)
        told = poll_of(outcome, verdict)
        if told != "given":
            return told
        pair, row, subject = pair_of(outcome, verdict), reading.row, ""
        check_scope(provider, wanted.scope, pair.scope)
        if wants_identity(wanted.scope):
            issuer = provider.issuer or provider.consent_issuer
            known = row.details.subject if row is not None else ""
            now_s = self._clock.unix_ms() / 1000
            subject = subject_of(provider, outcome, issuer, "", known, now_s)
        fields = put_fields(pair, wanted.scope, wanted.parameters, subject, reading.now_ms)
        before = row.grant if row is not None else 0
        claim = f"d:{task_id}", ""
        return await self._given.take_in(provider, queue, wanted.account, before, fields, claim)


def _place(provider: str, account: str) -> Place:
    return Place(provider, account, "device", 0, 0)
