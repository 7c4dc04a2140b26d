"""
Reads files of key-encryption keys.

Each line is the base64 of 32 bytes; a rotation wraps with the first key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tidewarden.errors import ConfigError

if TYPE_CHECKING:
    from .settings import Vault

KEY_BYTES = 32
KEYS_MAX = 16


def key_faults(vault: Vault) -> list[tuple[str, str]]:
    """List the faults of the settings for keys: each setting with words."""
    faults = []
    given = [name for name in ("key_file", "key_env", "key_command") if getattr(vault, name)]
    if len(given) > 1:
        faults.append((given[1], f"found with vault.{given[0]}; allowed: one of the two"))
    try:
        shlex.split(vault.key_command)
    except ValueError as error:
        faults.append(
            (
                "key_command",
                f"found {vault.key_command!r}: {error}; allowed: a program and its arguments",
            )
        )
    return faults


def wrapping_key_id(key: bytes) -> bytes:
    """Return four bytes that tell a key-encryption key from others without telling the key."""
    return hashlib.sha256(b"tidewarden key-encryption key" + key).digest()[:4]


def new_key() -> str:
    """Make a fresh key as it is written."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def parse_keys(text: str, origin: str) -> list[bytes]:
    """
    Parse the keys of a source: words, or lines.

    Raises: ConfigError, without quoting what may be a key.
    """
    keys = []
    for number, word in enumerate(text.replace(",", " ").split(), 1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            which = f"key {number} of " if number > 1 else ""
            raise ConfigError(
                [f"vault: {which}{origin} must hold the base64 of {KEY_BYTES} bytes and does not"]
            )
        keys.append(key)
    if not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(
            [
                f"vault: {origin} must hold the base64 of {KEY_BYTES} bytes, 1 to {KEYS_MAX} times,"
                f" and has {len(keys)}"
            ]
        )
    return keys


def make_file(path: Path) -> bool:
    """
    Make a file with a fresh key, 0600, and its folder.

    False: another process was first. Raises: OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Whole or not at all: written aside, then linked to its name, which fails if another process
    # was first.
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    write_keys(aside, new_key() + "\n")
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return True


def write_keys(path: Path, text: str) -> None:
    """Write a file of keys, 0600, on disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text.encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepend_key(path: Path) -> bytes:
    """
    Put a fresh key before those in the file, which stay; the file changes whole or not at all.

    The new key's id.

    Raises: ConfigError: what is there holds no keys; OSError.
    """
    old = path.read_text("ascii", errors="replace")
    parse_keys(old, str(path))
    key = new_key()
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    write_keys(aside, f"{key}\n{old.strip()}\n")
    os.replace(aside, path)
    sync_folder(path.parent)
    return wrapping_key_id(base64.b64decode(key))


def sync_folder(path: Path) -> None:
    """
    Sync a folder's entries to disk.

    Raises: OSError.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
