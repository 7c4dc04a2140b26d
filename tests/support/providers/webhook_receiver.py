"""
A receiver of webhooks that checks what it gets as Standard Webhooks says, and answers what the test
laid out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections import deque
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support.doors.http_app import serving_app

KEYS = (b"s" * 32, b"t" * 24)
SECRETS = tuple("whsec_" + base64.b64encode(key).decode() for key in KEYS)


@dataclass
class Receiver:
    """
    ``answers`` are used up one a request, then it is 204. ``got`` has (webhook-id, body) of what
    was signed rightly.
    """

    url: str = ""
    keys: Collection[bytes] = KEYS
    """Each of these signs what comes."""
    answers: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    got: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    tries: int = 0
    silent: bool = False
    """It never answers."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tries += 1
        if self.silent:
            await asyncio.Event().wait()
        body = await request.read()
        message_id, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        content = b".".join((message_id.encode(), timestamp.encode(), body))
        expected = {
            "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
            for key in self.keys
        }
        assert set(request.headers["webhook-signature"].split(" ")) == expected
        if self.answers:
            status, headers = self.answers.popleft()
            return web.Response(status=status, headers=headers)
        self.got.append((message_id, json.loads(body)))
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def receiver(*keys: bytes) -> AsyncIterator[Receiver]:
    """One that listens, to what these keys sign; without any: to ``SECRETS``."""
    made = Receiver(keys=keys or KEYS)
    app = web.Application()
    app.router.add_post("/hook", made.handle)
    async with serving_app(app) as port:
        made.url = f"http://127.0.0.1:{port}/hook"
        yield made
