"""
Keeps a node's vault up to date: reads changed keys, seals the journal anew, tells what it knows.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace as changed

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.provider import QUEUE_PREFIX
from tidewarden.tokens.accounts.account_record import DETAILED, parse_row
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.journal_records import JournalAnswer, JournalConsent, RawAnswer
from tidewarden.tokens.vault.key_store import KeyStore, NodeKeys
from tidewarden.tokens.vault.vault import Place, Unsealable, Vault, key_id_of

from .repeat import repeat_for_ever

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 2.0


class KeySync:
    """Syncs the keys of one node, by :meth:`run`, which runs beside everything else."""

    def __init__(
        self,
        node: str,
        vault: Vault,
        key_store: KeyStore,
        journal: Journal,
        clock: Clock,
        address: str = "",
    ) -> None:
        """
        Tell other nodes that this one listens at ``address``, ``host:base_port``; empty: not known.
        """
        self._node = node
        self._address = address
        self._vault = vault
        self._key_store = key_store
        self._journal = journal
        self._clock = clock
        self._seen = -1

    async def run(self) -> None:
        """Call :meth:`look` every two seconds, for ever; an error is logged once."""
        complaint = "the vault is not abreast of the cluster's"
        await repeat_for_ever(self.look, self._clock, LOOK_S, complaint)

    async def look(self) -> None:
        """
        Read the keys anew if the change counter has moved, and write down that this node has.

        Raises: ConfigError: a key-encryption key is missing here; OSError: the journal cannot be
        written; StoreDown.
        """
        change = await self._key_store.change()
        if change == self._seen and await self._key_store.has(self._vault.newest_id):
            return
        await self._vault.keyring.read()
        try:
            await self._vault.load()
            await reseal_journal(self._journal, self._vault)
        finally:
            keks = [key_id.hex() for key_id in self._vault.keyring.ids]
            known = NodeKeys(
                change=change,
                keks=keks,
                newest=self._vault.newest_id,
                said_ms=self._clock.unix_ms(),
                address=self._address,
            )
            await self._key_store.say(self._node, known)
        self._seen = change

    async def leave(self) -> None:
        """
        Let no rotation wait for this node, which goes down.

        When it comes back it reads the keys before anything else.
        """
        try:
            await self._key_store.forget([self._node])
        except errors.Error as error:
            log.debug("a rotation will wait for this node: %s", error)


async def restore_keys(journal: Journal, vault: Vault) -> None:
    """
    Take back the data keys that the journal carries, for the store may have lost them.

    One that opens no more, for the node was away while keys were rotated, is of no concern where
    nothing that waits for the store is sealed under it.

    Raises: ConfigError: something is, and no key-encryption key here opens it. What the store
    raises.
    """
    needed = {key_id_of(parse_row(answer.row).refresh) for answer in journal.pending()}
    needed |= {key_id_of(consent.body) for consent in journal.consents()}
    for key_id, wrapped in journal.keys().items():
        try:
            await vault.restore(key_id, wrapped)
        except errors.ConfigError as error:
            if key_id in needed:
                raise
            log.warning(
                "data key %d in this node's journal opens no more; no answer that waits needs"
                " it: %s",
                key_id,
                error,
            )


async def reseal_journal(journal: Journal, vault: Vault) -> None:
    """
    Seal the journal's records under the newest data key.

    The journal keeps only the keys that it needs, as they are wrapped now. Raises: OSError: the
    file is not written.
    """
    keys = journal.keys()
    if not keys:
        return
    answers: list[JournalAnswer] = []
    raws: list[RawAnswer] = []
    needed: dict[int, bytes] = {}
    for answer in journal.pending():
        try:
            row = await reseal_row(vault, provider_of(answer.queue), answer.account, answer.row)
        except Unsealable as error:
            log.error("an answer in the journal stays as it is: %s", error)
            needed.update(keys)
        else:
            answers.append(changed(answer, row=row))
            needed.update([vault.wrapped_key(parse_row(row).refresh)])
    for raw in journal.raws():
        place = Place(provider_of(raw.queue), raw.account, "raw", raw.grant, raw.generation)
        try:
            body = await vault.reseal(raw.body, place)
        except Unsealable as error:
            log.error("an unreadable answer in the journal stays as it is: %s", error)
            needed.update(keys)
        else:
            raws.append(changed(raw, body=body))
            needed.update([vault.wrapped_key(body)])
    consents: list[JournalConsent] = []
    for consent in journal.consents():
        try:
            place = consent.place(provider_of(consent.queue))
            body = await vault.reseal(consent.body, place)
        except Unsealable as error:
            log.error("a consent in the journal stays as it is: %s", error)
            needed.update(keys)
        else:
            consents.append(changed(consent, body=body))
            needed.update([vault.wrapped_key(body)])
    await journal.replace(answers, raws, needed, consents)


async def reseal_row(vault: Vault, provider: str, account: str, raw: bytes) -> bytes:
    """
    Return a row with its tokens sealed under the newest data key.

    The same row is returned if its tokens are sealed so already. Raises: Unsealable.
    """
    row = parse_row(raw)
    at = (row.grant, row.generation)
    access = await vault.reseal(row.access, Place(provider, account, "access", *at))
    refresh = await vault.reseal(row.refresh, Place(provider, account, "refresh", *at))
    if access is row.access and refresh is row.refresh:
        return raw
    anew = changed(row, access=access, refresh=refresh)
    return anew.pack_all() if raw[0] == DETAILED else anew.pack()


def provider_of(queue: str) -> str:
    """Return the provider whose accounts lie in that queue."""
    return queue.removeprefix(QUEUE_PREFIX).partition(":")[0]
