"""
Lets people consent on another device than the one that asks for it (RFC 8628).

The provider gives two codes. The short one a person types in at the provider's page; by the long
one the provider is asked again and again until the person has done so. The long one lies sealed in
a task of ``_devices``: the node that takes it asks once and gives it back until it is time to ask
again. If the node dies, another one goes on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.queue import Taken
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.accounts.account_store import AccountReading
from tidewarden.tokens.events.queue_worker import QueueWorker
from tidewarden.tokens.provider.discovery import NotFoundError
from tidewarden.tokens.provider.token_response import (
    HttpAnswer,
    Outcome,
    Verdict,
    classify,
    rules_of,
)
from tidewarden.tokens.shared_parts import SharedParts
from tidewarden.tokens.vault.vault import Place, Unsealable

from .authorization_request import device_grant, wants_identity
from .device_codes import (
    INTERVAL_MAX_S,
    SLOWER_S,
    DeviceCode,
    poll_of,
    read_device_code,
    refuses_client,
)
from .given_grants import GivenGrants
from .granted import Asked, fields_of
from .link_checks import check_connectable, check_parameters, check_scope_text, settings_digest
from .outcomes import CONNECTED, PENDING, ConsentFailed

log = logging.getLogger("tidewarden.tokens")

QUEUE = "_devices"
AT_ONCE = 200
"""Requests of one node that are under way at a time."""
LANE_LIMIT = 50
"""Those of one user, at all nodes."""
SEEN_MAX = 10_000
"""Consents of which a node remembers what it has seen."""
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
    grant: int
    """The grant that the account had when the codes were asked for; 0: there was none."""
    floor: int
    """The highest grant of an account deleted from its shard until then."""
    settings: str
    """A digest of who its provider is: another one of that name is sent no code."""

    def __repr__(self) -> str:
        return f"DeviceTask({self.provider}/{self.account})"


@dataclass(slots=True)
class Seen:
    """Holds what this node has seen of a consent that is waited for."""

    interval_s: float
    """Between two requests."""
    lost: bool = False
    """An answer was lost, which may have had the tokens in it."""
    over: bool = False
    """Nothing is asked any more, also if its task comes again."""
    absent: bool = False
    """This node has not the provider that it is of, and has said so in the log."""


class Devices:
    """
    Asks for device codes, and for the tokens of those that a person has typed in.

    :meth:`run` until cancelled.
    """

    def __init__(self, shared: SharedParts, given: GivenGrants) -> None:
        """Bring by ``given`` to the store what providers give."""
        self._directory = shared.directory
        self._accounts = shared.accounts
        self._queues = shared.queues
        self._vault = shared.vault
        self._journal = shared.journal
        self._endpoint = shared.endpoint
        self._clock = shared.clock
        self._given = given
        # At the end, requests that are under way end before their tasks are given back: else
        # another node would ask beside this one.
        self._worker = QueueWorker(
            shared.queues, QUEUE, shared.clock, at_once=0, lease_ms=LEASE_MS, stop_s=STOP_S
        )
        self._seen: dict[str, Seen] = {}
        """By the ids of their tasks, the latest at the end."""
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
        reading = await self._accounts.get(queue, name)
        code = await self._codes(placeholders.filled(provider, own), scope)
        await self._vault.ready()
        until_ms = self._clock.unix_ms() + int(code.life_s * 1000)
        sealed = self._vault.seal(code.device_code.encode(), _place(provider.name, name))
        task = DeviceTask(
            provider.name,
            name,
            scope,
            own,
            until_ms,
            code.interval_s,
            sealed,
            reading.grant,
            reading.floor,
            settings_digest(provider),
        )
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
        """Ask for the tokens of device codes, for ever; requests that are under way end first."""
        await self._worker.run(self._settle)

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
        outcome = await self._endpoint.ask_beside(provider, url, asked)
        if not isinstance(outcome, HttpAnswer):
            raise errors.Timeout(f"{provider.name} cannot be asked: {outcome.message}; try again")
        try:
            return read_device_code(outcome)
        except ValueError as error:
            raise errors.BadArg(f"{provider.name} gives no device code: {error}") from None

    async def _settle(self, task: Taken) -> None:
        """Ask once; the task is over then, or comes back when it is time to ask again."""
        session = self._worker.session
        try:
            wanted = msgspec.msgpack.decode(task.payload, type=DeviceTask)
        except msgspec.DecodeError as error:
            log.error("a consent on a device cannot be read, and is dropped: %s", error)
            await self._queues.ack(session, QUEUE, [(task.id, task.lease)])
            return
        seen = self._seen_of(task.id, wanted.interval_s)
        if not seen.over and await self._waits(task, wanted, seen):
            delay_ms = int(seen.interval_s * 1000)
            await self._queues.release(session, QUEUE, task.id, task.lease, delay_ms)
            return
        seen.over = True
        (gone,) = await self._queues.ack(session, QUEUE, [(task.id, task.lease)])
        if gone:
            self._seen.pop(task.id, None)

    def _seen_of(self, task_id: str, interval_s: float) -> Seen:
        """Return what this node has seen of a consent, remembered as the latest."""
        seen = self._seen.pop(task_id, None) or Seen(interval_s)
        while len(self._seen) >= SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[task_id] = seen
        return seen

    async def _waits(self, task: Taken, wanted: DeviceTask, seen: Seen) -> bool:
        """
        Ask once, if anything is to be asked, and tell whether it has to be asked again.

        Raises: NotHeld: another node asks. What the store raises before anything is sent.
        """
        account = f"{wanted.provider}/{wanted.account}"
        try:
            word = await self._polled(task, wanted, seen)
        except ConsentFailed as failed:
            word = failed.word
            if seen.lost and word in ("refused", "expired"):
                word = "outcome_unknown"
            level = logging.WARNING if word == "outcome_unknown" else logging.INFO
            reason = failed.reason or "-"
            log.log(level, "the consent of %s on a device: %s (%s)", account, word, reason)
            return False
        if word in (CONNECTED, PENDING):
            log.info("the consent of %s on a device: %s", account, word)
            return False
        seen.lost |= word == "lost"
        if word != "waiting":
            seen.interval_s = min(seen.interval_s + SLOWER_S, INTERVAL_MAX_S)
        return True

    async def _polled(self, task: Taken, wanted: DeviceTask, seen: Seen) -> str:
        """
        Ask once; return how the consent ends, or ``waiting``, ``slower``, ``lost``.

        Raises: ConsentFailed: it came to nothing. NotHeld: another node asks. What the store raises
        before anything is sent.
        """
        claim = f"d:{task.id}", ""
        if any(consent.claim == claim for consent in self._journal.consents()):
            return PENDING  # this node was given tokens for it, and puts them
        if self._clock.unix_ms() >= wanted.until_ms:
            raise ConsentFailed("expired")
        try:
            provider, queue = self._provider_of(wanted)
        except errors.NotFound as error:
            self._say_absent(wanted, seen, str(error))
            return "waiting"  # another node may have it
        code = await self._opened(wanted)
        reading = await self._accounts.get(queue, wanted.account)
        _check_open(task, wanted, reading)
        try:
            await self._given.ready()
        except ConsentFailed:
            return "slower"  # nothing is asked for that could not be kept
        lease_ms = int((provider.timeout_s * len(provider.secrets) + LEASE_SLACK_S) * 1000)
        await self._queues.touch(self._worker.session, QUEUE, task.id, task.lease, lease_ms)
        outcome, verdict = await self._asked(provider, code)
        told = poll_of(outcome, verdict)
        if told != "given":
            return told
        seen.over = True  # whatever comes of it: the code is used up
        issuer = provider.issuer or provider.consent_issuer
        nonce = "" if wants_identity(wanted.scope) else None
        asked = Asked(wanted.scope, wanted.parameters, issuer, nonce)
        now_s = self._clock.unix_ms() / 1000
        fields = fields_of(provider, outcome, verdict, asked, reading, now_s)
        at = provider, queue, wanted.account
        return await self._given.take_in(*at, wanted.grant, fields, claim, reading.floor)

    def _provider_of(self, wanted: DeviceTask) -> tuple[Provider, str]:
        """
        Return the provider with the account's parameters, and its queue.

        Raises: NotFound: it is not here, or is another here. ConsentFailed: it does not take the
        parameters any more.
        """
        provider, queue, _ = self._directory.account(f"{wanted.provider}/{wanted.account}")
        if wanted.settings != settings_digest(provider):
            raise errors.NotFound(f"the provider {wanted.provider!r} is another here")
        try:
            return placeholders.filled(provider, wanted.parameters), queue
        except errors.BadArg as error:
            raise ConsentFailed("link_invalid", str(error)) from None

    def _say_absent(self, wanted: DeviceTask, seen: Seen, why: str) -> None:
        """Log, once, that this node does not ask for a consent."""
        if not seen.absent:
            account = f"{wanted.provider}/{wanted.account}"
            log.warning("the consent of %s on a device is not asked for here: %s", account, why)
        seen.absent = True

    async def _opened(self, wanted: DeviceTask) -> str:
        """
        Return the code to ask by.

        Raises: ConsentFailed: it cannot be read. What the store raises.
        """
        place = _place(wanted.provider, wanted.account)
        try:
            return (await self._vault.unseal(wanted.sealed, place)).decode()
        except Unsealable as error:
            raise ConsentFailed("link_invalid", str(error)) from None

    async def _asked(self, provider: Provider, code: str) -> tuple[Outcome, Verdict]:
        """
        Ask for the tokens of a code, by the client's secret that was last taken.

        If that is refused, by the other: the code was not looked at.
        """
        credentials = self._endpoint.credentials
        grant = {"client_id": provider.client_id, **device_grant(code)}
        rules = rules_of(provider.paths, provider.errors, provider.extras)
        for number in credentials.order(provider):
            outcome = await self._endpoint.exchange(provider, grant, number)
            verdict = classify(outcome, self._clock.unix_ms(), rules)
            if not refuses_client(outcome, verdict):
                credentials.prefer(provider, number)
                break
        return outcome, verdict


def _check_open(task: Taken, wanted: DeviceTask, reading: AccountReading) -> None:
    """
    Check that no tokens have been put since the codes were asked for.

    A code that has given tokens is sent no more: some providers then revoke what they gave. Raises:
    ConsentFailed.
    """
    if reading.grant != wanted.grant:
        raise ConsentFailed("link_used", "its account has been put or deleted meanwhile")
    was_lost = not task.due_ms  # by a node that died, or was late
    if was_lost and not reading.grant and reading.floor != wanted.floor:
        reason = "who asked last did not say how it ended, and an account was deleted since"
        raise ConsentFailed("outcome_unknown", reason)


def _place(provider: str, account: str) -> Place:
    return Place(provider, account, "device", 0, 0)
