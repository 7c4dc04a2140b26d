"""
Seals the frames of Raft's links as Fernet does, for a fraction of its price.

A member sends and hears dozens of frames a second while nothing happens. The library seals each by
``cryptography``'s Fernet, whose pieces are small objects made anew for each frame, and opens each
twice: once for its time, once for its text. The format is Fernet's
(https://github.com/fernet/spec/blob/master/Spec.md), so members of former versions are understood.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from pysyncobj.encryptor import SALT

ROUNDS = 100_000
"""Of the library; what the password is made of was stretched before."""
VERSION = b"\x80"
BLOCK_BYTES, TAG_BYTES = 16, 32
HEAD_BYTES = 1 + 8 + BLOCK_BYTES
"""A version, a time in seconds, and what the encryption begins with."""


class InvalidFrame(Exception):
    """Says that a frame was not sealed with this key, or not as a whole."""


class LinkCipher:
    """Takes the place of the library's encryptor, a Fernet; one thread uses it."""

    def __init__(self, password: str) -> None:
        """Seal with the key that the library makes of ``password``."""
        key = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, ROUNDS, 32)
        self._sign_key, self._cipher = key[:16], algorithms.AES(key[16:])
        self._opened: tuple[bytes | None, int, bytes] = (None, 0, b"")
        """The frame that was opened last, if any was, its time and its text."""

    def encrypt_at_time(self, data: bytes, current_time: int) -> bytes:
        """Return the sealed ``data``, of that time in seconds."""
        start = os.urandom(BLOCK_BYTES)
        missing = BLOCK_BYTES - len(data) % BLOCK_BYTES
        sealing = Cipher(self._cipher, modes.CBC(start)).encryptor()
        text = sealing.update(data + bytes((missing,)) * missing) + sealing.finalize()
        signed = VERSION + current_time.to_bytes(8, "big") + start + text
        return base64.urlsafe_b64encode(signed + hmac.digest(self._sign_key, signed, "sha256"))

    def extract_timestamp(self, token: bytes) -> int:
        """Return the time of a frame, in seconds. Raises: InvalidFrame."""
        if self._opened[0] is not token:
            self._opened = (token, *self._open(token))
        return self._opened[1]

    def decrypt(self, token: bytes) -> bytes:
        """Return what was sealed. Raises: InvalidFrame."""
        self.extract_timestamp(token)
        return self._opened[2]

    def _open(self, token: bytes) -> tuple[int, bytes]:
        try:
            raw = base64.urlsafe_b64decode(token)
        except (binascii.Error, ValueError):
            raise InvalidFrame from None
        signed, tag = raw[:-TAG_BYTES], raw[-TAG_BYTES:]
        text = signed[HEAD_BYTES:]
        if not text or len(text) % BLOCK_BYTES or not signed.startswith(VERSION):
            raise InvalidFrame
        if not hmac.compare_digest(tag, hmac.digest(self._sign_key, signed, "sha256")):
            raise InvalidFrame
        opening = Cipher(self._cipher, modes.CBC(signed[9:HEAD_BYTES])).decryptor()
        data = opening.update(text) + opening.finalize()
        missing = data[-1]
        if not 0 < missing <= BLOCK_BYTES or data[-missing:] != bytes((missing,)) * missing:
            raise InvalidFrame
        return int.from_bytes(signed[1:9], "big"), data[:-missing]
