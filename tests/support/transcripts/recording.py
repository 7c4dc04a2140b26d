"""
Records what a story's participants say to each other, in order, as lines that a person can read.

The store is watched by MONITOR, from outside: each script call with the keys that it writes. A token
endpoint notes what it is asked and answers; each fsync of a journal is noted with the records that
it put on the disk. All of it happens on one machine, so its clock puts the lines in order. What
differs from run to run (times, lease numbers, random ids, hashes) is left out or given a name.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import difflib
import os
import re
import struct
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

LINE_BYTES_MAX = 1 << 26  # a script's whole text is one line of MONITOR
WRITES = {"HSET": "+", "HDEL": "-", "ZADD": "+", "ZREM": "-"}
_LINE = re.compile(r"^\+?(\d+)\.(\d{6}) \[\d+ ([^\]]*)\] (.*)$", re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_HASHED = re.compile(r"^([a-z]+)_(\w+)_[0-9a-f]{16}(_each)?$")
_RECORD = struct.Struct(">II")  # before each record of a journal: its length, its CRC-32


@dataclass
class Call:
    """A script call: when (unix µs), by whom, its name, arguments, and the writes it made."""

    at_us: int
    name: str
    words: list[bytes]
    inner: list[list[bytes]] = field(default_factory=list)

    @property
    def holder(self) -> str:
        """Return the node in whose name it was made, or nothing."""
        found = [word for word in self.words if re.fullmatch(rb"n\d+\.\d+", word)]
        return found[0].partition(b".")[0].decode() if found else ""

    def concerns(self, subjects: Collection[str]) -> bool:
        """Tell whether it names one of the subjects."""
        said = {subject.encode() for subject in subjects}
        return any(word in said for words in (self.words, *self.inner) for word in words)


@dataclass
class Recording:
    """
    Lines of one story.

    ``subjects`` are the accounts or tasks it is about; calls that name none of them are left out.
    ``names`` maps scripts' SHAs to their names. With the first line that holds ``ends_with`` the
    story is over. ``waiting`` is a queue whose list of nodes with waiting takes belongs to it.
    """

    subjects: Collection[str]
    names: dict[str, str]
    lines: list[tuple[int, int, str]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ends_with: str = ""
    waiting: str = ""
    tells: Callable[[Call], str] = lambda _: ""
    """What else is to be said of a call, or nothing."""
    _marks: set[bytes] = field(default_factory=set)
    _there: set[tuple[str, str]] = field(default_factory=set)
    _call: Call | None = None

    def note(self, who: str, text: str, at_us: int = 0) -> None:
        """Add a line of that participant."""
        line = f"{who:9} {text}".rstrip()
        self.lines.append((at_us or time.time_ns() // 1000, len(self.lines), line))
        if self.ends_with and self.ends_with in line:
            self.over.set()

    def has(self, words: str) -> bool:
        """Tell whether a line holds these words."""
        return any(words in line for _, _, line in self.lines)

    def text(self) -> str:
        """Return the lines in the order of their times, up to the story's end."""
        text = ""
        for _, _, line in sorted(self.lines):
            wrapped = textwrap.wrap(
                line, 98, subsequent_indent=" " * 12, break_on_hyphens=False, break_long_words=False
            )
            text += "".join(f"{part}\n" for part in wrapped)
            if self.ends_with and self.ends_with in line:
                break
        return text

    async def caught_up(self, call: Callable[..., Any]) -> None:
        """Wait until everything is recorded that the store did before; ``call`` sends it a command."""
        mark = os.urandom(8).hex()
        await call("ECHO", mark)
        async with asyncio.timeout(30):
            while mark.encode() not in self._marks:
                await asyncio.sleep(0.005)

    async def watch(self, reader: asyncio.StreamReader) -> None:
        """Read MONITOR to its end."""
        while line := await reader.readline():
            self.heard(line.decode("latin-1").rstrip("\r\n"))

    def heard(self, line: str) -> None:
        """Take in one line of MONITOR."""
        found = _LINE.match(line)
        if found is None:
            return
        at_us = int(found[1]) * 1_000_000 + int(found[2])
        words = [
            codecs.escape_decode(word.encode("latin-1"))[0] for word in _WORD.findall(found[4])
        ]
        if found[3] == "lua":
            if self._call is not None:
                self._call.inner.append(words)
            return
        self._finish()
        verb = words[0].decode().upper()
        if verb in ("EVALSHA", "FCALL"):
            self._call = Call(at_us, self._name(words[1].decode()), words[3:])
        elif verb == "XADD" and words[1].endswith(b":events"):  # the audit log's are others
            self._event(at_us, words)
        elif verb == "ECHO":
            self._marks.add(words[1])

    def _name(self, called: str) -> str:
        hashed = _HASHED.match(called)
        return f"{hashed[1]}.{hashed[2]}" if hashed else self.names.get(called, called)

    def _finish(self) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if more := self.tells(call):
            self.note("store", more, call.at_us)
        decided = [word for subject in self.subjects for word in _decided(call, subject)]
        writes = self._writes(call)
        if writes or decided:
            said = f"{call.holder} {call.name}: {', '.join([*decided, *writes])}".strip()
            self.note("store", said, call.at_us)

    def _writes(self, call: Call) -> list[str]:
        """Return what the call changed of the subjects: ``+`` is there now, ``=`` anew, ``-`` gone."""
        before, touched, told = set(self._there), {}, []
        for words in call.inner:
            verb, key, *rest = (word.decode("latin-1") for word in (*words, b""))
            if verb == "PUBLISH" and named(key).startswith("wake"):
                told.append(f"tells {named(key)}")
            for subject in self.subjects:
                if verb in WRITES and subject in rest:
                    here = touched.setdefault((named(key), subject), None) or (named(key), subject)
                    (self._there.add if WRITES[verb] == "+" else self._there.discard)(here)
        signs = {(False, True): "+", (True, True): "=", (True, False): "-"}
        changes = [((here in before, here in self._there), here) for here in touched]
        waits = self._waits(call)
        return [signs[how] + kind for how, (kind, _) in changes if how in signs] + waits + told

    def _waits(self, call: Call) -> list[str]:
        """Return the nodes that have waiting takes from now on, where the call changed that."""
        found = []
        for words in call.inner:
            if words[0] == b"HSET" and words[1].endswith(f":{self.waiting}:0}}:shard".encode()):
                pairs = dict(zip(words[2::2], words[3::2], strict=True))
                if b"waiting" in pairs:
                    nodes = re.findall(r"n\d+", pairs[b"waiting"].decode("latin-1"))
                    found.append(f"waiting: {' '.join(nodes) or 'nobody'}")
        return found

    def _event(self, at_us: int, words: list[bytes]) -> None:
        event = msgspec.json.decode(words[-1])
        self.note("events", f"{event['type']} {event['data'].get('account', '')}".rstrip(), at_us)


def named(key: str) -> str:
    """Return what stands behind a key's braces, and of a holder only the node's name."""
    return re.sub(r"(n\d+)\.\d+$", r"\1", key.rpartition("}:")[2])


def _decided(call: Call, subject: str) -> list[str]:
    """Return what a refresh that failed is followed by, as ``tokens/lua/failed.lua`` is told it."""
    if call.name != "tokens.failed" or subject.encode() not in call.words:
        return []
    at = call.words.index(subject.encode())
    what, spare, event = (call.words[at + place].decode() for place in (2, 5, 6))
    told = [f"to be told: {event}"] if event else []
    return [what, f"spare: {spare}", *told]


def journal_records(data: bytes) -> Iterator[str]:
    """Yield the kind, and whose it is, of each record in that part of a tokens' journal."""
    at = 6 if data.startswith(b"TWTJ") else 0
    while at + _RECORD.size <= len(data):
        size, _ = _RECORD.unpack_from(data, at)
        body = msgspec.msgpack.decode(data[at + _RECORD.size : at + _RECORD.size + size])
        yield f"{body[0]} of {body[3]}" if body[0] in ("answer", "raw") else str(body[0])
        at += _RECORD.size + size


@contextlib.contextmanager
def journals_noted(recording: Recording) -> Iterator[None]:
    """Note each fsync of a file ``tokens.journal`` in this process, with the records it concerns."""
    sizes: dict[str, int] = {}

    def noting(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def noted(file: Any) -> None:
            sync(file)
            number = file if isinstance(file, int) else file.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            if not path.endswith("tokens.journal"):
                return
            data = Path(path).read_bytes()
            before = sizes.get(path, 0) if sizes.get(path, 0) <= len(data) else 0
            sizes[path] = len(data)
            kinds = list(journal_records(data[before:]))
            if any(kind.rpartition(" ")[2] in recording.subjects for kind in kinds):
                recording.note("journal", f"on the disk: {', '.join(kinds)}")

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, noting(getattr(os, name)))
        yield


@contextlib.asynccontextmanager
async def server_watched(
    recording: Recording, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[None]:
    """Record the calls of the server at the other end of that connection."""
    writer.write(b"MONITOR\r\n")
    await reader.readline()
    watching = asyncio.create_task(recording.watch(reader))
    try:
        yield
    finally:
        watching.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


@contextlib.asynccontextmanager
async def store_watched(recording: Recording, path: str) -> AsyncIterator[None]:
    """Record the calls of the server behind that Unix socket."""
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    async with server_watched(recording, reader, writer):
        yield


def compare(text: str, file: Path, *, rewrite: bool) -> None:
    """Compare a story with the one that was recorded; ``rewrite``: keep it as the new one."""
    before = file.read_text("utf-8") if file.exists() else ""
    if rewrite:
        file.write_text(text, "utf-8")
        return
    if text != before:
        change = difflib.unified_diff(
            before.splitlines(), text.splitlines(), "recorded", "now", lineterm=""
        )
        pytest.fail(
            f"{file.name} is another story now (pytest --rewrite records it):\n" + "\n".join(change)
        )
