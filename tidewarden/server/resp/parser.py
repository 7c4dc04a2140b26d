"""
Parses RESP requests from bytes, without sockets.

A request is a flat array of byte strings; a line that does not begin with ``*`` is an inline
command (probes, telnet). The parser is written here and not taken from hiredis, whose reader
believes an announced length: the fourteen bytes ``*2147483647\\r\\n`` make it allocate two thousand
million places, and freeing them again stops the loop for seconds. The usual chunk, whole requests
of short arguments, is cut by one ``split``; the rest is walked argument by argument.
"""

from __future__ import annotations

import re

from tidewarden.errors import BadArg, Error, TooBig

COUNTS = {b"*%d" % count: count for count in range(1, 257)}
HEADERS = [b"$%d" % size for size in range(2049)]
# the first byte of a handshake (RFC 8446, 5.1): no command begins so, and its line might never end
TLS = 0x16
NOTHING = re.compile(rb"(?:\s*\n|\*0\r\n)+")  # as many requests without a word as stand together
LONG_BYTES = 65_536
# of a chunk longer than that, read in one go: what follows is read in another turn of the loop
LINES_MAX = 8192
STEPS_MAX = 4096  # of a walk in one go: arguments, and beginnings of requests
DIGITS_MAX = 10
"""The longest number in a header: ten digits, far above every limit."""

Request = list[bytes]


class RequestReader:
    """
    Cuts what a peer sends into requests.

    Args:
        request_bytes: most bytes of one request.
        arguments_max: most arguments of one request.
        line_bytes: longest inline command.

    After :attr:`failure` is set the stream cannot be followed any more: answer what came before it,
    then it, and close. :attr:`more`: there are more requests than are read in one go; :meth:`go_on`
    reads on. :attr:`inline` tells whether an inline command was ever among it, :attr:`encrypted`
    whether TLS was.
    """

    __slots__ = (
        "_arguments",
        "_chunks",
        "_have",
        "_in_line",
        "_need",
        "_size",
        "_wanted",
        "arguments_max",
        "encrypted",
        "failure",
        "inline",
        "line_bytes",
        "more",
        "request_bytes",
    )

    def __init__(self, request_bytes: int, arguments_max: int, line_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.arguments_max = arguments_max
        self.line_bytes = line_bytes
        self.failure: Error | None = None
        self.inline = False
        self.encrypted = False
        self.more = False
        self._chunks: list[bytes] = []
        self._have = 0  # bytes in _chunks
        self._in_line = False  # they are an inline command whose end has not come
        self._need = 0  # bytes that _chunks must hold before another look can help
        self._arguments: Request = []  # of the request that is half read
        self._wanted = 0  # its arguments still to come; 0 between requests
        self._size = 0  # its bytes so far

    def feed(self, data: bytes) -> list[Request]:
        """
        Return the requests that ``data`` completes, in order.

        With :attr:`more` there are others, for :meth:`go_on`.
        """
        if self.failure is not None:
            return []
        if self.more:
            self._keep(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need or (
                self._in_line and self._have <= self.line_bytes and b"\n" not in data
            ):
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        return self._read(data)

    def go_on(self) -> list[Request]:
        """Return further requests of the bytes that were fed."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.more = False
        return [] if self.failure is not None else self._read(data)

    def drop(self) -> None:
        """Forget the bytes that were fed and are in no request yet."""
        self._chunks.clear()
        self.more = False

    def _keep(self, rest: bytes) -> None:
        self._chunks.append(rest)
        self._have += len(rest)

    def _read(self, data: bytes) -> list[Request]:
        self._have = 0
        rest = b""
        if self._wanted == 0:
            if len(data) > LONG_BYTES and data.count(b"\r\n") > LINES_MAX:
                cut = data.find(b"\r\n*", LONG_BYTES) + 2  # where a request seems to begin
                if cut > 2:
                    data, rest = data[:cut], data[cut:]
            requests = _split(data)
            if requests is not None and len(data) <= self.request_bytes:
                if rest:
                    self._keep(rest)
                    self.more = True
                return requests
        return self._walk(data + rest if rest else data)

    def _walk(self, data: bytes) -> list[Request]:
        requests: list[Request] = []
        position = steps = 0
        try:
            while position < len(data):
                steps += 1
                if steps > STEPS_MAX:
                    self.more = True
                    break
                between = self._wanted == 0
                after = (
                    self._begin(data, position, requests)
                    if between
                    else self._argument(data, position)
                )
                if after < 0:
                    break
                position = after
                if self._arguments and self._wanted == 0:
                    requests.append(self._arguments)
                    self._arguments = []
        except Error as failure:
            # Its trace would hold this reader and all that was fed, in a ring that only the rare
            # full collection breaks.
            self.failure = failure.with_traceback(None)
            return requests
        if position < len(data):
            self._keep(data[position:])
        return requests

    def _begin(self, data: bytes, position: int, requests: list[Request]) -> int:
        """
        Read an array's header or an inline command; return where it ends.

        -1: it is not whole yet.
        """
        self._need = 0
        self._in_line = False
        if nothing := NOTHING.match(data, position):
            return nothing.end()
        if data[position] != 0x2A:
            if data[position] == TLS:
                self.encrypted = True
                raise BadArg(
                    "This port speaks no TLS (node.tls_cert is not set): connect without it, by"
                    " redis://."
                )
            end = data.find(b"\n", position, position + self.line_bytes + 1)
            if end < 0:
                if len(data) - position > self.line_bytes:
                    raise TooBig(f"An inline command may have {self.line_bytes} bytes.")
                self._in_line = True
                return -1
            self.inline = True
            words = data[position:end].split()
            if words:
                requests.append(words)
            return end + 1
        end = self._header_end(data, position)
        if end < 0:
            return -1
        count = _number(data[position + 1 : end], "The number of arguments")
        if count > self.arguments_max:
            raise TooBig(
                f"A request may have {self.arguments_max} arguments; {count} were announced."
            )
        self._wanted = count
        self._size = 0
        return end + 2

    def _argument(self, data: bytes, position: int) -> int:
        """Read one byte string; returns where it ends, or -1 when it is not whole yet."""
        self._need = 0
        if data[position] != 0x24:
            found = data[position : position + 1]
            raise BadArg(
                f"A request is a flat array of byte strings ($): found {found!r} where an argument"
                " begins."
            )
        end = self._header_end(data, position)
        if end < 0:
            return -1
        size = _number(data[position + 1 : end], "The length of an argument")
        stop = end + 2 + size
        total = self._size + stop + 2 - position
        if total > self.request_bytes:
            raise TooBig(
                f"A request may have {self.request_bytes} bytes; this one has {total} or more."
            )
        if stop + 2 > len(data):
            self._need = stop + 2 - position
            return -1
        if data[stop : stop + 2] != b"\r\n":
            raise BadArg(
                f"An argument of {size} bytes was announced and is not followed by a line end."
            )
        self._arguments.append(data[end + 2 : stop])
        self._wanted -= 1
        self._size = total
        return stop + 2

    @staticmethod
    def _header_end(data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position, position + DIGITS_MAX + 3)
        if end < 0 and len(data) - position > DIGITS_MAX + 3:
            raise BadArg(f"A header is a number of at most {DIGITS_MAX} digits and a line end.")
        return end


def _split(data: bytes) -> list[Request] | None:
    """
    Split the usual chunk: whole requests, no line end inside an argument; None: it is another.
    """
    parts = data.split(b"\r\n")
    last = len(parts) - 1
    count = COUNTS.get(parts[0])
    if count is None or parts[last]:
        return None
    try:
        if last == 2 * count + 1:
            request = parts[2::2]
            return (
                [request]
                if [HEADERS[len(argument)] for argument in request] == parts[1:last:2]
                else None
            )
        requests = []
        position = 0
        while position < last:
            count = COUNTS.get(parts[position])
            if count is None:
                return None
            stop = position + 1 + 2 * count
            if stop > last:
                return None
            request = parts[position + 2 : stop : 2]
            if [HEADERS[len(argument)] for argument in request] != parts[position + 1 : stop : 2]:
                return None
            requests.append(request)
            position = stop
    except IndexError:  # an argument longer than any of HEADERS
        return None
    return requests


def _number(text: bytes, what: str) -> int:
    if not text.isdigit():
        raise BadArg(f"{what} must be a number of 0 or more: found {text[:20]!r}.")
    return int(text)
