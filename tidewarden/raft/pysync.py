"""
Configures PySyncObj 0.3.17, and guards it for the whole process.

Importing it guards the library for the whole process: pickles are read by a whitelist, frames have
a longest length, dead links are noticed, and a ``.meta`` that cannot be read is an error instead of
a forgotten vote. Everything here runs in the tick thread; nothing here knows asyncio.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from pathlib import Path

import pysyncobj.node
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from pysyncobj import FAIL_REASON, SyncObjConf
from pysyncobj.encryptor import SALT

from . import files
from .resolver import Resolver, looked_up
from .state import Times
from .wire import KEEPALIVE, BoundedZlib, RaftConnection

SUCCESS: int = FAIL_REASON.SUCCESS
REQUEST_DENIED: int = FAIL_REASON.REQUEST_DENIED
MISSING_LEADER: int = FAIL_REASON.MISSING_LEADER
REASONS: dict[int, str] = {
    FAIL_REASON.QUEUE_FULL: "too many proposals wait",
    FAIL_REASON.MISSING_LEADER: "no leader is known",
    FAIL_REASON.DISCARDED: "another leader's entry took its place",
    FAIL_REASON.NOT_LEADER: "the leader changed",
    FAIL_REASON.LEADER_CHANGED: "the leader changed",
    FAIL_REASON.REQUEST_DENIED: "the member is not connected or not caught up",
    FAIL_REASON.UNKNOWN_OUTCOME: "its outcome is unknown",
}


def library_now() -> float:
    """
    Return the library's clock, seconds.

    It is looked up at each call, for the simulation puts another there.
    """
    now: float = pysyncobj.syncobj.monotonicTime()
    return now


def configure(folder: Path, bind: str, password: str, times: Times) -> SyncObjConf:
    """
    Make the library's settings.

    Args: ``folder``: where journal and dump lie; ``bind``: ``host:port`` to listen on, nothing
    else; ``password``: encrypts and authenticates every frame.
    """
    return SyncObjConf(
        autoTick=False,
        appendEntriesPeriod=times.heartbeat_s,
        raftMinTimeout=times.election_min_s,
        raftMaxTimeout=times.election_max_s,
        leaderFallbackTimeout=times.fallback_s,
        # Followers are silent to each other, and the stock transport closes a silent link just when
        # the first vote request comes along it, which wastes the first election. Ours watches links
        # itself.
        connectionTimeout=3600,
        connectionRetryTime=times.retry_s,
        tcp_keepalive=KEEPALIVE,
        appendEntriesUseBatch=False,  # a proposal leaves at once
        commandsWaitLeader=False,
        commandsQueueSize=1000,
        journalFile=str(folder / "raft.journal"),
        fullDumpFile=str(folder / "raft.dump"),
        useFork=False,  # a fork of a threaded process may hang
        # compaction is not crash-safe, and tens of entries a day need none
        logCompactionMinEntries=10**9,
        logCompactionMinTime=10**9,
        # asks ``voter`` wherever the library would change its members itself
        dynamicMembershipChange=True,
        bindAddress=bind,
        password=password,
        preferredAddrType="ipv4",
        maxBindRetries=1,
    )


ROUNDS = 100_000
"""Of the library; what the password is made of was stretched before."""
VERSION = b"\x80"
BLOCK_BYTES, TAG_BYTES = 16, 32
HEAD_BYTES = 1 + 8 + BLOCK_BYTES
"""A version, a time in seconds, and what the encryption begins with."""


class InvalidFrame(Exception):
    """Says that a frame was not sealed with this key, or not as a whole."""


class LinkCipher:
    """
    Takes the place of the library's encryptor, a Fernet, and seals frames for a part of its price.

    A member sends and hears dozens of frames a second while nothing happens. The library makes some
    small objects for each, and opens each twice: once for its time, once for its text. The format
    is Fernet's (https://github.com/fernet/spec/blob/master/Spec.md), so members of former versions
    are understood. One thread uses it.
    """

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


NAMES = Resolver(looked_up, library_now)
"""That of the process, as the library has one."""


def _guard() -> None:
    files.guard()
    pysyncobj.tcp_connection.zlib = BoundedZlib
    pysyncobj.syncobj.getEncryptor = LinkCipher
    pysyncobj.node.globalDnsResolver = lambda: NAMES
    pysyncobj.tcp_server.TcpConnection = pysyncobj.transport.TcpConnection = RaftConnection


_guard()
