"""
Configures PySyncObj 0.3.17, and guards it for the whole process.

Importing it guards the library for the whole process: pickles are read by a whitelist, frames have
a longest length, dead links are noticed, and a ``.meta`` that cannot be read is an error instead of
a forgotten vote. Everything here runs in the tick thread; nothing here knows asyncio.
"""

from __future__ import annotations

from pathlib import Path

import pysyncobj.node
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj import FAIL_REASON, SyncObjConf

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


NAMES = Resolver(looked_up, library_now)
"""That of the process, as the library has one."""


def _guard() -> None:
    files.guard()
    pysyncobj.tcp_connection.zlib = BoundedZlib
    pysyncobj.node.globalDnsResolver = lambda: NAMES
    pysyncobj.tcp_server.TcpConnection = pysyncobj.transport.TcpConnection = RaftConnection


_guard()
