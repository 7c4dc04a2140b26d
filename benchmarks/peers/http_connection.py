"""HTTP/1.1 on a bare connection: one request under way, answers with a length."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.connections import Board, Connection

HEAD_END = b"\r\n\r\n"


class HttpConnection(Connection):
    """A peer's subclass sends by :meth:`ask`, and reads the JSON that comes in :meth:`answered`."""

    HEADERS = ""

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.buffer = b""

    def ask(self, path: str, body: Any) -> None:
        """POST a body as JSON."""
        self.transport.write(request(path, self.HEADERS, msgspec.json.encode(body)))

    def answered(self, found: Any) -> None:
        """An answer came, well."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, rest = self.buffer.partition(HEAD_END)
        if not end:
            return
        size = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        if len(rest) < size:
            return
        self.buffer = b""
        if head[9:10] == b"2":
            self.answered(msgspec.json.decode(rest) if rest else None)
        else:
            self.fail(head[:60] + rest[:200])


def request(path: str, headers: str, body: bytes) -> bytes:
    """A POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
