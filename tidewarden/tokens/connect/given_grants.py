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
from tidewarden.tokens.vault.vault import Place, Unsealable
from tidewarden.tokens.verbs.grants import Grants, NotPut

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
        self._ending: set[int] = set()
        """Numbers of the journal's consents that are put, and whose ends are not noted yet."""
        self._complaints: dict[int, str] = {}
        """Why consents of the journal wait, by their numbers, as the log was told it last."""

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
        floor: int = 0,
    ) -> str:
        """
        Bring to disk what was given for an account, and put it; return how the consent ends.

        ``before``: the grant that the account had before; 0: there was none. ``fields``: as of a
        put. ``floor``: of its shard then (:class:`AccountReading`). :meth:`ready` was called
        before. Raises: ConsentFailed: the account does not take it.
        """
        self._storing.add(claim)
        try:
            at = before, floor
            consent = await self._to_disk(provider.name, queue, account, at, fields, claim)
            try:
                # The floor is not looked at: any deletion moves it, and nothing was put yet.
                return await self._put(consent, provider, fields)
            except errors.Error as error:
                name = f"{provider.name}/{account}"
                log.warning("what was given for %s waits in the journal: %s", name, error)
                return PENDING
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
        consents = self._journal.consents()
        if not consents:  # as nearly always, and there may be thousands of providers
            return
        providers = {
            queue: self._directory.providers[name]
            for name, queue in self._directory.queues.items()
            if name in self._directory.providers
        }
        held: set[tuple[str, str]] = set()
        # The latest of an account first: with that, those before it are of no use.
        for consent in reversed(consents):
            account = consent.queue, consent.account
            if not self._journal.waits(consent):
                continue
            if consent.claim in self._storing or account in held:
                held.add(account)
                continue
            provider = providers.get(consent.queue)
            if provider is None:
                self._complain(consent, "its provider is not configured here")
                continue
            try:
                await self._replayed(consent, provider)
            except ConsentFailed:
                continue  # it was said
            except errors.StoreDown as error:
                # The others would wait as long, and hear the same.
                log.warning("%d consents wait in the journal: %s", len(consents), error)
                return
            except (Unsealable, msgspec.DecodeError) as error:
                self._complain(consent, str(error))
            except errors.Error as error:
                held.add(account)
                self._complain(consent, str(error))

    async def _replayed(self, consent: JournalConsent, provider: Provider) -> None:
        """
        Put a consent of the journal, unless it is of no use any more.

        Raises: ConsentFailed: it is of none. DecodeError, and what the store raises: it waits.
        """
        plain = await self._vault.unseal(consent.body, consent.place(provider.name))
        fields = msgspec.json.decode(plain, type=dict[str, Any])
        await self._put(consent, provider, fields, consent.floor)

    def _complain(self, consent: JournalConsent, why: str) -> None:
        """Log why a consent waits, unless that was said."""
        if self._complaints.get(consent.number) != why:
            self._complaints[consent.number] = why
            log.warning("a consent of %s waits in the journal: %s", consent.account, why)

    async def _to_disk(
        self,
        provider: str,
        queue: str,
        account: str,
        before: tuple[int, int],
        fields: Mapping[str, Any],
        claim: Claim,
    ) -> JournalConsent:
        """Write what was given into the journal; if that fails, it is still whole in memory."""
        place = Place(provider, account, "consent", before[0], 0)
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
        floor: int | None = None,
    ) -> str:
        """
        Put what is in the journal, and note that it is; return how the consent ends.

        ``floor``: where it may have been put before; None: this is the first try. Raises:
        ConsentFailed: the account does not take it, and never will. What the store raises.
        """
        account = f"{provider.name}/{consent.account}"
        if consent.number not in self._ending:
            at = provider, consent.queue, consent.account
            try:
                put = await self._grants.put_consent(*at, fields, consent.before, floor)
                refused = put if isinstance(put, NotPut) else None
            except errors.BadArg as error:
                refused = NotPut("not_stored", str(error))
            if refused is not None:
                self._over(consent)
                log.error("what was given for %s is dropped: %s", account, refused.reason)
                await self.note(consent.claim, refused.word)
                raise ConsentFailed(refused.word, refused.reason)
            self._ending.add(consent.number)
        try:
            await self._claims.end(consent.claim, DONE)
        except errors.Error as error:
            # It stays in the journal until this is noted: the link would serve once more.
            self._complain(consent, f"that it is connected is noted later: {error}")
        else:
            self._over(consent)
        return CONNECTED

    def _over(self, consent: JournalConsent) -> None:
        """Forget a consent that is stored, or of no use any more."""
        self._journal.stored(consent)
        self._ending.discard(consent.number)
        self._complaints.pop(consent.number, None)
