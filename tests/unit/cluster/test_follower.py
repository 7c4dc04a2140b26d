"""What a node takes for silence of its own store, and how often it says what that refuses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.cluster.replicating import PlayedRaft
from support.manual_clock import ManualClock

from tidewarden.cluster.replication import next_role
from tidewarden.cluster.replication.awake_time import AwakeTime
from tidewarden.cluster.replication.follower import Follower
from tidewarden.cluster.replication.store_look import NOBODY, StoreData, StoreLook
from tidewarden.errors import StoreDown
from tidewarden.raft.store_facts import StoreFacts

LOOK = StoreLook(
    node="n0",
    incarnation="a",
    pid=1,
    role="slave",
    loading=False,
    link_up=True,
    place=NOBODY,
    syncing=False,
    sync_share=0.0,
    disk_fault=False,
    rewriting=False,
    offset=1,
    replicas=frozenset(),
    data=StoreData(),
)
FACTS = StoreFacts(view=1, primary="n1", incarnation="b")
REFUSED = "MISCONF its disk is full"


class PlayedStore:
    """A store that answers looks and takes orders, until it is told to do neither."""

    def __init__(self) -> None:
        self.folder = Path("/nowhere")
        self.connected = True
        self.answers = self.obeys = True

    def disk_fault(self) -> str:
        return ""

    def continues(self, incarnation: str) -> tuple[str, ...]:
        return ()

    def was_syncing(self) -> bool:
        return False

    def log_damage(self) -> str:
        return ""

    def give_up_log(self) -> bool:
        return False

    async def look(self) -> StoreLook:
        if not self.answers:
            raise StoreDown("it has not answered in time")
        return LOOK

    async def detach(self) -> None:
        if not self.obeys:
            raise StoreDown(REFUSED)


class Scene:
    """n0's node looks at its store, and orders it to follow nobody, again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(next_role, "next_step", lambda *_: self.step)
        self.step: Any = next_role.Detach()
        self.clock, self.store = ManualClock(), PlayedStore()
        store: Any = self.store
        route: Any = None
        self.follower = Follower(
            PlayedRaft(["n0", "n1"]).seats["n0"],
            store,
            self.clock,
            AwakeTime(self.clock, 1.0),
            1.0,
            route,
            lambda _: None,
            lambda _: None,
        )

    async def turns(self, count: int) -> None:
        for _ in range(count):
            self.clock.stall(0.1)
            await self.follower.turn(FACTS)


async def test_a_refused_order_is_no_silence_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)
    scene.store.obeys = False
    with caplog.at_level(logging.WARNING):
        await scene.turns(5)
    assert not scene.follower.misses, "it would be looked at fifty times a second"
    assert scene.follower.state.look is LOOK
    assert scene.follower.state.why == REFUSED
    assert len([line for line in caplog.messages if REFUSED in line]) == 1
    scene.store.obeys = True
    await scene.turns(1)
    assert scene.follower.state.why == ""


async def test_a_look_without_an_answer_is_and_counts_from_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.step = next_role.Stay()
    await scene.turns(2)
    scene.clock.stall(5.0)
    scene.store.answers = False
    await scene.turns(1)
    assert scene.follower.misses
    assert scene.follower.state.look is LOOK, "nobody had asked it meanwhile"
    await scene.turns(8)
    assert scene.follower.state.look is None
    scene.store.answers = True
    await scene.turns(1)
    assert not scene.follower.misses
    assert scene.follower.state.look is LOOK
