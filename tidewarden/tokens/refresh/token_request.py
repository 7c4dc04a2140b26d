"""Asks a provider for the next pair of an account, by each of the client's secrets."""

from __future__ import annotations

import logging
import math

from tidewarden.clock import Clock
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.provider import token_response
from tidewarden.tokens.provider.grant_request import as_account, check_fit
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import Outcome, Verdict
from tidewarden.tokens.vault.vault import Place, Vault

log = logging.getLogger("tidewarden.tokens")

# Of the lease that must be left beyond the longest request when the first byte is sent.
SEND_SLACK_S = 3.0


class TokenRequest:
    """Makes the requests for the accounts of one provider's client."""

    def __init__(
        self, provider: Provider, endpoint: TokenEndpoint, vault: Vault, clock: Clock
    ) -> None:
        self._provider = provider
        self._endpoint = endpoint
        self._vault = vault
        self._clock = clock
        self._rules = token_response.rules_of(
            provider.paths, provider.errors, provider.extras, renews=provider.renews
        )

    async def unseal(self, account: str, row: AccountRow) -> str:
        """
        Open what the account brings to its next refresh, which ``row`` holds sealed.

        Raises: Unsealable, Unfit: nothing can be sent for it.
        """
        place = Place(self._provider.name, account, "refresh", row.grant, row.generation)
        return check_fit(self._provider, (await self._vault.unseal(row.refresh, place)).decode())

    def may_send(self, until: float) -> bool:
        """
        Return whether a request that begins now surely ends before a lease does.

        ``until``: the end of that lease (monotonic seconds).
        """
        return until - self._clock.monotonic() >= self._provider.timeout_s + SEND_SLACK_S

    async def ask(
        self, account: str, row: AccountRow, token: str, until: float = math.inf
    ) -> tuple[Outcome, Verdict]:
        """
        Ask for the account's next pair, by each of the client's secrets until one is taken.

        A refused client has touched no grant.

        ``row`` has its parameters; ``token``: what :meth:`unseal` found; ``until``: when its lease
        ends, monotonic seconds.
        """
        credentials = self._endpoint.credentials
        its, sent = as_account(placeholders.filled(self._provider, row.details.parameters), token)
        for number in credentials.order(its):
            outcome = await self._endpoint.refresh(its, sent, number, until - SEND_SLACK_S, account)
            verdict = token_response.classify(outcome, self._clock.unix_ms(), self._rules)
            if verdict.outcome != "invalid_client" or not self.may_send(until):
                break
        if verdict.scope in ("ok", "account") and credentials.prefer(its, number):
            log.warning("%s now takes our %s secret", its.name, ("first", "next")[number])
        return outcome, verdict
