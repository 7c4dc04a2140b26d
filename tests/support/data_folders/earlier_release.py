"""
A client of the nodes that serve the data folder of ``live/data_folders/test_earlier_release.py``.
"""

from __future__ import annotations

import base64
import contextlib
import json
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
HOOK_KEY = b"secret of the webhook's receiver"
"""Of the release's webhook."""


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
