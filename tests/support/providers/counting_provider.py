"""
An authorization server inside the test that writes down every refresh token it is shown, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

CLIENT_ID, CLIENT_SECRET = "counted", "counted-secret"


@dataclass(frozen=True, slots=True)
class Presented:
    """
    One use of a refresh token. ``at``: monotonic seconds. ``answer``: new, again, refused;
    ``dropped``: it was not sent. ``asker``: by whose URL it came, where those differ.
    """

    at: float
    account: str
    generation: int
    answer: str
    dropped: bool = False
    asker: str = ""


class CountingProvider:
    """
    Refresh tokens rotate; the one used last gets the same successor again within ``grace_s``, older
    ones are refused.

    ``log`` is everything it was asked. The first token of an account is generation 0. ``drop``:
    that many next answers are lost after they were computed. ``delay_s``: how long each request
    waits before anything is done. ``hold``: they wait as long as it is set; ``held`` is how many
    do.
    """

    def __init__(self, accounts: int, life_s: int, grace_s: float = 600.0) -> None:
        self.seeds = {f"a{number}": token(f"a{number}", 0) for number in range(accounts)}
        self.log: list[Presented] = []
        self.drop = 0
        self.delay_s = 0.0
        self.hold = False
        self.held = 0
        self.port = 0
        self._life_s = life_s
        self._grace_s = grace_s
        self._current: dict[str, tuple[int, float]] = dict.fromkeys(self.seeds, (0, 0.0))
        self._runner: web.AppRunner | None = None

    def generation(self, account: str) -> int:
        """Of the refresh token that it gave last."""
        return self._current[account][0]

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        app = web.Application()
        app.router.add_post("/token{asker:.*}", self._token)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=False, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _token(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        _, account, generation = str(form["refresh_token"]).split(".")
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.held += 1
        while self.hold:
            await asyncio.sleep(0.01)
        self.held -= 1
        now, presented = time.monotonic(), int(generation)
        current, since = self._current[account]
        dropped = self.drop > 0
        self.drop -= dropped
        if presented == current:
            self._current[account] = (current + 1, now)
            answer = "new"
        elif presented == current - 1 and now - since < self._grace_s:
            answer = "again"
        else:
            answer = "refused"
        self.log.append(
            Presented(
                now, account, presented, answer, dropped, request.match_info["asker"].strip("/")
            )
        )
        if dropped:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if answer == "refused":
            return web.json_response({"error": "invalid_grant"}, status=400)
        body: dict[str, Any] = {
            "access_token": f"access-{account}-{presented + 1}",
            "token_type": "Bearer",
            "expires_in": self._life_s,
            "refresh_token": token(account, presented + 1),
        }
        return web.json_response(body, headers={"Cache-Control": "no-store"})

    def toml(self, port: int, margin_s: float, timeout_s: float = 3.0, *, asker: str = "") -> str:
        """
        Its section of a node's configuration; ``port``: where that node reaches it; ``asker``: who
        is to be written down.
        """
        return "\n".join(
            (
                "[providers.counted]",
                f'token_url = "http://127.0.0.1:{port}/token{asker and "/" + asker}"',
                f'client_id = "{CLIENT_ID}"',
                f'client_secret = "{CLIENT_SECRET}"',
                f"grace_s = {self._grace_s}",
                f"margin_s = {margin_s}",
                f"timeout_s = {timeout_s}",
                "",
            )
        )


@contextlib.contextmanager
def provided(provider: CountingProvider) -> Iterator[CountingProvider]:
    """It serves, in a thread of its own, so that nothing the test does makes it late."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="counting provider", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(provider.start(), loop).result(60)
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(provider.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def token(account: str, generation: int) -> str:
    """A refresh token that says what it is."""
    return f"r.{account}.{generation}"
