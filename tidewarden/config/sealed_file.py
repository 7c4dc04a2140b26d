"""
Defines sealed files of accounts: their first line, their key, and the sealing of each line.

The first line is JSON: ``{"tidewarden_export": 1, "id": …, "kdf": …, "salt": …, "n": …}``. The key
comes from a file of at least 32 bytes (``hkdf``: HKDF-SHA256) or a passphrase (``scrypt``), with
the salt. Each further line is the base64 of ``nonce 12 | ciphertext | tag 16`` of AES-256-GCM; its
associated data are the file's id and the line's number, so that a line that was moved, or comes
from another file, does not open. The last line is of the same kind and says how many there are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 1
KEY_BYTES = 32
ID_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
KEY_FILE_BYTES_MIN = 32
PASSPHRASE_CHARS_MIN = 8
# 64 MiB and some 0.2 s a try: whoever has the file can try as often as they like
SCRYPT_N = 1 << 16
SCRYPT_N_MAX = 1 << 20
_WORDS = b"tidewarden export"


class NotSealed(Exception):
    """
    The file is none of these, was damaged or cut short, or its key is another one.

    The text quotes nothing of it.
    """


@dataclass(frozen=True, slots=True)
class Header:
    """Holds the first line of a sealed file."""

    id: bytes
    kdf: str
    """``hkdf``: the key comes from a file; ``scrypt``: from a passphrase."""
    salt: bytes
    n: int = SCRYPT_N

    def line(self) -> str:
        """Return the header as a line of the file."""
        fields: dict[str, Any] = {
            "tidewarden_export": VERSION,
            "id": self.id.hex(),
            "kdf": self.kdf,
            "salt": self.salt.hex(),
        }
        return json.dumps(fields | ({"n": self.n} if self.kdf == "scrypt" else {}))


def new_header(kdf: str) -> Header:
    """Make the header of a new file."""
    return Header(os.urandom(ID_BYTES), kdf, os.urandom(16))


def read_header(line: bytes) -> Header:
    """Raises: NotSealed: it is no header, or one of a later version."""
    try:
        found = json.loads(line)
        version = found["tidewarden_export"]
        if version != VERSION:
            raise NotSealed(
                f"it is an export of version {str(version)[:20]}; this program reads {VERSION}"
            )
        header = Header(
            bytes.fromhex(found["id"]),
            found["kdf"],
            bytes.fromhex(found["salt"]),
            int(found.get("n", SCRYPT_N)),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotSealed("its first line is not that of a sealed export") from None
    fits = (
        header.kdf in ("hkdf", "scrypt")
        and len(header.id) == ID_BYTES
        and 2 <= header.n <= SCRYPT_N_MAX
    )
    if not fits or header.n & (header.n - 1):
        raise NotSealed("its first line is not that of a sealed export")
    return header


def file_key(header: Header, secret: bytes) -> bytes:
    """
    Derive the key of a file from a key file's content or a passphrase.

    Takes a fifth of a second for a passphrase.
    """
    if header.kdf == "hkdf":
        return HKDF(SHA256(), KEY_BYTES, header.salt, _WORDS).derive(secret)
    return hashlib.scrypt(
        secret, salt=header.salt, n=header.n, r=8, p=1, maxmem=(1 << 31) - 1, dklen=KEY_BYTES
    )


def seal_line(
    key: bytes, file_id: bytes, number: int, plain: bytes, *, last: bool = False
) -> bytes:
    """Seal a line, in base64. ``number`` counts from 1 after the header."""
    nonce = os.urandom(NONCE_BYTES)
    return base64.b64encode(
        nonce + AESGCM(key).encrypt(nonce, plain, _associated(file_id, number, last))
    )


def open_line(key: bytes, file_id: bytes, number: int, line: bytes, *, last: bool = False) -> bytes:
    """
    Return the content of a sealed line.

    Raises: NotSealed.
    """
    try:
        raw = base64.b64decode(line.strip(), validate=True)
        if len(raw) < NONCE_BYTES + TAG_BYTES:
            raise ValueError
        return AESGCM(key).decrypt(
            raw[:NONCE_BYTES], raw[NONCE_BYTES:], _associated(file_id, number, last)
        )
    except (InvalidTag, binascii.Error, ValueError):
        raise NotSealed(
            f"line {number + 1} does not open: another key, another file's line, or damage"
        ) from None


def last_line(key: bytes, file_id: bytes, accounts: int) -> bytes:
    """Seal the line that ends a file."""
    return seal_line(key, file_id, accounts + 1, b"%d" % accounts, last=True)


def check_last(key: bytes, file_id: bytes, number: int, line: bytes) -> None:
    """Raises: NotSealed: it is not the line that ends the file there."""
    if open_line(key, file_id, number, line, last=True) != b"%d" % (number - 1):
        raise NotSealed("it does not end where it should")


def _associated(file_id: bytes, number: int, last: bool) -> bytes:
    return _WORDS + file_id + struct.pack(">QB", number, last)
