"""
What served the cluster whose data folder ``live/data_folders/test_earlier_release.py`` has today's
nodes serve: its provider, and a client of its nodes.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
import redis
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FAR_MS = 4_102_444_800_000
"""The first of January 2100: a time that no run of the test comes near."""
MANY = 400
EXPORT_KEY, EXPORT_ID = "5a" * 32, "a5" * 16
READER_SECRET = "secret-of-the-reader"


class Provider(http.server.ThreadingHTTPServer):
    """
    Serves as an authorization server that notes each refresh token, and as a webhook's receiver.

    A refresh token is ``PROVIDER.ACCOUNT.N``, and its use gives ``N + 1``.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.seen: list[str] = []
        """The refresh token (of those without, the grant) of each request, in their order."""
        self.hooks: list[str] = []
        """The id of each webhook."""
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Request(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.path == "/hook":
            self.server.hooks.append(self.headers["webhook-id"])
            self._answer(204, b"")
            return
        form = dict(urllib.parse.parse_qsl(body.decode()))
        token = form.get("refresh_token", form["grant_type"])
        self.server.seen.append(token)
        name, _, number = token.rpartition(".")
        found: dict[str, Any] = {"token_type": "Bearer", "expires_in": 31_000_000}
        if name:
            following = f"{name}.{int(number) + 1}"
            found |= {
                "access_token": f"access-{following}",
                "refresh_token": following,
                "instance_url": f"https://{name}.example.org",
            }
        else:
            found |= {
                "access_token": f"access-{len(self.server.seen)}",
                "scope": form.get("scope", ""),
            }
        self._answer(200, json.dumps(found).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


READING = frozenset(
    {"Q.CHECK", "Q.CONFIG", "Q.LIST", "Q.PEEK", "Q.STATS", "R.STATUS", "S.LIST", "L.LIST", "T.EXPORT",
     "T.LIST", "T.PEEK", "T.STATS", "V.STATUS"}
)  # fmt: skip
"""Requests that may be made again whatever became of the first."""


class Node:
    """Asks one node of the cluster that serves ``folder``."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.secret = (folder / "secrets" / "admin.secret").read_text().strip()
        self.client = self.connect()

    def connect(self, user: str = "admin", secret: str = "") -> redis.Redis:
        """Open a connection of its own, which holds what it takes."""
        return redis.Redis(
            port=self.port, username=user, password=secret or self.secret, protocol=3,
            decode_responses=True, encoding_errors="surrogateescape",
            single_connection_client=True, socket_timeout=60,
        )  # fmt: skip

    def ask(self, *words: str | bytes | float) -> Any:
        """Return the answer to a request. What only reads is read again from a new primary."""
        give_up = time.monotonic() + 60
        while True:
            try:
                return self.client.execute_command(*words)
            except redis.ResponseError as error:
                moved = str(error).startswith("STOREDOWN") and words[0] in READING
                if not moved or time.monotonic() > give_up:
                    raise
            time.sleep(0.1)

    def get(self, path: str) -> str:
        """Return the text of a route of HTTP; of a stream, what comes within two seconds."""
        text = ""
        headers = {"Authorization": f"Bearer admin:{self.secret}"}
        with httpx.stream(
            "GET", f"http://127.0.0.1:{self.port + 1}{path}", headers=headers, timeout=2
        ) as answer:
            answer.raise_for_status()
            with contextlib.suppress(httpx.ReadTimeout):
                for piece in answer.iter_text():
                    text += piece
        return text


def events_of(node: Node) -> list[dict[str, Any]]:
    """Return the events of accounts and providers that the store keeps."""
    lines = node.get("/v1/events?after=0").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def metric_names(node: Node) -> set[str]:
    """Return the names of all figures of ``/metrics``."""
    lines = node.get("/metrics").splitlines()
    return {line.split()[2] for line in lines if line.startswith("# TYPE ")}


def exported(node: Node) -> dict[str, dict[str, Any]]:
    """Return every account with its tokens in the clear, by way of a sealed export."""
    found: dict[str, dict[str, Any]] = {}
    cursor, number = "", 1
    while True:
        words = [] if not cursor else ["AFTER", cursor]
        lines, cursor, unreadable = node.ask("T.EXPORT", EXPORT_KEY, EXPORT_ID, number, *words)
        assert not unreadable, unreadable
        for line in lines:
            raw = base64.b64decode(line)
            associated = (
                b"tidewarden export" + bytes.fromhex(EXPORT_ID) + number.to_bytes(8, "big") + b"\0"
            )
            row = json.loads(
                AESGCM(bytes.fromhex(EXPORT_KEY)).decrypt(raw[:12], raw[12:], associated)
            )
            found[row["account"]] = row
            number += 1
        if not cursor:
            return found


def first_token(account: str) -> str:
    """Return the refresh token that an account is put with."""
    return urllib.parse.quote(account.replace("/", ".", 1), safe="@") + ".0"
