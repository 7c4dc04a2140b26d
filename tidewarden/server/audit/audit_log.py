"""
Keeps the audit log: two bounded streams of the store, which all nodes of a cluster share.

Changes are written at once, reads of tokens and denied requests a window at a time: a read costs no
write of its own. So are the requests that a user repeats: of a verb with one outcome the first few
of a window stand alone, the others in one entry. Entries that a node has noted and not written yet
are lost when it dies. Each stream has a share for each user: if it is full, the user with the most
entries loses its oldest (``lua/add.lua``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

import msgspec

from tidewarden.clock import Clock, sleep
from tidewarden.config.settings import Audit, Config
from tidewarden.duties import Duties
from tidewarden.errors import BadArg, Error
from tidewarden.log import OncePer

from .entry_queue import WAITING_MAX, EntryQueue, Waiting

log = logging.getLogger("tidewarden.server")

ACCOUNTS_MAX = 50  # in one entry; of more there are several
READS_MAX = 50_000  # pairs of user and account that are noted together; then they are written
READS_WAITING_MAX = 4  # times so many, which the store has not taken; the oldest are given up first
ALONE_MAX = 10  # entries of a user, verb and outcome in a window; of further ones one together
READS_A_TURN = 2_000
TOGETHER = 64  # entries written at a time
AGAIN_S = 1.0
STOP_S = 2.0
WORDS_MAX = 16
WORD_CHARS_MAX = 200
REPEATED_MAX = 8  # different ones of a user in one window, in words; of further ones the number
GROUPS_MAX = 50  # of accounts that were changed, by user, peer, verb and outcome
USERS_MAX = 10_000
COUNT_MAX = 1000
RELOAD = "SIGHUP"
"""The action of changes that a node took over from its files."""
NOTHING = "This node notes nothing for the audit log (audit.enabled)."
CHANGES, READS = "audit", "audit_reads"
CURSOR = re.compile(r"([0-9]{1,16}-[0-9]{1,16})\.([0-9]{1,16}-[0-9]{1,16})")
START = "0-0.0-0"
ADD = (resources.files(__package__) / "lua" / "add.lua").read_text("utf-8")

Key = TypeVar("Key")
Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store; returns its reply."""


def audit_log(config: Config, call: Call, clock: Clock) -> AuditLog | None:
    """Return the audit log of a process as it is configured; None: nothing is noted."""
    if not config.audit.enabled:
        return None
    return AuditLog(call, config.cluster.name, config.node.name, config.audit, clock)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one entry; never a secret, and no payload."""

    at_ms: int
    """The time, unix milliseconds by the node's clock; of reads, the end of their window."""
    node: str
    user: str
    """
    The user; empty: a person who changes the node's files, or any caller at a door without users.
    """
    action: str
    """The verb, although its HTTP route may have been asked; ``DENIED``; ``SIGHUP``."""
    outcome: str = "ok"
    """``ok``, or the error's word. The outcome of ``TIMEOUT`` and the like is not known."""
    peer: str = ""
    """The peer, ``host:port``; empty if the entry is of many requests."""
    words: list[str] = []
    """The words of the request that may be shown, names first."""
    accounts: dict[str, int] = {}
    """How often each ``provider/account`` was met."""
    count: int = 1
    """The number of requests or accounts in all, those that are not named included."""
    since_ms: int = 0
    """The beginning of the window, if requests were noted together."""


class _Repeated:
    """
    Holds requests of one user in one window that are noted together, with some of their words.
    """

    __slots__ = ("count", "peer", "words")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.count = 0
        self.words: dict[str, None] = {}


class AuditLog:
    """
    Notes the audited requests of one process, and reads the entries of all.

    It is written while :meth:`running`.

    Args:
        call: to the store.
        cluster: whose keys they are.
        node: this node's name.
        settings: how much is kept.
        clock: of the entries.
    """

    def __init__(self, call: Call, cluster: str, node: str, settings: Audit, clock: Clock) -> None:
        self._call = call
        self._streams = {name: f"{{{cluster}}}:{name}" for name in (CHANGES, READS)}
        self._kept = {CHANGES: settings.kept, READS: settings.reads_kept}
        self._window_s = settings.window_s
        self._node = node
        self._clock = clock
        self._reads: dict[tuple[str, str], int] = {}
        self._whole: deque[tuple[dict[tuple[str, str], int], int]] = deque()
        self._denied: dict[str, _Repeated] = {}
        self._often: Counter[tuple[str, str, str]] = Counter()
        self._repeated: dict[tuple[str, str, str], _Repeated] = {}
        self._changed: dict[tuple[str, str, str, str], dict[str, int]] = {}
        self._since_ms = 0
        self._ends = 0.0
        self._waiting = EntryQueue()
        self._under_way = 0
        self._stopping = False
        self._news = asyncio.Event()
        self._said = OncePer(clock, 60.0)
        self.entries_total = 0

    @property
    def lost_total(self) -> int:
        """Return how many entries were given up."""
        return self._waiting.lost_total

    # --- noting

    def read(self, user: str, account: str) -> None:
        """Note that a token was read. Hot: thousands of times a second."""
        key = (user, account)
        reads = self._reads
        if key in reads:
            reads[key] += 1
        else:
            self._first_read(user, account)

    def _first_read(self, user: str, account: str) -> None:
        self._open_window()
        if len(self._reads) >= READS_MAX:
            self._close_reads()
        self._reads[user, account] = 1

    def change(
        self, user: str, peer: str, action: str, words: Sequence[str], outcome: str = "ok"
    ) -> None:
        """Note a change, or the try of one: ``words`` say what, and hold no secret."""
        shown = [word[:WORD_CHARS_MAX] for word in words[:WORDS_MAX]]
        # Whoever changes the files of a node could remove entries there as well.
        if action != RELOAD and self._is_frequent(user, action, outcome):
            self._repeat(self._repeated, (user, action, outcome), peer, " ".join(shown))
            return
        self._put(
            CHANGES,
            AuditEntry(
                at_ms=self._clock.unix_ms(),
                node=self._node,
                user=user,
                peer=peer,
                action=action,
                words=shown,
                outcome=outcome,
            ),
        )

    def account(self, user: str, peer: str, action: str, account: str, outcome: str = "ok") -> None:
        """Note that an account was changed or exported; those of one user are written together."""
        frequent = self._is_frequent(user, action, outcome)
        key = (user, "" if frequent else peer, action, outcome)
        group = self._changed.setdefault(key, {})
        group[account] = group.get(account, 0) + 1
        if len(group) >= ACCOUNTS_MAX:
            self._close_group(key)
        elif len(self._changed) >= GROUPS_MAX:
            self._close_changed()
        if not frequent:
            self._news.set()

    def denied(self, user: str, peer: str, message: str) -> None:
        """Note that a request was denied; those of one user are written together."""
        if user not in self._denied and len(self._denied) >= USERS_MAX:
            self._close_window()
        self._open_window()
        self._repeat(self._denied, user, peer, message)

    def _is_frequent(self, user: str, action: str, outcome: str) -> bool:
        """Return whether this user did this so often in this window that it is only counted."""
        self._open_window()
        key = (user, action, outcome)
        if key not in self._often and len(self._often) >= USERS_MAX:
            self._close_window()
            self._open_window()
        self._often[key] += 1
        return self._often[key] > ALONE_MAX

    def _repeat(self, among: dict[Key, _Repeated], key: Key, peer: str, words: str) -> None:
        found = among.get(key)
        if found is None:
            found = among[key] = _Repeated(peer)
        found.count += 1
        if len(found.words) < REPEATED_MAX:
            found.words[words[: 2 * WORD_CHARS_MAX]] = None

    def stats(self) -> Mapping[str, Any]:
        """Return figures for /metrics."""
        return {
            "entries_total": self.entries_total,
            "lost_total": self.lost_total,
            "waiting": len(self._waiting),
        }

    # --- writing

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write noted entries; at the end write the rest, as far as the store takes it at once."""
        writing = Duties(self._clock).begin("audit log", self._run)
        try:
            yield
        finally:
            self._stopping = True
            self._close_window()
            self._news.set()
            await asyncio.wait([writing], timeout=STOP_S)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            reads = sum(len(reads) for reads, _ in self._whole) // ACCOUNTS_MAX
            if left := len(self._waiting) + self._under_way + reads:
                log.warning("entries of the audit log are lost", extra={"entries": left})

    async def _run(self) -> None:
        while self._waiting or self._whole or self._changed or not self._stopping:
            await self._wait()
            if self._stopping or (self._window_open() and self._clock.monotonic() >= self._ends):
                self._close_window()
            self._close_changed(rare_ones=True)
            await self._note_reads()
            if not await self._write():
                await sleep(self._clock, AGAIN_S)

    async def _wait(self) -> None:
        """Wait until there are entries to write."""
        self._news.clear()
        if self._waiting or self._whole or self._stopping or self._has_rare():
            return
        left_s = max(0.0, self._ends - self._clock.monotonic()) if self._window_open() else None
        try:
            async with asyncio.timeout(left_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _window_open(self) -> bool:
        return bool(self._reads or self._denied or self._often)

    def _open_window(self) -> None:
        if not self._window_open():
            self._since_ms = self._clock.unix_ms()
            self._ends = self._clock.monotonic() + self._window_s
            self._news.set()

    def _close_window(self) -> None:
        """Make entries of the reads, denials and repetitions since the window was opened."""
        denied, self._denied = self._denied, {}
        repeated, self._repeated = self._repeated, {}
        self._often.clear()
        self._close_reads()
        self._close_changed()
        for user, found in denied.items():
            self._put_repeated((user, "DENIED", "DENIED"), found)
        for key, found in repeated.items():
            self._put_repeated(key, found)

    def _put_repeated(self, key: tuple[str, str, str], found: _Repeated) -> None:
        user, action, outcome = key
        self._put(
            CHANGES,
            AuditEntry(
                at_ms=self._clock.unix_ms(),
                since_ms=self._since_ms,
                node=self._node,
                user=user,
                peer=found.peer,
                action=action,
                outcome=outcome,
                words=list(found.words),
                count=found.count,
            ),
        )

    def _close_reads(self) -> None:
        """Queue the reads so far to be written."""
        reads, self._reads = self._reads, {}
        if reads:
            if len(self._whole) >= READS_WAITING_MAX:
                self._waiting.lost_total += len(self._whole.popleft()[0]) // ACCOUNTS_MAX
            self._whole.append((reads, self._since_ms))
            self._news.set()

    async def _note_reads(self) -> None:
        """Make entries of the reads, a few in one turn of the loop."""
        while self._whole and len(self._waiting) < WAITING_MAX // 2:
            reads, since_ms = self._whole.popleft()
            users: dict[str, dict[str, int]] = {}
            for number, ((user, account), count) in enumerate(reads.items(), 1):
                group = users.setdefault(user, {})
                group[account] = count
                if len(group) == ACCOUNTS_MAX:
                    self._put_reads(user, users.pop(user), since_ms)
                if not number % READS_A_TURN:
                    await sleep(self._clock, 0.0)
            for user, group in users.items():
                self._put_reads(user, group, since_ms)

    def _put_reads(self, user: str, accounts: dict[str, int], since_ms: int) -> None:
        self._put(
            READS,
            AuditEntry(
                at_ms=self._clock.unix_ms(),
                since_ms=since_ms,
                node=self._node,
                user=user,
                action="T.GET",
                accounts=accounts,
                count=sum(accounts.values()),
            ),
        )

    def _has_rare(self) -> bool:
        """Return whether a user changed accounts who does not do so all the time."""
        return any(not self._is_often(key) for key in self._changed)

    def _is_often(self, key: tuple[str, str, str, str]) -> bool:
        user, _, action, outcome = key
        return self._often[user, action, outcome] > ALONE_MAX

    def _close_changed(self, *, rare_ones: bool = False) -> None:
        """Make entries of the changed accounts, of all users or of those with few."""
        for key in list(self._changed):
            if not (rare_ones and self._is_often(key)):
                self._close_group(key)

    def _close_group(self, key: tuple[str, str, str, str]) -> None:
        user, peer, action, outcome = key
        accounts = self._changed.pop(key)
        self._put(
            CHANGES,
            AuditEntry(
                at_ms=self._clock.unix_ms(),
                node=self._node,
                user=user,
                peer=peer,
                action=action,
                outcome=outcome,
                accounts=accounts,
                count=sum(accounts.values()),
            ),
        )

    def _put(self, stream: str, entry: AuditEntry) -> None:
        self._waiting.put(Waiting(stream, entry.user, msgspec.json.encode(entry)))
        self._news.set()

    async def _write(self) -> bool:
        """Write some entries; False: the store did not take them all, which are kept."""
        batch = self._waiting.take(TOGETHER)
        self._under_way = len(batch)
        results = await asyncio.gather(
            *(
                self._call("EVAL", ADD, 1, self._streams[stream], user, body, self._kept[stream])
                for stream, user, body in batch
            ),
            return_exceptions=True,
        )
        failed: list[Waiting] = []
        for one, result in zip(batch, results, strict=True):
            if isinstance(result, Error):
                failed.append(one)
                if self._said.passes():
                    log.warning("the audit log waits for the store: %s", result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self.entries_total += 1
        self._under_way = 0
        self._waiting.put_back(failed)
        return not failed

    # --- reading

    async def page(
        self, after: str = "", count: int = 100, user: str | None = None
    ) -> tuple[list[dict[str, Any]], str]:
        """
        Return the entries behind a cursor, the oldest first, and the cursor behind them.

        At most ``count`` are looked at; those of others than ``user`` are left out. Behind the last
        entry there is, the cursor stays as it was.

        Raises: BadArg, and what the store raises.
        """
        found = CURSOR.fullmatch(after or START)
        if found is None:
            raise BadArg(f"AFTER is {after[:60]!r}, which is no cursor of the audit log.")
        if not 1 <= count <= COUNT_MAX:
            raise BadArg(f"COUNT is {count}; allowed is 1 to {COUNT_MAX}.")
        cursors = dict(zip((CHANGES, READS), found.groups(), strict=True))
        pages = await asyncio.gather(
            *(
                self._call("XRANGE", self._streams[name], f"({cursor}", "+", "COUNT", count)
                for name, cursor in cursors.items()
            )
        )
        merged = sorted(
            (tuple(map(int, at.split(b"-"))), name, at.decode(), fields[1])
            for name, page in zip(cursors, pages, strict=True)
            for at, fields in page
        )[:count]
        entries = []
        for _, name, at, body in merged:
            cursors[name] = at
            entry = msgspec.json.decode(body)
            if user is None or entry["user"] == user:
                entries.append(entry)
        return entries, f"{cursors[CHANGES]}.{cursors[READS]}"
