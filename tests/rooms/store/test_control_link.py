"""The connection by which a node orders its own store about, while the node's loop stands still."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import uvloop
from support.cluster.replicating import CREDENTIALS

from tidewarden.clock import SystemClock
from tidewarden.config.settings import Store
from tidewarden.errors import StoreDown
from tidewarden.store.embedded.control_link import ControlLink
from tidewarden.store.embedded.store_host import StoreHost

LIMIT_S = 0.1
STALL_S = 0.15
TURNS = 12
"""Turns of the loop after a question, each of which is the one that stalls once."""


async def stalled_in(turn: int) -> None:
    """Have the loop stand still in that turn from now."""
    for _ in range(turn):
        await asyncio.sleep(0)
    time.sleep(STALL_S)


async def asked_through_stalls(folder: Path) -> list[str]:
    host = StoreHost(folder, Store(), CREDENTIALS, SystemClock(), node="n1")
    await host.start()
    outcomes: list[str] = []
    try:
        for turn in range(TURNS):
            for connected in (False, True):
                link = ControlLink(host.socket_path, CREDENTIALS.daemon, f"{turn}-{connected}")
                if connected:
                    assert await link.ask(("PING",), limit_s=60) == ["PONG"]
                stall = asyncio.ensure_future(stalled_in(turn))
                try:
                    outcomes += await link.ask(("ECHO", "said"), limit_s=LIMIT_S)
                except StoreDown:
                    outcomes.append("gave up")
                await stall
                # whatever became of that one, the next is answered
                assert await link.ask(("ECHO", "again"), limit_s=60) == ["again"]
                link.close()
    finally:
        await host.stop()
    return outcomes


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(uvloop.run, id="uvloop"),
        pytest.param(asyncio.run, id="asyncio", marks=pytest.mark.thorough),
    ],
)
def test_a_stall_in_any_turn_of_a_question_costs_that_question_alone(run, tmp_path: Path) -> None:
    """Under uvloop, which closes a connection that was given up and tells nobody."""
    outcomes = run(asked_through_stalls(tmp_path / "store"))
    assert len(outcomes) == 2 * TURNS
    assert {"gave up"} <= set(outcomes) <= {"gave up", "said"}


async def asked_behind_one_that_ends(path: Path) -> None:
    """
    A server of the test's own that ends the first connections with their login's last answer: a
    store cannot be killed at so exact a moment.
    """
    met, over = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        await reader.readuntil(b"SETNAME")
        writer.write(b"+OK\r\n" * 3)
        if met > TURNS:
            await reader.readuntil(b"PING")
            writer.write(b"+PONG\r\n")
            await reader.read()
            over.set()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(serve, str(path)):
        link = ControlLink(path, "secret", "control")
        for _ in range(TURNS):
            with pytest.raises(StoreDown, match="was lost"):
                await link.ask(("PING",), limit_s=60)
        assert await link.ask(("PING",), limit_s=60) == ["PONG"]
        link.close()
        async with asyncio.timeout(60):
            await over.wait()
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_store_that_ends_with_the_logins_last_answer_is_asked_anew(run, tmp_path: Path) -> None:
    run(asked_behind_one_that_ends(tmp_path / "s"))
