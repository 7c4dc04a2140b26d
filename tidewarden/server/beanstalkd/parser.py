"""
Reads requests as beanstalkd 1.12 reads them, its leniencies included.

No command is refused here that beanstalkd takes, and what it answers without looking at a job
(``BAD_FORMAT``, ``JOB_TOO_BIG`` …) is answered here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .tube_names import is_tube

LINE_BYTES = 224  # of a command, its end included
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

BAD_FORMAT = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
NO_COMMAND = "its first line is no command of beanstalkd"
TOO_LONG = "its first line is longer than a command of beanstalkd"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"

_NUMBER = re.compile(r" *([0-9]+)")
_NAME = re.compile(r" *([A-Za-z0-9+/;.$_()-]+)")
_LONG = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_HTTP = re.compile(rb"[A-Z]+ \S+ HTTP/[0-9.]+|(?i:host):.*")


class Malformed(Exception):
    """Says that a line is no command; ``reply`` is the answer to it."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply)
        self.reply = reply


class Request(NamedTuple):
    """
    Holds one command.

    ``op`` is its name; ``numbers``, ``name`` (of a tube, or what ``auth`` names) and ``body`` are
    what it says.
    """

    op: str
    numbers: tuple[int, ...] = ()
    name: str = ""
    body: bytes = b""


class Answered(NamedTuple):
    """
    Stands for a request that is answered whatever the state of the server.

    ``op``: by which it is counted, "": by none; ``foreign``: what the peer speaks instead, "": it
    speaks beanstalkd's protocol. It may be a browser that somebody else's page has sent here.
    """

    reply: bytes
    op: str = ""
    foreign: str = ""


def _number(text: str, at: int, most: int) -> tuple[int, int]:
    found = _NUMBER.match(text, at)
    if found is None or len(found[1]) > LINE_BYTES or int(found[1]) > most:
        raise Malformed(BAD_FORMAT)
    return int(found[1]), found.end()


def _numbers(*most: int, rest: bool = False) -> Callable[[str, str], Request]:
    """Return a reader of so many numbers; ``rest``: the text behind them is ignored."""

    def read(op: str, text: str) -> Request:
        found, at = [], 0
        for limit in most:
            number, at = _number(text, at, limit)
            found.append(number)
        if at != len(text) and not rest:
            raise Malformed(BAD_FORMAT)
        return Request(op, tuple(found))

    return read


def _nothing(op: str, text: str) -> Request:
    if text:
        raise Malformed(BAD_FORMAT)
    return Request(op)


def _anything(op: str, text: str) -> Request:
    return Request(op)


def _tube(op: str, text: str) -> Request:
    if not is_tube(text):
        raise Malformed(BAD_FORMAT)
    return Request(op, name=text)


def _put(op: str, text: str) -> Request:
    """
    Read a put: the body's length comes last, and a fifth number: whether something follows it.
    """
    numbers, at = [], 0
    for _ in range(4):
        number, at = _number(text, at, U32_MAX)
        numbers.append(number)
    return Request(op, (*numbers, int(at != len(text))))


def _long(text: str, low: int, high: int) -> int | None:
    """
    Read a number as ``strtol`` and ``strtoul`` do at the beginning of a text; None: no number.
    """
    found = _LONG.match(text)
    if found is None:
        return None
    number = int(found[2]) * (-1 if found[1] == "-" else 1)
    if not low <= number <= high:
        raise Malformed(BAD_FORMAT)
    return number


def _timeout(op: str, text: str) -> Request:
    """Read a time as ``strtol`` has it, cut to an ``int``: below zero it never ends."""
    number = _long(text, -LONG_MAX - 1, LONG_MAX) or 0
    return Request(op, ((number + INT_MAX + 1) % 2**32 - INT_MAX - 1,))


def _bound(op: str, text: str) -> Request:
    number = _long(text, -U64_MAX, U64_MAX)
    if number is None:
        raise Malformed(BAD_FORMAT)
    return Request(op, (number % 2**32,))


def _pause(op: str, text: str) -> Request:
    found = _NAME.match(text)
    if found is None:
        raise Malformed(BAD_FORMAT)
    seconds, at = _number(text, found.end(), U32_MAX)
    if at != len(text) or not is_tube(found[1]):
        raise Malformed(BAD_FORMAT)
    return Request(op, (seconds,), found[1])


def _auth(op: str, text: str) -> Request:
    """Read our own command: the user, a blank, the secret to the end of the line."""
    if " " not in text:
        raise Malformed(BAD_FORMAT)
    return Request(op, name=text)


Read = Callable[[str, str], Request]
_COMMANDS: Mapping[str, Read] = {
    "put ": _put,
    "peek ": _numbers(U64_MAX),
    "peek-ready": _nothing,
    "peek-delayed": _nothing,
    "peek-buried": _nothing,
    "reserve-with-timeout ": _timeout,
    "reserve-job ": _numbers(U64_MAX),
    "reserve": _nothing,
    "delete ": _numbers(U64_MAX),
    "release ": _numbers(U64_MAX, U32_MAX, U32_MAX),
    "bury ": _numbers(U64_MAX, U32_MAX),
    "kick ": _bound,
    "kick-job ": _numbers(U64_MAX),
    "touch ": _numbers(U64_MAX),
    "stats-job ": _numbers(U64_MAX),
    "stats-tube ": _tube,
    "stats": _nothing,
    "use ": _tube,
    "watch ": _tube,
    "ignore ": _tube,
    "list-tubes-watched": _nothing,
    "list-tube-used": _nothing,
    "list-tubes": _nothing,
    "quit": _anything,
    "pause-tube": _pause,
    "auth ": _auth,
}
"""The commands by the beginnings of their lines, in the order in which beanstalkd tries them."""


def parse(line: bytes) -> Request:
    """
    Parse a line, without its end, as a command.

    Raises: Malformed.
    """
    if b"\0" in line:
        raise Malformed(BAD_FORMAT)
    text = line.decode("utf-8", "surrogateescape")
    for prefix, read in _COMMANDS.items():
        if text.startswith(prefix):
            return read(prefix.rstrip(), text[len(prefix) :])
    raise Malformed(UNKNOWN_COMMAND)


class RequestReader:
    """
    Cuts a peer's bytes into requests.

    It keeps no more than one line, or one job of ``job_bytes``, and what was read behind it.
    ``job_bytes`` may be changed between two requests.

    A peer whose first line is no command, or too long, speaks something else: TLS, SMTP, or HTTP
    with so long a line that it shows only later. Nothing behind that line is read.
    """

    def __init__(self, job_bytes: int) -> None:
        self.job_bytes = job_bytes
        self._buffer = bytearray()
        self._put: Request | None = None  # whose body is not there yet
        self._skipping = 0  # bytes of a body that nobody wants
        self._passing_by = False  # the rest of a line that is too long
        self._begun = False  # a line was a command

    def __len__(self) -> int:
        """Return how many bytes lie here."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take more bytes from the peer."""
        self._buffer += data

    def drop(self) -> None:
        """Forget the bytes that came: none of them counts any more."""
        self._buffer.clear()
        self._put, self._skipping, self._passing_by = None, 0, False

    @property
    def wanted(self) -> int:
        """Return how many bytes may lie here while the next request is not whole."""
        if self._put is not None:
            return self._put.numbers[3] + 2
        return LINE_BYTES

    def next(self) -> Request | Answered | None:
        """Return the next request; None: it is not whole yet."""
        if self._skipping:
            gone = min(self._skipping, len(self._buffer))
            del self._buffer[:gone]
            self._skipping -= gone
            return None if self._skipping else Answered(JOB_TOO_BIG)
        if self._put is not None:
            return self._body(self._put)
        line = self._line()
        if line is None:
            return None
        if isinstance(line, Answered):
            return line
        try:
            request = parse(line)
        except Malformed as error:
            foreign = "it speaks HTTP" if _HTTP.fullmatch(line) else ""
            if not self._begun and (error.reply == UNKNOWN_COMMAND or b"\0" in line):
                foreign = foreign or NO_COMMAND
            self._begun = True
            return Answered(error.reply, foreign=foreign)
        self._begun = True
        return self._begin(request) if request.op == "put" else request

    def _line(self) -> bytes | Answered | None:
        if self._passing_by:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                del self._buffer[: -1 if self._buffer.endswith(b"\r") else len(self._buffer)]
                return None
            del self._buffer[: end + 2]
            self._passing_by = False
            return Answered(BAD_FORMAT)
        end = self._buffer.find(b"\r\n", 0, LINE_BYTES)
        if end >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            return line
        if len(self._buffer) < LINE_BYTES:
            return None
        if not self._begun:
            self.drop()
            return Answered(BAD_FORMAT, foreign=TOO_LONG)
        self._passing_by = True
        return self._line()

    def _begin(self, put: Request) -> Request | Answered | None:
        """Begin a put whose line has come; its body follows, unless it was refused for its form."""
        if put.numbers[3] > self.job_bytes:
            self._skipping = put.numbers[3] + 2
            return Answered(b"", "put")
        if put.numbers[4]:
            return Answered(BAD_FORMAT, "put")
        self._put = put
        return Answered(b"", "put")

    def _body(self, put: Request) -> Request | Answered | None:
        size = put.numbers[3]
        if len(self._buffer) < size + 2:
            return None
        self._put = None
        body, end = bytes(self._buffer[:size]), self._buffer[size : size + 2]
        del self._buffer[: size + 2]
        return put._replace(body=body) if end == b"\r\n" else Answered(EXPECTED_CRLF)
