"""
The vault: what is secret in an account's row lies sealed with AES-256-GCM, bound to the place it was written for.

Data keys, one a day, seal the records; a key-encryption key from a file or the environment wraps the data keys, which
lie in the store. A sealed record is ``version 1 | key id 4 | nonce 12 | ciphertext | tag 16`` (bytes, big-endian); its
associated data are provider, account, field, grant and generation, each behind its length, so that a record moved to
another account, field or generation does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidewarden import errors
from tidewarden.clock import Clock

log = logging.getLogger("tidewarden.tokens")

SEAL_VERSION = 1
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
FINGERPRINT_BYTES = 8
FINGERPRINT_KEY_ID = 0  # The key of the fingerprints lies wrapped beside the data keys; it is never one of them.
DAY_MS = 86_400_000
_HEAD = struct.Struct(">BI")

LoadKeys = Callable[[], Awaitable[Mapping[int, bytes]]]
"""Every wrapped key in the store, by key id."""
AddKey = Callable[[int, bytes], Awaitable[bytes]]
"""Stores a wrapped key under an id that is still free; returns the one that is stored then, ours or an earlier one."""


class Unsealable(errors.Internal):
    """A sealed record does not open: damaged, moved to another place, or sealed under a key that is gone."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a sealed record is bound to. ``field`` is ``access``, ``refresh`` or ``raw``."""

    provider: str
    account: str
    field: str
    grant: int
    generation: int

    def associated(self) -> bytes:
        """The associated data of the cipher."""
        parts = (
            self.provider.encode(),
            self.account.encode(),
            self.field.encode(),
            struct.pack(">Q", self.grant),
            struct.pack(">Q", self.generation),
        )
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)


class Vault:
    """Seals and opens records. Made by :func:`open_vault`; holds the data keys of the cluster in memory."""

    def __init__(self, key: bytes, load: LoadKeys, add: AddKey, clock: Clock, origin: str) -> None:
        self._wrapper = AESGCM(key)
        self._wrapper_id = wrapping_key_id(key)
        self._load = load
        self._add = add
        self._clock = clock
        self._origin = origin
        self._ciphers: dict[int, AESGCM] = {}
        self._wrapped: dict[int, bytes] = {}
        self._fingerprint_key = b""
        self._newest_id = 0

    async def ready(self) -> None:
        """Have the data key of today (unix days); cheap once it is there. Raises what the store raises."""
        today_id = (self._clock.unix_ms() // DAY_MS) << 8  # The low byte leaves room for more keys within a day.
        if today_id in self._ciphers:
            self._newest_id = today_id
            return
        await self._make(today_id)
        self._newest_id = today_id

    async def load(self) -> None:
        """
        Read every data key from the store.

        Raises: ConfigError: a key there was wrapped by another key-encryption key than ours.
        """
        for key_id, wrapped in (await self._load()).items():
            self._admit(key_id, wrapped)
        if not self._fingerprint_key:
            await self._make(FINGERPRINT_KEY_ID)

    def seal(self, plain: bytes, place: Place) -> bytes:
        """The sealed record of ``plain``, bound to ``place``, under the newest data key (:meth:`ready` has made it)."""
        nonce = os.urandom(NONCE_BYTES)
        body = self._ciphers[self._newest_id].encrypt(nonce, plain, place.associated())
        return _HEAD.pack(SEAL_VERSION, self._newest_id) + nonce + body

    async def unseal(self, record: bytes, place: Place) -> bytes:
        """
        What was sealed for ``place``.

        Raises: Unsealable: the record is damaged, was sealed for another place, or its data key is gone.
        """
        if len(record) < _HEAD.size + NONCE_BYTES + TAG_BYTES or record[0] != SEAL_VERSION:
            raise Unsealable(f"{_words(place)}: no sealed record of version {SEAL_VERSION}")
        key_id = _HEAD.unpack_from(record)[1]
        if key_id not in self._ciphers:
            await self.load()  # Another node has made it since.
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Unsealable(f"{_words(place)}: sealed under data key {key_id}, which the store does not hold")
        nonce = record[_HEAD.size : _HEAD.size + NONCE_BYTES]
        try:
            return cipher.decrypt(nonce, record[_HEAD.size + NONCE_BYTES :], place.associated())
        except InvalidTag:
            raise Unsealable(f"{_words(place)}: the sealed record does not open here") from None

    def fingerprint(self, provider: str, account: str, token: str) -> bytes:
        """A keyed mark of a token (8 bytes): equal for the same token of the same account, tells nothing else."""
        message = b"".join(struct.pack(">I", len(part)) + part for part in (provider.encode(), account.encode()))
        return hmac.digest(self._fingerprint_key, message + token.encode(), "sha256")[:FINGERPRINT_BYTES]

    def wrapped_key(self, record: bytes) -> tuple[int, bytes]:
        """The id and the wrapped form of the data key that ``record`` is sealed under: a journal carries both."""
        key_id = int(_HEAD.unpack_from(record)[1])
        return key_id, self._wrapped[key_id]

    async def restore(self, key_id: int, wrapped: bytes) -> None:
        """Take back a wrapped data key from a journal, and give it to the store if that has lost it."""
        self._admit(key_id, wrapped)
        stored = await self._add(key_id, wrapped)
        if stored != wrapped and self._unwrap(key_id, stored) != self._unwrap(key_id, wrapped):
            log.error("data key %d of this node's journal differs from the one in the store", key_id)

    async def _make(self, key_id: int) -> None:
        nonce = os.urandom(NONCE_BYTES)
        body = self._wrapper.encrypt(nonce, AESGCM.generate_key(KEY_BYTES * 8), _wrap_data(key_id))
        stored = await self._add(key_id, bytes([SEAL_VERSION]) + self._wrapper_id + nonce + body)
        self._admit(key_id, stored)

    def _admit(self, key_id: int, wrapped: bytes) -> None:
        if key_id in self._wrapped:
            return
        key = self._unwrap(key_id, wrapped)
        self._wrapped[key_id] = wrapped
        if key_id == FINGERPRINT_KEY_ID:
            self._fingerprint_key = key
        else:
            self._ciphers[key_id] = AESGCM(key)
            self._newest_id = max(self._newest_id, key_id)

    def _unwrap(self, key_id: int, wrapped: bytes) -> bytes:
        try:
            return self._wrapper.decrypt(wrapped[5:17], wrapped[17:], _wrap_data(key_id))
        except (InvalidTag, ValueError):  # ValueError: shorter than a nonce.
            raise errors.ConfigError(
                [
                    f"vault: {self._origin} holds another key than the one the store's data were sealed with "
                    f"(data key {key_id}: key-encryption key {wrapped[1:5].hex()}, ours is {self._wrapper_id.hex()}); "
                    "give this node the vault key of the cluster"
                ]
            ) from None


async def open_vault(
    key_file: Path, key_env: str, environ: Mapping[str, str], load: LoadKeys, add: AddKey, clock: Clock
) -> Vault:
    """
    The vault of this cluster, with its data keys loaded and today's made.

    The key-encryption key (base64 of 32 bytes) comes from the environment variable ``key_env`` if one is named, else
    from ``key_file``, which is made with mode 0600 when neither it nor any data key exists.

    Raises: ConfigError: no key, no such key, or not the one that the store's data were sealed with.
    """
    if key_env:
        text = environ.get(key_env)
        if text is None:
            raise errors.ConfigError([f"vault.key_env: the environment variable {key_env} is not set"])
        origin = f"the environment variable {key_env}"
        key = _parse_key(text, origin)
    else:
        origin = str(key_file)
        if not key_file.exists():
            if await load():
                raise errors.ConfigError(
                    [f"vault.key_file: {origin} does not exist, but the store holds data sealed with a vault key; "
                     "copy the vault key of the cluster there"]
                )  # fmt: skip
            _make_key_file(key_file)
        key = _parse_key(key_file.read_text("ascii", errors="replace"), origin)
        if key_file.stat().st_mode & 0o077:
            log.warning("%s can be read by others than its owner: chmod 600 it", origin)
    vault = Vault(key, load, add, clock, origin)
    await vault.load()
    await vault.ready()
    return vault


def wrapping_key_id(key: bytes) -> bytes:
    """Four bytes that tell one key-encryption key from another without telling the key."""
    return hashlib.sha256(b"tidewarden key-encryption key" + key).digest()[:4]


def _make_key_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Whole or not at all: written aside, then linked to its name, which fails if another process was first.
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(aside, path)
        log.info("made the vault key %s: keep a copy of it elsewhere, nothing sealed opens without it", path)
    except FileExistsError:
        log.info("the vault key %s was made by another process", path)
    finally:
        aside.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parse_key(text: str, origin: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise errors.ConfigError([f"vault: {origin} must hold the base64 of {KEY_BYTES} bytes and does not"])
    return key


def _wrap_data(key_id: int) -> bytes:
    return b"tidewarden data key" + struct.pack(">I", key_id)


def _words(place: Place) -> str:
    return f"{place.provider}/{place.account} {place.field} (grant {place.grant}, generation {place.generation})"
