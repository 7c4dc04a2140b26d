"""Brings what providers give for consents to disk, and from there to the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import sleep
from tidewarden.config.load import Provider
from tidewarden.tokens.journal.journal_records import JournalConsent
from tidewarden.tokens.shared_parts import SharedParts
from tidewarden.tokens.vault.vault import Place
from tidewarden.tokens.verbs.grants import Grants

from .claims import DONE, Claim, Claims
from .outcomes import CONNECTED, PENDING, ConsentFailed

log = logging.getLogger("tidewarden.tokens")

REPLAY_S = 2.0


class GivenGrants:
    """
    Journals what was given, puts it, and notes that its consent is over.

    :meth:`run` offers the store what it has not confirmed.
    """

    def __init__(self, shared: SharedParts, grants: Grants, claims: Claims) -> None:
        self._directory = shared.directory
        self._vault = shared.vault
        self._journal = shared.journal
        self._clock = shared.clock
        self._grants = grants
        self._claims = claims
        self._storing: set[Claim] = set()
        """Whose grants are on their way to the store."""

    async def ready(self) -> None:
        """
        See that what may be given now can be kept, before anybody is asked for it.

        Raises: ConsentFailed: the journal cannot be written. What the store raises.
        """
        await self._vault.ready()
        if self._journal.fault:
            raise ConsentFailed("unavailable", "the journal cannot be written: nothing is sent")

    async def take_in(
        self,
        provider: Provider,
        queue: str,
        account: str,
        before: int,
        fields: Mapping[str, Any],
        claim: Claim,
    ) -> str:
        """
        Bring to disk what was given for an account, and put it; return how the consent ends.

        ``before``: the grant that the account had before; 0: there was none. ``fields``: as of a
        put. :meth:`ready` was called before. Raises: ConsentFailed: the account does not take it.
        """
        self._storing.add(claim)
        try:
            consent = await self._to_disk(provider.name, queue, account, before, fields, claim)
            return await self._put(consent, provider, fields)
        finally:
            self._storing.discard(claim)

    async def note(self, claim: Claim, word: str) -> None:
        """Note how a consent ended, for the browser that asks again."""
        try:
            await self._claims.end(claim, word)
        except errors.Error as error:
            log.info("how a consent ended is not noted: %s", error)

    async def run(self) -> None:
        """Replay now and then, until cancelled."""
        while True:
            await sleep(self._clock, REPLAY_S)
            await self.replay()

    async def replay(self) -> None:
        """Offer the store what was given and is not known to be there."""
        providers = {
            queue: self._directory.providers[name]
            for name, queue in self._directory.queues.items()
            if name in self._directory.providers
        }
        for consent in self._journal.consents():
            provider = providers.get(consent.queue)
            if provider is None or consent.claim in self._storing:
                continue
            try:
                plain = await self._vault.unseal(consent.body, consent.place(provider.name))
                fields = msgspec.json.decode(plain, type=dict[str, Any])
                if await self._put(consent, provider, fields, consent.before) == PENDING:
                    return
            except ConsentFailed:
                continue  # it was said
            except (errors.Error, msgspec.DecodeError) as error:
                log.warning("a consent of %s waits in the journal: %s", consent.account, error)

    async def _to_disk(
        self,
        provider: str,
        queue: str,
        account: str,
        before: int,
        fields: Mapping[str, Any],
        claim: Claim,
    ) -> JournalConsent:
        """Write what was given into the journal; if that fails, it is still whole in memory."""
        place = Place(provider, account, "consent", before, 0)
        body = self._vault.seal(msgspec.json.encode(fields), place)
        key = self._vault.wrapped_key(body)
        try:
            return await self._journal.add_consent(queue, account, before, body, claim, key)
        except OSError as error:
            name = f"{provider}/{account}"
            log.error("the journal does not take what was given for %s: %s", name, error)
            return next(one for one in self._journal.consents() if one.claim == claim)

    async def _put(
        self,
        consent: JournalConsent,
        provider: Provider,
        fields: Mapping[str, Any],
        before: int | None = None,
    ) -> str:
        """
        Put what is in the journal, and note that it is; return how the consent ends.

        ``before``: it is put only where the account has still this grant. Raises: ConsentFailed:
        the account does not take it, and never will.
        """
        account = f"{provider.name}/{consent.account}"
        try:
            await self._grants.put_consent(provider, consent.queue, consent.account, fields, before)
        except errors.BadArg as error:
            self._journal.stored(consent)
            log.error("what was given for %s cannot be put: %s", account, error)
            await self.note(consent.claim, "not_stored")
            raise ConsentFailed("not_stored", str(error)) from None
        except errors.Error as error:
            log.warning("what was given for %s waits in the journal: %s", account, error)
            return PENDING
        try:
            await self._claims.end(consent.claim, DONE)
        except errors.Error as error:
            # It stays in the journal until this is noted: the link would serve once more.
            log.info("that %s is connected is noted later: %s", account, error)
        else:
            self._journal.stored(consent)
        return CONNECTED
