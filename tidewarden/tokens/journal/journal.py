"""
Journals what a provider answered: sealed, and on disk before anything else happens to it.

An append-only file of :mod:`tidewarden.tokens.journal.journal_records`. Group commit: what comes
while one fsync runs shares the next. At the start the file is read back. What is no whole record (a
torn tail, as a power cut leaves it, or a damaged byte) is set aside and reported; all other records
count. When most of the file is history it begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidewarden import errors

from .journal_records import (
    MAGIC,
    JournalAnswer,
    JournalConsent,
    JournalKey,
    RawAnswer,
    Record,
    Stored,
    frame,
    read_records,
)

log = logging.getLogger("tidewarden.tokens")

# The file begins anew when it is longer, and has doubled since it last did: then half of it is
# history.
REWRITE_BYTES = 4 << 20
RAWS_MAX = 256  # Unreadable answers kept; of the client with the most, the oldest go first.
# Of them to one refresh token: the first, to which its successor belongs if it had one, and the
# newest; an outage has a page a minute.
RAWS_OF_ONE_MAX = 4


class Journal:
    """Writes one file of one node. Opened by :meth:`open`; all else runs in one event loop."""

    def __init__(self, path: Path) -> None:
        """Name the file ``path``; :meth:`open` makes it when it is absent."""
        self._path = path
        self._file = -1
        self._bytes = 0
        self._begun_bytes = 0
        """The file's length when it last began anew; its records of then may be needed still."""
        self._number = 0
        self._answers: dict[int, JournalAnswer] = {}
        self._by_account: dict[tuple[str, str], int] = {}
        self._raws: dict[int, RawAnswer] = {}
        self._consents: dict[int, JournalConsent] = {}
        self._keys: dict[int, bytes] = {}
        self._waiting: list[tuple[bytes, asyncio.Future[None] | None]] = []
        self._flushing: asyncio.Task[None] | None = None
        # One group at a time: after a failed one the next must know of it.
        self._committing = asyncio.Lock()
        self._commits: set[asyncio.Task[None]] = set()
        self.fault = ""
        """Why the last write failed: the file and what the system said. Empty: it did not."""
        self._anew = False  # The next commit begins the file anew.
        # To ask for it is a system call before Python 3.12.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(1, "tokens-journal")
        self._foreign: list[bytes] = []
        self.torn_bytes = 0
        """Bytes at the file's end that :meth:`open` could not read, as a crash leaves them."""
        self.damaged_bytes = 0
        """Bytes before its last record that :meth:`open` could not read."""

    def open(self) -> None:
        """
        Read the file back, blocking; what is not stored yet is in :meth:`pending` then.

        Raises: Internal: the file is no journal. OSError: it cannot be read or written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        raw = self._path.read_bytes() if self._path.exists() else b""
        found = read_records(raw)
        if found.damage[:1] == [(0, len(raw))] and not raw.startswith(MAGIC[: len(raw)]):
            raise errors.Internal(
                f"{self._path} is not a journal of tokens (it does not begin with {MAGIC!r})"
            )
        for record in found.records:
            self._apply(record)
        self._foreign = found.foreign
        if found.foreign:
            log.warning(
                "%s has %d records of a kind that this version does not know; they stay there",
                self._path,
                len(found.foreign),
            )
        if found.damage:
            self._set_aside(raw, found.damage)
        try:
            self._rewrite()
        except OSError as error:  # a full disk names no file
            raise self._told(error) from None

    def _set_aside(self, raw: bytes, damage: list[tuple[int, int]]) -> None:
        """Move unreadable bytes into a file of their own, and log where it is. Raises: OSError."""
        aside = self._path.with_name(self._path.name + ".torn")
        aside.write_bytes(b"".join(raw[begin:end] for begin, end in damage))
        begin, end = damage[-1]
        if end == len(raw):
            self.torn_bytes = end - begin
            log.error(
                "%s: the last %d bytes are no whole record (a crash while writing?); set aside"
                " as %s",
                self._path,
                self.torn_bytes,
                aside,
            )
            damage = damage[:-1]
        if damage:
            self.damaged_bytes = sum(end - begin for begin, end in damage)
            log.error(
                "%s: %d bytes in %d places, the first at %d, are damaged, which no crash does (a"
                " failing disk?); set aside as %s; all other records are read",
                self._path,
                self.damaged_bytes,
                len(damage),
                damage[0][0],
                aside,
            )

    def pending(self) -> list[JournalAnswer]:
        """Return the answers that are not known to be in the store, oldest first."""
        return list(self._answers.values())

    def find(self, queue: str, account: str, grant: int, generation: int) -> JournalAnswer | None:
        """
        Return the answer for that account to a request with that generation.

        The answer is here as long as it is not stored.
        """
        answer = self._answers.get(self._by_account.get((queue, account), -1))
        return (
            answer
            if answer is not None and (answer.grant, answer.generation) == (grant, generation)
            else None
        )

    def keys(self) -> dict[int, bytes]:
        """Return the wrapped data keys that the journal carries, by id."""
        return dict(self._keys)

    def raws(self) -> list[RawAnswer]:
        """Return the unreadable answers that are kept."""
        return list(self._raws.values())

    def consents(self) -> list[JournalConsent]:
        """Return what was given for consents and is not known to be in the store, oldest first."""
        return list(self._consents.values())

    def waits(self, consent: JournalConsent) -> bool:
        """Return whether what was given for a consent is still not known to be in the store."""
        return consent.number in self._consents

    async def add_answer(
        self,
        queue: str,
        account: str,
        grant: int,
        generation: int,
        row: bytes,
        due: tuple[int, int],
        key: tuple[int, bytes],
        *,
        orphan: bool = False,
    ) -> JournalAnswer:
        """
        Write an answer down; return when it is on disk.

        ``due`` holds due and deadline, ``key`` the data key that it is sealed under. Raises:
        OSError: the write failed. The answer is in :meth:`pending` all the same, for as long as
        this process lives.
        """
        self._number += 1
        answer = JournalAnswer(self._number, queue, account, grant, generation, row, *due, orphan)
        await self._append(answer, key)
        return answer

    async def add_raw(
        self,
        queue: str,
        account: str,
        grant: int,
        generation: int,
        unix_ms: int,
        body: bytes,
        key: tuple[int, bytes],
    ) -> None:
        """
        Keep an unreadable answer, sealed; return when it is on disk. Raises OSError if it is not.
        """
        self._number += 1
        await self._append(
            RawAnswer(self._number, queue, account, grant, generation, unix_ms, body), key
        )

    async def add_consent(
        self,
        queue: str,
        account: str,
        before: tuple[int, int],
        body: bytes,
        claim: tuple[str, str],
        key: tuple[int, bytes],
    ) -> JournalConsent:
        """
        Write down what was given for a consent; return when it is on disk.

        ``before`` holds the account's grant and its shard's floor. Raises: OSError: the write
        failed. It is in :meth:`consents` all the same.
        """
        self._number += 1
        grant, floor = before
        consent = JournalConsent(self._number, queue, account, grant, body, claim, floor)
        await self._append(consent, key)
        return consent

    def stored(self, answer: JournalAnswer | JournalConsent) -> None:
        """
        Note that the answer is in the store.

        The note is written with the next commit: if it is lost, the answer is merely offered again.
        """
        record = Stored(answer.number)
        self._apply(record)
        self._waiting.append((frame(record), None))

    def forget(self, raws: Iterable[RawAnswer]) -> None:
        """
        Drop unreadable answers that belong to no account any more.

        With the next commit they are gone from the file, too.
        """
        for raw in raws:
            record = Stored(raw.number)
            self._apply(record)
            self._waiting.append((frame(record), None))
            self._anew = True

    async def flush(self) -> None:
        """
        Bring waiting records to disk, and begin the file anew if it is mostly history.

        It logs a failure.
        """
        if self._waiting or self._is_history:
            try:
                await self._commit()
            except OSError as error:
                log.error("%s: %s", self._path, error)

    @property
    def _is_history(self) -> bool:
        """Return whether so much of the file is no longer needed that it should begin anew."""
        needed = self._answers or self._raws or self._consents or self._foreign
        if not needed and self._bytes > 1 << 16:
            return True
        return self._bytes > max(REWRITE_BYTES, 2 * self._begun_bytes)

    async def replace(
        self,
        answers: Iterable[JournalAnswer],
        raws: Iterable[RawAnswer],
        keys: Mapping[int, bytes],
        consents: Iterable[JournalConsent] = (),
    ) -> None:
        """
        Replace records by their resealed versions, and begin the file anew with these keys.

        Records that are gone by now stay gone; a key that came since, for an answer that did, stays
        too.

        Raises: OSError: the file is not written; the next commit tries again.
        """
        self._answers.update({one.number: one for one in answers if one.number in self._answers})
        self._raws.update({one.number: one for one in raws if one.number in self._raws})
        self._consents.update({one.number: one for one in consents if one.number in self._consents})
        newest = max(keys, default=max(self._keys, default=0))
        self._keys = {key_id: one for key_id, one in self._keys.items() if key_id > newest} | dict(
            keys
        )
        self._anew = True
        await self._commit()

    async def heal(self) -> None:
        """
        Try to begin the file anew, after a write that failed.

        :attr:`fault` tells whether it went well.
        """
        try:
            await self._commit()
        except OSError as error:
            log.error("%s is still not written: %s", self._path, error)

    async def close(self) -> None:
        """Flush and close the file."""
        await self.flush()
        await asyncio.gather(*self._commits, return_exceptions=True)
        self._thread.shutdown(wait=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def _append(
        self, record: JournalAnswer | RawAnswer | JournalConsent, key: tuple[int, bytes]
    ) -> None:
        if key[0] not in self._keys:
            wrapped = JournalKey(*key)
            self._apply(wrapped)
            self._waiting.append((frame(wrapped), None))
        self._apply(record)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((frame(record), future))
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush_all())
        await future

    async def _flush_all(self) -> None:
        """Commit group after group until nothing waits."""
        try:
            while any(future for _, future in self._waiting):
                try:
                    await self._commit()
                except OSError:
                    log.debug("%s: a commit failed; its callers were told", self._path)
        finally:
            self._flushing = None

    async def _commit(self) -> None:
        """
        Commit the group; once begun, the commit goes on although its caller ends.

        Raises: OSError. Others' answers are in the group.
        """
        work = asyncio.create_task(self._commit_next(), name="a group of the journal")
        self._commits.add(work)
        work.add_done_callback(self._committed)
        await asyncio.shield(work)

    def _committed(self, work: asyncio.Task[None]) -> None:
        self._commits.discard(work)
        if not work.cancelled() and work.exception() is not None:
            # its callers are told
            log.debug("%s: a commit failed: %s", self._path, work.exception())

    async def _commit_next(self) -> None:
        async with self._committing:
            await self._commit_group()

    async def _commit_group(self) -> None:
        group, self._waiting = self._waiting, []
        work: Callable[[], None]
        if self.fault or self._anew or self._is_history:
            body = self._live()  # Everything of the group that still matters is in there.
            work = lambda: self._write_anew(body)  # noqa: E731
        else:
            data = b"".join(item for item, _ in group)
            work = lambda: self._write(data)  # noqa: E731
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:
            # What the file holds now is not known; the next commit writes a new one.
            why = error.strerror if isinstance(error, OSError) else ""
            self.fault = f"{self._path}: {why or error}"
            for _, future in group:
                if future is not None and not future.done():
                    future.set_exception(self._told(error))
            raise
        self.fault, self._anew = "", False
        for _, future in group:
            if future is not None and not future.done():
                future.set_result(None)

    def _told(self, error: Exception) -> Exception:
        """Return the error for callers that wait for a group, with the file's name in it."""
        return (
            OSError(error.errno, f"{self._path}: {error.strerror}")
            if isinstance(error, OSError)
            else error
        )

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)
        self._bytes += len(data)

    def _rewrite(self) -> None:
        self._write_anew(self._live())

    def _live(self) -> bytes:
        needed: Iterable[Record] = (
            *(JournalKey(key_id, wrapped) for key_id, wrapped in self._keys.items()),
            *self._raws.values(),
            *self._consents.values(),
            *self._answers.values(),
        )
        return b"".join((MAGIC, *self._foreign, *(frame(record) for record in needed)))

    def _write_anew(self, body: bytes) -> None:
        aside = self._path.with_name(self._path.name + ".new")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            view = memoryview(body)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
            os.replace(aside, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(descriptor)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._bytes, self._begun_bytes = descriptor, len(body), len(body)

    def _apply(self, record: Record) -> None:
        if isinstance(record, JournalAnswer):
            self._answers[record.number] = record
            self._by_account[record.queue, record.account] = record.number
            self._number = max(self._number, record.number)
        elif isinstance(record, JournalConsent):
            self._consents[record.number] = record
            self._number = max(self._number, record.number)
        elif isinstance(record, Stored):
            self._raws.pop(record.number, None)
            self._consents.pop(record.number, None)
            answer = self._answers.pop(record.number, None)
            if answer and self._by_account.get((answer.queue, answer.account)) == record.number:
                del self._by_account[answer.queue, answer.account]
        elif isinstance(record, RawAnswer):
            self._number = max(self._number, record.number)
            self._keep(record)
        else:
            self._keys[record.key_id] = record.wrapped

    def _keep(self, raw: RawAnswer) -> None:
        def place(one: RawAnswer) -> tuple[str, str, int, int]:
            return one.queue, one.account, one.grant, one.generation

        same = [number for number, one in self._raws.items() if place(one) == place(raw)]
        if len(same) >= RAWS_OF_ONE_MAX:
            del self._raws[max(same)]
        self._raws[raw.number] = raw
        if len(self._raws) > RAWS_MAX:
            # Of another client, one may be all that is left of an account.
            [(most, _)] = Counter(one.queue for one in self._raws.values()).most_common(1)
            del self._raws[min(n for n, one in self._raws.items() if one.queue == most)]
