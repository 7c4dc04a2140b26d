"""The rounds of the in-sync set against a store that does not take them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from support.cluster.replicating import PlayedRaft

from tidewarden.clock import SystemClock
from tidewarden.cluster.replication.set_rounds import SetRounds
from tidewarden.cluster.replication.store_look import StoreData
from tidewarden.raft.store_facts import StoreMember

TURNS = 20


async def test_a_long_outage_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidewarden.cluster")
    raft = PlayedRaft(["n0", "n1"])
    raft.apply(("found", "n0", "a", 0))
    seat = raft.seats["n0"]
    seat.learn()
    facts = seat.store_facts()
    member = StoreMember("n0", "a")
    assert facts.primary_member == member
    rounds = SetRounds(
        seat, tmp_path / "nothing", "c", "secret", SystemClock(), 1.0, dict, lambda _why: None
    )
    rounds.serve(member, facts.view, StoreData(view=facts.view), opened_here=True)
    running = asyncio.create_task(rounds.run())
    for _ in range(TURNS):
        rounds.wake()
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    said = [one for one in caplog.messages if "no round" in one]
    assert len(said) == 1, said
