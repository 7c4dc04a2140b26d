"""
Revokes refresh tokens of deleted accounts at their provider (RFC 7009).

The provider's ``on_delete`` says whether to revoke.

A revocation is a task of ``_revocations``, put before the account is deleted, with its token
sealed; the node that takes it makes sure that the account is gone, and asks. Anything but success
is tried again with a growing pause; when the tries are used up the task is buried.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

import msgspec

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.queue import Queues, Taken
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.provider.grant_request import as_account
from tidewarden.tokens.provider.revocation_response import Revoked
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.vault.vault import Place, Unsealable, Vault

from .queue_worker import QueueWorker

log = logging.getLogger("tidewarden.tokens")

QUEUE = "_revocations"
ATTEMPTS = 20  # 5 s, doubling up to an hour: about half a day
BACKOFF_MS = 5_000
# The account is deleted behind the put; a task that finds it still there does nothing.
DELAY_MS = 5_000
# Of one provider, as the lanes of the queue have it: so many hold a place each though all of them
# hang.
AT_ONCE = 2
LEASE_SLACK_S = 15.0


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """Holds the payload of a task."""

    provider: str
    account: str
    """The account's name within the provider."""
    grant: int
    generation: int
    refresh: bytes
    """The sealed refresh token."""
    parameters: dict[str, str] = {}
    """The account's texts for its provider's placeholders."""

    def __repr__(self) -> str:
        return (
            f"Revocation({self.provider}/{self.account}, grant={self.grant},"
            f" generation={self.generation})"
        )


class Revoker:
    """
    Queues and sends revocations. :meth:`run` until cancelled.

    Args:
        queue_of: where accounts lie, by provider.
        done: counts by provider and outcome: ``revoked``, ``failed``, ``unsupported``, or ``kept``,
            for the account is there.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        queue_of: Mapping[str, str],
        queues: Queues,
        accounts: AccountStore,
        vault: Vault,
        endpoint: TokenEndpoint,
        clock: Clock,
        done: Counter[tuple[str, str]],
    ) -> None:
        self._providers: dict[str, Provider] = {}
        self._queue_of = queue_of
        self._queues = queues
        self._accounts = accounts
        self._vault = vault
        self._endpoint = endpoint
        self._worker = QueueWorker(queues, QUEUE, clock, at_once=0, lease_ms=0)
        self._session = self._worker.session
        self._done = done
        self.change(providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use these providers; a revocation under way ends as it began."""
        wanted = {name: one for name, one in providers.items() if one.on_delete == "revoke"}
        longest_s = max((2 * one.timeout_s for one in wanted.values()), default=0.0) + LEASE_SLACK_S
        self._providers = wanted
        self._worker.resize(AT_ONCE * len(wanted), int(longest_s * 1000))

    async def deleting(self, provider: str, account: str) -> list[AccountRow]:
        """
        Note the refresh tokens of an account about to be deleted; returns the rows that have them.

        Raises what the store raises.
        """
        if provider not in self._providers:
            return []
        pairs = await self._accounts.sealed(self._queue_of[provider], account)
        for row in pairs:
            await self.abandoned(provider, account, row)
        return pairs

    async def abandoned(self, provider: str, account: str, row: AccountRow) -> None:
        """
        Note that a pair has lost its account, or is about to, and is to be revoked.

        Raises what the store raises; to call it again changes nothing.
        """
        if provider not in self._providers or not row.refresh:
            return
        payload = msgspec.msgpack.encode(
            Revocation(
                provider, account, row.grant, row.generation, row.refresh, row.details.parameters
            )
        )
        # of one token there is one, however often it is deleted
        task_id = f"{provider}:{row.current.hex()}"
        await self._queues.put(
            QUEUE,
            TaskSpec(
                payload,
                id=task_id,
                delay_ms=DELAY_MS,
                lane=provider,
                attempts=ATTEMPTS,
                backoff_ms=BACKOFF_MS,
                if_exists="replace",
            ),
        )

    async def run(self) -> None:
        """Send queued revocations, for ever, while any provider wants them."""
        await self._worker.run(self._settle)

    async def _settle(self, task: Taken) -> None:
        wanted = msgspec.msgpack.decode(task.payload, type=Revocation)
        account = f"{wanted.provider}/{wanted.account}"
        found = await self._try(wanted)
        outcome = found.outcome if found is not None else "kept"
        self._done[wanted.provider, outcome] += 1
        if found is not None and outcome == "failed":
            level = logging.ERROR if task.attempt >= ATTEMPTS else logging.WARNING
            log.log(
                level,
                "a token of %s, deleted, is not revoked, try %d: %s",
                account,
                task.attempt,
                found.message,
            )
            delay_ms = int(found.retry_after_s * 1000) if found.retry_after_s else None
            await self._queues.fail(
                self._session, QUEUE, task.id, task.lease, delay_ms, reason=found.message
            )
        elif found is not None and outcome == "unsupported":
            log.error("a token of %s, deleted, is not revoked: %s", account, found.message)
            await self._queues.bury(self._session, QUEUE, task.id, task.lease, found.message)
        else:
            await self._queues.ack(self._session, QUEUE, [(task.id, task.lease)])

    async def _try(self, wanted: Revocation) -> Revoked | None:
        """Try to revoke the token; return what became of it; None: the account is there again."""
        provider = self._providers.get(wanted.provider)
        if provider is None:
            return Revoked("failed", "its provider is not configured to revoke, on this node")
        reading = await self._accounts.get(self._queue_of[wanted.provider], wanted.account)
        if reading.row is not None:
            # Not deleted after all, or put anew: many providers end all of a user's grants with one
            # token.
            return None
        place = Place(wanted.provider, wanted.account, "refresh", wanted.grant, wanted.generation)
        try:
            brought = (await self._vault.unseal(wanted.refresh, place)).decode()
            its, token = as_account(placeholders.filled(provider, wanted.parameters), brought)
        except errors.BadArg as error:
            return Revoked("unsupported", str(error))
        except Unsealable as error:
            return Revoked("unsupported", f"it cannot be read any more: {error}")
        return await self._endpoint.revoke(its, token)
