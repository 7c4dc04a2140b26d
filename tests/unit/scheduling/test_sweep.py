"""
The leader's sweep: at the moment something is due, never by polling; another leader's shards are
left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.inspect import timers_of
from support.manual_clock import ManualClock

from tidewarden.errors import Internal, NotFound, Stale, StoreDown
from tidewarden.scheduler import sweep as module
from tidewarden.scheduler.sweep import ALL_S, AWAY_S, Sweep

STEP_S = 0.05


class Shards:
    """
    The shards as a sweep sees them: ``at[(queue, shard)]`` is when something happens there (seconds
    of the clock).
    """

    def __init__(self, clock: ManualClock, **shards: int) -> None:
        self.clock = clock
        self.sizes = shards
        self.at: dict[tuple[str, int], float] = {}
        self.ticks: dict[tuple[str, int], float] = {}
        self.swept: list[tuple[float, str, int]] = []
        self.fired: list[tuple[float, str, int]] = []
        self.trouble: dict[tuple[str, int], list[Exception]] = {}
        self.catalog = self.scripts = self
        self.lists = 0
        self.list_trouble: list[Exception] = []
        self.lists_wait: asyncio.Event | None = None
        self.silent: dict[tuple[str, int], asyncio.Event] = {}
        self.slow_s = 0.0
        self.start = clock.monotonic()

    def ms(self, seconds: float) -> int:
        return round(seconds * 1000)

    def elapsed(self) -> float:
        return round(self.clock.monotonic() - self.start, 3)

    async def names(self) -> list[str]:
        self.lists += 1
        if self.lists_wait is not None:
            await self.lists_wait.wait()
        if self.list_trouble:
            raise self.list_trouble.pop(0)
        return list(self.sizes)

    async def shard_count(self, queue: str) -> int:
        return self.sizes[queue]

    async def delays(self, queue: str) -> list[int]:
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        now = self.clock.monotonic()
        moments = (
            (self.at.get((queue, n)), self.ticks.get((queue, n))) for n in range(self.sizes[queue])
        )
        return [
            min((max(0, self.ms(at - now)) for at in pair if at is not None), default=-1)
            for pair in moments
        ]

    async def sweep(self, queue: str, shard: int, args: list[int]) -> tuple[int, int, list[int]]:
        self.swept.append((self.elapsed(), queue, shard))
        if (answers := self.silent.get((queue, shard))) is not None:
            await answers.wait()
        if self.trouble.get((queue, shard)):
            raise self.trouble[queue, shard].pop(0)
        now, place = self.clock.monotonic(), (queue, shard)
        moved = 0
        if self.at.get(place, 1e18) <= now:
            del self.at[place]
            moved = 1
        tick, following = self.ticks.get(place), self.at.get(place)
        return (
            self.ms(now), -1 if following is None else self.ms(following), [moved, -1 if tick is None else self.ms(tick)]
        )  # fmt: skip

    async def fire(self, queue: str, shard: int, now_ms: int, epoch: int, holder: str) -> int:
        self.fired.append((self.elapsed(), queue, shard))
        self.ticks[queue, shard] = self.clock.monotonic() + 10
        return self.ms(self.ticks[queue, shard])


class Stage:
    def __init__(self, **shards: int) -> None:
        self.clock = ManualClock()
        self.shards = Shards(self.clock, **shards)
        self.sweep = Sweep(self.shards, self.clock, self.shards.fire, self.shards.sweep)
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.task = asyncio.create_task(self.sweep.run(3, "n0.1"))
        await self.clock.advance(0)
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """In small steps, so that what one moment causes is done before the next."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            await self.clock.advance(min(STEP_S, end - self.clock.monotonic()))
            for _ in range(20):
                await asyncio.sleep(0)


@pytest.fixture
async def stage() -> Any:
    made: list[Stage] = []

    def make(**shards: int) -> Stage:
        made.append(Stage(**shards))
        return made[-1]

    yield make
    for one in made:
        if one.task is not None:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)


MakeStage = Callable[..., Stage]


async def test_it_begins_with_every_shard_and_then_sleeps(stage: MakeStage) -> None:
    s = stage(a=1, b=3)
    await s.start()
    assert sorted(s.shards.swept) == [(0, "a", 0), (0, "b", 0), (0, "b", 1), (0, "b", 2)]
    await s.advance(ALL_S - 1)
    assert len(s.shards.swept) == 4, "nothing is polled"
    assert s.sweep.rounds == 4
    s.shards.at["b", 1] = s.clock.monotonic() - 5
    s.shards.ticks["b", 2] = s.clock.monotonic() + 3
    await s.advance(2)
    assert s.shards.swept[4:] == [(pytest.approx(ALL_S, abs=0.1), "b", 1)], (
        "once a minute all are looked at, in case a message was lost"
    )
    await s.advance(2)
    assert s.shards.swept[5:] == [(pytest.approx(ALL_S + 2, abs=0.1), "b", 2)]


async def test_it_comes_back_at_the_moment_a_shard_said(stage: MakeStage) -> None:
    s = stage(a=1, b=1)
    s.shards.at["a", 0] = s.clock.monotonic() + 5
    await s.start()
    await s.advance(4.9)
    assert len(s.shards.swept) == 2
    await s.advance(0.2)
    assert s.shards.swept[2:] == [(5, "a", 0)]
    assert s.sweep.moved == 1
    await s.advance(20)
    assert len(s.shards.swept) == 3


async def test_an_earlier_moment_shortens_its_sleep_and_a_later_one_does_not_lengthen_it(
    stage: MakeStage,
) -> None:
    s = stage(a=1)
    s.shards.at["a", 0] = s.clock.monotonic() + 30
    await s.start()
    s.sweep.expect("a", 0, 40_000)
    s.shards.at["a", 0] = s.clock.monotonic() + 2
    s.sweep.expect("a", 0, 2_000)
    s.sweep.expect("a", 0, 2_000)
    await s.advance(40)
    assert [at for at, _, _ in s.shards.swept] == [0, 2]


async def test_a_queue_it_has_not_heard_of(stage: MakeStage) -> None:
    s = stage()
    await s.start()
    s.sweep.expect("new", 7, 100)
    await s.advance(0.2)
    assert s.shards.swept == [(0.1, "new", 7)]


async def test_nothing_is_expected_of_one_that_does_not_lead(stage: MakeStage) -> None:
    s = stage(a=1)
    s.sweep.expect("a", 0, 5)
    assert not len(timers_of(s.sweep))
    await s.start()
    assert s.sweep.running
    s.task.cancel()
    await asyncio.gather(s.task, return_exceptions=True)
    assert not s.sweep.running


async def test_schedules_are_fired_at_their_ticks(stage: MakeStage) -> None:
    s = stage(a=1)
    s.shards.ticks["a", 0] = s.clock.monotonic() + 3
    await s.start()
    await s.advance(25)
    assert [at for at, _, _ in s.shards.fired] == [3, 13, 23]
    assert [at for at, _, _ in s.shards.swept] == [0, 3, 13, 23]


async def test_a_store_that_is_away_is_tried_again_shard_by_shard(
    stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    s = stage(a=1, b=1)
    s.shards.trouble["a", 0] = [StoreDown("away"), StoreDown("away")]
    await s.start()
    await s.advance(5)
    assert [at for at, queue, _ in s.shards.swept if queue == "a"] == [0, AWAY_S, 2 * AWAY_S]
    assert [at for at, queue, _ in s.shards.swept if queue == "b"] == [0]
    assert "the sweep waits: away" in caplog.text


async def test_a_store_that_is_away_when_the_term_begins(stage: MakeStage) -> None:
    """All shards are looked at as soon as it is back, not a minute later."""
    s = stage(a=1)
    s.shards.list_trouble = [StoreDown("away"), StoreDown("away")]
    await s.start()
    assert s.shards.swept == []
    await s.advance(3 * AWAY_S)
    assert [at for at, _, _ in s.shards.swept] == pytest.approx([2 * AWAY_S], abs=1.1 * STEP_S)


async def test_it_ends_when_another_leads(stage: MakeStage) -> None:
    s = stage(a=1, b=1)
    s.shards.trouble["b", 0] = [Stale("the fence is at epoch 4")]
    await s.start()
    assert s.task is not None
    with pytest.raises(Stale, match="epoch 4"):
        await s.task
    assert not s.sweep.running


async def test_a_queue_that_is_gone_is_passed_by(stage: MakeStage) -> None:
    s = stage(a=1, b=1)
    s.shards.trouble["a", 0] = [NotFound("gone")]
    await s.start()
    await s.advance(10)
    assert len(s.shards.swept) == 2


async def test_one_broken_shard_does_not_stop_the_others(
    stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    s = stage(a=1, b=1)
    s.shards.trouble["a", 0] = [Internal("format 2"), Internal("format 2")]
    s.shards.at["b", 0] = s.clock.monotonic() + 5
    await s.start()
    await s.advance(ALL_S + 5)
    assert [at for at, queue, _ in s.shards.swept if queue == "b"] == pytest.approx(
        [0, 5], abs=1.1 * STEP_S
    )
    assert 2 <= len([at for at, queue, _ in s.shards.swept if queue == "a"]) <= 3
    assert "the sweep of a, shard 0, failed" in caplog.text


async def test_a_new_term_begins_anew(stage: MakeStage) -> None:
    s = stage(a=1)
    s.shards.at["a", 0] = s.clock.monotonic() + 5
    await s.start()
    s.task.cancel()
    await asyncio.gather(s.task, return_exceptions=True)
    await s.advance(10)
    assert len(s.shards.swept) == 1
    await s.start()
    assert [at for at, _, _ in s.shards.swept] == [0, 10]
    assert s.sweep.moved == 1


async def test_more_than_fit_in_a_round(stage: MakeStage) -> None:
    s = stage(a=200)
    await s.start()
    for _ in range(30):
        await asyncio.sleep(0)
    assert len(s.shards.swept) == 200


async def test_a_server_that_does_not_answer_holds_up_its_own_shards_alone(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.01)
    s = stage(a=1, b=1)
    s.shards.silent["a", 0] = answers = asyncio.Event()
    s.shards.at["b", 0] = s.clock.monotonic() + 3
    await s.start()
    await asyncio.sleep(0.05)
    await s.advance(5)
    assert s.sweep.moved == 1
    s.sweep.expect("a", 0, 0)
    await s.advance(5)
    assert [place for _, *place in s.shards.swept].count(["a", 0]) == 1, "one at a time"
    answers.set()
    await s.advance(1)
    assert s.sweep.rounds == 4


@pytest.mark.thorough
async def test_a_look_at_all_that_is_not_answered_holds_up_no_shard(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.01)
    s = stage(a=1)
    await s.start()
    s.shards.lists_wait = asyncio.Event()
    s.shards.at["a", 0] = s.clock.monotonic() + ALL_S + 3
    s.sweep.expect("a", 0, 0)
    await s.advance(ALL_S + 1)
    await asyncio.sleep(0.05)
    await s.advance(5)
    assert s.sweep.moved == 1
    await s.advance(3 * ALL_S)
    assert s.shards.lists == 2, "one at a time"
    rounds = s.sweep.rounds
    s.shards.at["a", 0] = s.clock.monotonic()
    s.shards.lists_wait.set()
    await s.advance(1)
    assert s.sweep.rounds > rounds


@pytest.mark.thorough
async def test_a_look_at_thousands_may_take_longer_than_an_answer_may(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would begin with the first of them again and again, and never come to the last."""
    monkeypatch.setattr(module, "LIMIT_S", 1.0)
    monkeypatch.setattr(module, "SLOW_S", 0.01)
    s = stage(**{f"q{n:03}": 1 for n in range(100)})
    await s.start()
    await s.advance(2)
    assert len(s.shards.swept) == 100
    s.shards.slow_s = 0.2
    s.shards.at["q099", 0] = s.clock.monotonic() + 1
    await s.advance(ALL_S + 1)
    async with asyncio.timeout(20):
        while not s.sweep.moved:
            await asyncio.sleep(0.05)
            await s.advance(STEP_S)
    assert s.shards.lists == 2


async def test_a_silent_shard_that_knows_a_newer_leader_ends_it(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.01)
    s = stage(a=1)
    s.shards.silent["a", 0] = answers = asyncio.Event()
    s.shards.trouble["a", 0] = [Stale("the fence is at epoch 4")]
    await s.start()
    await asyncio.sleep(0.05)
    await s.advance(5)
    assert not s.task.done()
    answers.set()
    await s.advance(0.1)
    with pytest.raises(Stale):
        await s.task


async def test_a_shard_whose_answer_never_comes_is_swept_again(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.02)
    s = stage(a=1)
    s.shards.silent["a", 0] = asyncio.Event()
    await s.start()
    while "the sweep of a, shard 0, has no answer" not in caplog.text:
        await asyncio.sleep(0.01)
    del s.shards.silent["a", 0]
    while not s.sweep.rounds:
        await s.advance(AWAY_S)
