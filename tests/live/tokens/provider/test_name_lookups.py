"""Name servers that are silent: who needs theirs waits, nobody else does, and threads are few."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from typing import Any

import pytest
from support.providers.raw_provider import OK, provider, server
from support.waiting import eventually

from tidewarden.bounded_connector import LOOKUPS_MAX, Lookups
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import HttpAnswer, RequestNotSent

MANY = 40


class NameServers:
    """Answers for every name at once, but for those that end with ``.silent``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.gave_up = threading.Event()
        self._look = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: str, *rest: Any, **more: Any) -> Any:
        if not host.endswith(".silent"):
            return self._look("127.0.0.1", *rest, **more)
        self.asked.append(host)
        self.gave_up.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")


async def test_silent_name_servers_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, endpoint = NameServers(monkeypatch), TokenEndpoint()

    async def ask_silent(first: int) -> set[Any]:
        hosts = [provider(f"https://h{first + n}.silent/token") for n in range(MANY)]
        asking = [
            asyncio.create_task(endpoint.refresh(dataclasses.replace(one, name="silent"), "r"))
            for one in hosts
        ]
        await eventually(lambda: len(servers.asked) >= LOOKUPS_MAX)
        async with server(answer) as url:
            well = await endpoint.refresh(provider(url.replace("127.0.0.1", "good.test")), "r")
            assert isinstance(well, HttpAnswer), well
        return set(await asyncio.gather(*asking))

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)

    try:
        for turn in range(2):
            for outcome in await ask_silent(turn * MANY):
                assert isinstance(outcome, RequestNotSent)
            await endpoint.forget(dataclasses.replace(provider("https://x.silent"), name="silent"))
        assert len(servers.asked) == LOOKUPS_MAX, "the threads of before are waited for"
    finally:
        servers.gave_up.set()
        await endpoint.close()


async def test_a_machine_without_threads_is_an_error_and_uses_up_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lookups = Lookups()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        for _ in range(2 * LOOKUPS_MAX):
            with pytest.raises(OSError, match="can't start new thread"):
                await asyncio.wait_for(lookups.resolve("127.0.0.1"), 20)
    (found,) = await asyncio.wait_for(lookups.resolve("127.0.0.1", 80), 20)
    assert (found["host"], found["port"]) == ("127.0.0.1", 80)
