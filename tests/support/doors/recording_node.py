"""
A node's double for the command line: records what it is asked, answers what the test has laid out.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis

from tidewarden.errors import Error
from tidewarden.server.resp import encoder

NIL = object()
"""An answer that is there, and is null."""


class RecordingNode(socketserver.ThreadingTCPServer):
    """
    ``answers`` maps a verb to its result, an :class:`Error`, a function of the request, NIL, or
    None: hang up.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.answers: dict[str, Any] = {}
        self.asked: list[list[str]] = []
        self.users: list[list[bytes]] = []
        self.url = f"redis://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: list[bytes]) -> bytes | None:
        verb = request[0].decode().upper()
        if verb == "HELLO":
            self.users.append(request[3:5])
            return encoder.encode({"server": "tidewarden", "proto": 3}, 3)
        if verb == "PING" or (verb == "CLIENT" and request[1].upper() != b"KILL"):
            return encoder.PONG
        self.asked.append([part.decode("utf-8", "backslashreplace") for part in request])
        found = self.answers[verb]
        if isinstance(found, Callable):
            found = found(request)
        if found is None:
            return None
        if found is NIL:
            return encoder.encode(None, 3)
        return encoder.failure(found) if isinstance(found, Error) else encoder.encode(found, 3)


class _Connection(socketserver.BaseRequestHandler):
    server: RecordingNode

    def handle(self) -> None:
        reader = hiredis.Reader()
        while data := self.request.recv(65_536):
            reader.feed(data)
            while (request := reader.gets()) is not False:
                answer = self.server.answer(request)
                if answer is None:
                    return
                self.request.sendall(answer)


@contextmanager
def running() -> Iterator[RecordingNode]:
    """A double that serves until the block ends."""
    with RecordingNode() as node:
        thread = threading.Thread(target=node.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield node
        finally:
            node.shutdown()
            thread.join()
