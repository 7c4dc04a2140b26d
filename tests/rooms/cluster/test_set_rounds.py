"""The rounds of the in-sync set against a store that does not take them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from support.cluster.replicating import PlayedRaft

from tidewarden.clock import SystemClock
from tidewarden.cluster.replication import set_rounds
from tidewarden.cluster.replication.set_rounds import ROUND_S, WAIT_MS, SetRounds
from tidewarden.cluster.replication.store_look import StoreData
from tidewarden.errors import StoreDown
from tidewarden.raft.store_facts import StoreMember

TURNS = 20


def serving(socket: Path, pace: float = 1.0) -> SetRounds:
    """Rounds of n0, whose store is the primary."""
    raft = PlayedRaft(["n0", "n1"])
    raft.apply(("found", "n0", "a", 0))
    seat = raft.seats["n0"]
    seat.learn()
    facts = seat.store_facts()
    member = StoreMember("n0", "a")
    assert facts.primary_member == member
    rounds = SetRounds(seat, socket, "c", "secret", SystemClock(), pace, dict, lambda _why: None)
    rounds.serve(member, facts.view, StoreData(view=facts.view), opened_here=True)
    return rounds


async def test_a_long_outage_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidewarden.cluster")
    rounds = serving(tmp_path / "nothing")
    running = asyncio.create_task(rounds.run())
    for _ in range(TURNS):
        rounds.wake()
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    said = [one for one in caplog.messages if "no round" in one]
    assert len(said) == 1, said


@pytest.mark.parametrize(("pace", "slow"), [(0.2, 1), (4.0, 4)])
async def test_a_slow_machines_round_has_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pace: float, slow: int
) -> None:
    asked: asyncio.Future[tuple[float, list[Any]]] = asyncio.get_running_loop().create_future()

    class SilentLink:
        def __init__(self, *_: Any) -> None:
            """As a link to a store that answers nothing."""

        async def ask(self, *commands: Any, limit_s: float) -> list[Any]:
            if not asked.done():
                asked.set_result((limit_s, [one for one in commands if one[0] == "WAIT"]))
            raise StoreDown(f"no answer within {limit_s:g} s")

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(set_rounds, "ControlLink", SilentLink)
    rounds = serving(tmp_path / "nothing", pace)
    rounds.attached(frozenset({("n1.b", "online")}))
    running = asyncio.create_task(rounds.run())
    async with asyncio.timeout(60):
        assert await asked == (ROUND_S * slow, [("WAIT", 1, WAIT_MS * slow)])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
