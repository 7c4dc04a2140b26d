"""
A token endpoint in a thread whose every secret carries a mark, and which quotes them wherever it
can.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


class TalkativeProvider(ThreadingHTTPServer):
    """
    Refresh tokens are ``MARK…-account-n``; accounts whose names begin bad, html or down get that
    answer.
    """

    daemon_threads = True

    def __init__(self, mark: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mark = mark
        self.requests: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/token"

    def token(self, kind: str, account: str, number: int) -> str:
        """A secret; ``kind`` is at or rt."""
        return f"{self.mark}{kind}AAAABBBBCCCC-{account}-{number}"


class _Handler(BaseHTTPRequestHandler):
    server: TalkativeProvider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        token = form["refresh_token"][0]
        account, _, number = token.partition("-")[2].rpartition("-")
        self.server.requests[account] += 1
        if account.startswith("bad"):
            self._say(400, {"error": "invalid_grant", "error_description": f"{token} is no token"})
        elif account.startswith("html"):
            self._say(
                200,
                f"<p>your token {token} is fine, your secret {self.headers['Authorization']},"
                " too</p>",
            )
        elif account.startswith("down"):
            self._say(503, {"error": token, "message": token})
        else:
            pair = {
                f"{kind}_token": self.server.token(kind[0] + "t", account, int(number) + 1)
                for kind in ("access", "refresh")
            }
            self._say(200, {**pair, "token_type": "Bearer", "expires_in": 3600})

    def _say(self, status: int, body: object) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", "text/html" if isinstance(body, str) else "application/json"
        )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def talkative(mark: str) -> Iterator[TalkativeProvider]:
    """One that serves until the block ends."""
    with TalkativeProvider(mark) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
