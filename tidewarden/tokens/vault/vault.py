"""
Seals what is secret in an account's row with AES-256-GCM, bound to the place it was written for.

Data keys, one a day and one a rotation, seal the records; a key-encryption key
(:mod:`tidewarden.tokens.vault.keyring`) wraps the data keys, which lie in the store
(:mod:`tidewarden.tokens.vault.key_store`). A sealed record is ``version 1 | key id 4 | nonce 12 |
ciphertext | tag 16`` (bytes, big-endian); its associated data are provider, account, field, grant
and generation, each behind its length, so that a record moved to another account, field or
generation does not open. A wrapped key is ``version 1 | id of the key-encryption key 4 | nonce 12 |
ciphertext | tag 16``.

Which key-encryption key is the cluster's is told by data key 0, the one of the fingerprints: new
data keys are wrapped by what wraps that one, and a rotation wraps it last.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import struct
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.key_file import KEY_BYTES

from .key_store import KeyStore
from .keyring import Keyring

log = logging.getLogger("tidewarden.tokens")

SEAL_VERSION = 1
NONCE_BYTES = 12
TAG_BYTES = 16
FINGERPRINT_BYTES = 8
# The key of the fingerprints lies wrapped beside the data keys; it is never one of them.
FINGERPRINT_KEY_ID = 0
DAY_MS = 86_400_000
DAY_BITS = 16  # of a data key's id, below the day
# Between two ids: more than a dozen keys fit into a day, and then the next day's ids are taken.
ID_STEP_MAX = 1 << 12
_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_NUMBERS = struct.Struct(">IQIQ")  # Two numbers of 8 bytes, each behind its length.


class Keys(Protocol):
    """Names the part of :class:`~tidewarden.tokens.vault.key_store.KeyStore` that a vault needs."""

    async def keys(self) -> dict[int, bytes]: ...
    async def add(self, key_id: int, wrapped: bytes) -> bytes: ...
    async def rewrap(self, key_id: int, wrapped: bytes) -> None: ...


class Unsealable(errors.Internal):
    """
    Says that a sealed record cannot be opened.

    It was damaged or moved to another place, or the key that sealed it is gone.
    """


class Place(NamedTuple):
    """
    Names what a sealed record is bound to.

    ``field`` is ``access``, ``refresh`` or ``raw``; ``provider`` of the settings of one, which are
    of no account, with the time of their put as the grant. Of a consent it is ``link``, ``visit``
    (with its state in the place of the account), ``device`` or ``consent``, with the grant before
    it.
    """

    provider: str
    account: str
    field: str
    grant: int
    generation: int

    def associated(self) -> bytes:
        """Return the associated data of the cipher."""
        provider, account, field, grant, generation = self
        where = _behind_length(provider) + _behind_length(account) + _behind_length(field)
        return where + _NUMBERS.pack(8, grant, 8, generation)


class Vault:
    """Seals and opens records by the data keys of the cluster; :func:`open_vault` makes it."""

    def __init__(self, keyring: Keyring, key_store: Keys, clock: Clock) -> None:
        self.keyring = keyring
        self._key_store = key_store
        self._clock = clock
        self._ciphers: dict[int, AESGCM] = {}
        self._displaced: dict[int, list[AESGCM]] = {}
        # hashes of the keys, by which two of one id are told apart
        self._marks: dict[int, bytes] = {}
        self._wrapped: dict[int, bytes] = {}
        self._fingerprints = hmac.new(b"", digestmod="sha256")
        self._newest_id = 0
        self._making = asyncio.Lock()

    @property
    def newest_id(self) -> int:
        """Return the data key that seals now."""
        return self._newest_id

    @property
    def kek(self) -> bytes:
        """Return the id of the cluster's key-encryption key."""
        return self._wrapped[FINGERPRINT_KEY_ID][1:5]

    async def ready(self) -> None:
        """
        Have a data key of today (unix days), or a later one; cheap once it is there.

        Raises what the store raises.
        """
        if self._newest_id >= self._today_id():
            return
        # Many seal at once when a day begins: one of them has the key made.
        async with self._making:
            if self._newest_id >= self._today_id():
                return
            await self.load()  # Another node may have made it.
            if self._newest_id < self._today_id():
                await self._make(self.next_id(), self.kek)

    async def load(self) -> None:
        """
        Read every data key from the store, as it is wrapped there now.

        Raises: ConfigError: a key there was wrapped by another key-encryption key than any that
        this node has.
        """
        found = await self._key_store.keys()
        if any(self.keyring.key(wrapped[1:5]) is None for wrapped in found.values()):
            await self.keyring.read()
        problems: list[str] = []
        for key_id, wrapped in found.items():
            try:
                self._admit(key_id, wrapped)
            except errors.ConfigError as error:
                problems += error.problems[: not problems]  # One tells it all.
        if problems:
            raise errors.ConfigError(problems)
        for key_id in sorted(self._wrapped.keys() - found.keys()):
            # A rotation drops what is older than the key of the rotation before: all of it, and two
            # keys stay. Else the store has lost its last writes (a failover), and another node may
            # have made a key since.
            older = any(FINGERPRINT_KEY_ID < one < key_id for one in found)
            if older or sum(one > key_id for one in found) < 2:
                log.warning(
                    "the store has lost data key %d: it gets it back from this node", key_id
                )
                await self._key_store.add(key_id, self._wrapped[key_id])
        if FINGERPRINT_KEY_ID not in self._wrapped:
            await self._make(FINGERPRINT_KEY_ID, self.keyring.ids[0])

    def seal(self, plain: bytes, place: Place) -> bytes:
        """
        Return the sealed record of ``plain``, bound to ``place``.

        The newest data key seals it (:meth:`ready` has made it).
        """
        nonce = os.urandom(NONCE_BYTES)
        body = self._ciphers[self._newest_id].encrypt(nonce, plain, place.associated())
        return _HEAD.pack(SEAL_VERSION, self._newest_id) + nonce + body

    async def unseal(self, record: bytes, place: Place) -> bytes:
        """
        Open a record that was sealed for ``place``.

        Raises: Unsealable: the record is damaged, was sealed for another place, or its data key is
        gone.
        """
        if len(record) < _HEAD.size + NONCE_BYTES + TAG_BYTES or record[0] != SEAL_VERSION:
            raise Unsealable(f"{_words(place)}: no sealed record of version {SEAL_VERSION}")
        key_id = key_id_of(record)
        if key_id not in self._ciphers:
            await self.load()  # Another node has made it since.
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Unsealable(
                f"{_words(place)}: sealed under data key {key_id}, which the store does not hold"
            )
        nonce = record[_HEAD.size : _HEAD.size + NONCE_BYTES]
        for one in (cipher, *self._displaced.get(key_id, ())):
            try:
                plain: bytes = one.decrypt(
                    nonce, record[_HEAD.size + NONCE_BYTES :], place.associated()
                )
            except InvalidTag:
                continue
            return plain
        raise Unsealable(f"{_words(place)}: the sealed record does not open here")

    async def reseal(self, record: bytes, place: Place) -> bytes:
        """Seal a record under the newest data key, unless it is so already. Raises: Unsealable."""
        if not record or key_id_of(record) == self._newest_id:
            return record
        return self.seal(await self.unseal(record, place), place)

    def fingerprint(self, provider: str, account: str, token: str) -> bytes:
        """
        Return a keyed mark of a token (8 bytes).

        It is equal for the same token of the same account, and tells nothing else.
        """
        mark = self._fingerprints.copy()  # half the price of a new one by the key
        mark.update(_behind_length(provider) + _behind_length(account) + token.encode())
        return mark.digest()[:FINGERPRINT_BYTES]

    def wrapped_key(self, record: bytes) -> tuple[int, bytes]:
        """
        Return the id and the wrapped form of the data key that sealed ``record``.

        A journal carries both.
        """
        key_id = key_id_of(record)
        return key_id, self._wrapped[key_id]

    def holds(self, record: bytes) -> bool:
        """Return whether this node knows the data key that ``record`` is sealed under."""
        return key_id_of(record) in self._wrapped

    async def restore(self, key_id: int, wrapped: bytes) -> None:
        """
        Take back a wrapped data key from a journal, and give it to the store if that has lost it.
        """
        # The store has it, wrapped as it should be now, unless it is another key.
        if key_id in self._wrapped:
            if self.keyring.key(wrapped[1:5]) is not None:
                key = self._unwrap(key_id, wrapped)
                if key_id in self._ciphers and self._marks[key_id] != sha256(key).digest():
                    self._displace(key_id, AESGCM(key))
            return
        if self.keyring.key(wrapped[1:5]) is None:
            await self.keyring.read()
        self._admit(key_id, wrapped)
        # Another one by now: then both are kept.
        self._admit(key_id, await self._key_store.add(key_id, wrapped))

    # --- rotation

    def next_id(self) -> int:
        """
        Draw an id for a new data key, of today or later, above all that are known here.

        A store that lost its last writes is asked for today's key again: under the same id that
        would be another key, and what was sealed under the first would open no more.
        """
        return max(self._today_id(), self._newest_id) + 1 + secrets.randbelow(ID_STEP_MAX)

    async def add_data_key(self, key_id: int) -> None:
        """
        Make a data key of that id, unless it is there; it seals from now on if it is the newest.

        One key is made, even if several nodes try.
        """
        if key_id not in self._wrapped:
            await self._make(key_id, self.kek)

    async def wrap_by(self, kek: bytes) -> int:
        """
        Wrap every data key by the key-encryption key of that id; returns how many changed.

        Whenever it ends, each is wrapped by one key or the other. The fingerprints' key is the
        last: from then on new data keys are wrapped by it, too.
        """
        await self.load()
        others = {
            key_id: old for key_id, old in (await self._key_store.keys()).items() if old[1:5] != kek
        }
        for key_id in sorted(others, reverse=True):
            wrapped = self._wrap(key_id, self._unwrap(key_id, others[key_id]), kek)
            await self._key_store.rewrap(key_id, wrapped)
            self._wrapped[key_id] = wrapped
        return len(others)

    # --- within

    def _today_id(self) -> int:
        return (self._clock.unix_ms() // DAY_MS) << DAY_BITS  # The least id of a key of today.

    async def _make(self, key_id: int, kek: bytes) -> None:
        wrapped = self._wrap(key_id, AESGCM.generate_key(KEY_BYTES * 8), kek)
        self._admit(key_id, await self._key_store.add(key_id, wrapped))

    def _wrap(self, key_id: int, key: bytes, kek: bytes) -> bytes:
        wrapper = self.keyring.key(kek)
        if wrapper is None:
            raise self._lacking(key_id, kek)
        nonce = os.urandom(NONCE_BYTES)
        return (
            bytes([SEAL_VERSION])
            + kek
            + nonce
            + AESGCM(wrapper).encrypt(nonce, key, _wrap_data(key_id))
        )

    def _admit(self, key_id: int, wrapped: bytes) -> None:
        if self._wrapped.get(key_id) == wrapped:
            return
        key = self._unwrap(key_id, wrapped)
        known = self._marks.get(key_id)
        self._wrapped[key_id] = wrapped
        if known == (mark := sha256(key).digest()):
            return  # The same key, wrapped otherwise.
        self._marks[key_id] = mark
        if key_id in self._ciphers:
            self._displace(key_id, self._ciphers[key_id])
        if key_id == FINGERPRINT_KEY_ID:
            self._fingerprints = hmac.new(key, digestmod="sha256")
        else:
            self._ciphers[key_id] = AESGCM(key)
            self._newest_id = max(self._newest_id, key_id)

    def _displace(self, key_id: int, cipher: AESGCM) -> None:
        """
        Keep a key whose id has become another's in the store, to open what was sealed under it.
        """
        log.error(
            "data key %d of the store is another than the one this node knew under that id: the"
            " store has lost writes. What was sealed under the first opens on this node alone: run"
            " tidewarden vault rotate here",
            key_id,
        )
        self._displaced.setdefault(key_id, []).append(cipher)

    def _unwrap(self, key_id: int, wrapped: bytes) -> bytes:
        wrapper = self.keyring.key(wrapped[1:5])
        if wrapper is None:
            raise self._lacking(key_id, wrapped[1:5])
        try:
            return AESGCM(wrapper).decrypt(wrapped[5:17], wrapped[17:], _wrap_data(key_id))
        except (InvalidTag, ValueError):  # ValueError: shorter than a nonce.
            raise self._lacking(key_id, wrapped[1:5]) from None

    def _lacking(self, key_id: int, kek: bytes) -> errors.ConfigError:
        ours = ", ".join(one.hex() for one in self.keyring.ids)
        return errors.ConfigError(
            [
                f"vault: {self.keyring.origin} holds another key than the one the store's data were"
                f" sealed with (data key {key_id}: key-encryption key {kek.hex()}, ours is {ours});"
                " give this node the vault key of the cluster"
            ]
        )


async def open_vault(keyring: Keyring, key_store: KeyStore | Keys, clock: Clock) -> Vault:
    """
    Open the vault of this cluster: load its data keys and make today's.

    A key file that is not there is made, if there is no data key either.

    Raises: ConfigError: no key, no such key, or not the one that the store's data were sealed with.
    """
    await keyring.read(make=not await key_store.keys())
    vault = Vault(keyring, key_store, clock)
    await vault.load()
    await vault.ready()
    return vault


def key_id_of(record: bytes) -> int:
    """Return the id of the data key that a record is sealed under."""
    return int(_HEAD.unpack_from(record)[1])


@lru_cache(maxsize=1024)  # a refresh needs each of its names four times
def _behind_length(word: str) -> bytes:
    raw = word.encode()
    return _LENGTH.pack(len(raw)) + raw


def _wrap_data(key_id: int) -> bytes:
    return b"tidewarden data key" + struct.pack(">I", key_id)


def _words(place: Place) -> str:
    return (
        f"{place.provider}/{place.account} {place.field} (grant {place.grant}, generation"
        f" {place.generation})"
    )
