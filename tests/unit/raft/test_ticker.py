"""
The thread that ticks Raft: it outlives defects, steps down for a loop that does not turn, and
bridges quietly.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.inspect import failures_of

from tidewarden.clock import SystemClock
from tidewarden.raft.state import Committed, RaftView, Times
from tidewarden.raft.ticker import Ticker


class RecordingVoter:
    """What a ticker asks of a voter; ``error`` is raised by every tick."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.state: Any = "leader"
        self.otherNodes = {"n1"}
        self.ended: frozenset[str] = frozenset()

    def rest_s(self) -> float:
        return 0.001

    def wake(self) -> None:
        pass

    def doTick(self, wait_s: float) -> None:
        if self.error is not None:
            raise self.error
        time.sleep(0.001)

    def view(self, ticked: float) -> RaftView:
        return RaftView(
            self.state, 1, None, False, 1, Committed(), ticked=ticked, leader_heard=ticked
        )

    def leads(self) -> bool:
        return bool(self.state == "leader")

    def knows_leader(self) -> bool:
        return "give_up" in self.calls

    def give_up(self) -> None:
        self._left("give_up")

    def step_down(self) -> None:
        self._left("step_down")

    def _left(self, call: str) -> None:
        if self.state == "leader":
            self.calls.append(call)
            self.state = "follower"

    def hold_off(self) -> None:
        pass

    def destroy(self) -> None:
        self.calls.append("destroy")


class Harness:
    """A running ticker, its voter and what it posted."""

    def __init__(self) -> None:
        self.voter = RecordingVoter()
        self.started: list[Any] = []
        self.sighted: list[RaftView] = []
        self.ticker = Ticker(
            lambda: self.voter,  # type: ignore[arg-type, return-value]
            Times(),
            SystemClock(),
            asyncio.get_running_loop(),
            lambda *args: self.started.append(args),
            self.sighted.append,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end
            await asyncio.sleep(0.005)

    async def stop(self, gracefully: bool = False) -> None:
        self.ticker.stop(gracefully)
        await asyncio.to_thread(self.ticker.thread.join, 10)
        assert not self.ticker.thread.is_alive()
        assert self.voter.calls[-1] == "destroy"


async def test_it_reports_only_what_changed() -> None:
    harness = Harness()
    harness.ticker.thread.start()
    await harness.until(lambda: harness.sighted)
    assert harness.started == [(harness.voter, None)]
    assert harness.ticker.thread.daemon
    asked = threading.Event()
    harness.ticker.ask(lambda voter: asked.set())
    await harness.until(asked.is_set)
    assert len(harness.sighted) == 1
    harness.voter.state = "follower"
    await harness.until(lambda: len(harness.sighted) == 2)
    await harness.stop()


async def test_a_build_that_fails_is_reported() -> None:
    harness = Harness()

    def build() -> Any:
        raise OSError("no")

    harness.ticker._build = build
    harness.ticker.thread.start()
    await harness.until(lambda: harness.started)
    voter, error = harness.started[0]
    assert voter is None
    assert str(error) == "no"


async def test_it_outlives_defects_and_steps_down(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.ticker.thread.start()
    harness.voter.error = RuntimeError("a defect")
    await harness.until(lambda: "step_down" in harness.voter.calls)
    await harness.until(lambda: failures_of(harness.ticker) >= 3)
    assert harness.ticker.latest is not None
    assert harness.ticker.latest.ticked < time.monotonic() - 0.03
    harness.voter.error = None
    await harness.until(lambda: failures_of(harness.ticker) == 0)
    assert caplog.text.count("stepping down") == 1
    await harness.stop()


async def test_a_loop_that_does_not_turn_loses_leadership_once() -> None:
    harness = Harness()
    harness.ticker.beat = time.monotonic() - 0.8
    harness.ticker.thread.start()
    await harness.until(lambda: harness.voter.calls == ["give_up"])
    assert time.monotonic() - harness.ticker.beat > Times().wedge_s
    await harness.stop()


async def test_a_lone_node_keeps_leading_over_a_loop_that_does_not_turn() -> None:
    harness = Harness()
    harness.voter.otherNodes = set()
    harness.ticker.beat = time.monotonic() - 100
    harness.ticker.thread.start()
    await harness.until(lambda: harness.sighted)
    await harness.stop(gracefully=True)
    assert harness.voter.calls == ["destroy"]


async def test_a_planned_end_hands_over_first_and_another_does_not() -> None:
    for gracefully, calls in ((True, ["give_up", "destroy"]), (False, ["destroy"])):
        harness = Harness()
        harness.ticker.thread.start()
        await harness.until(lambda harness=harness: harness.sighted)
        await harness.stop(gracefully)
        assert harness.voter.calls == calls


async def test_posting_to_a_closed_loop_does_nothing() -> None:
    harness = Harness()
    harness.ticker._loop = asyncio.new_event_loop()
    harness.ticker._loop.close()
    harness.ticker.post(print, "nobody")
    harness.ticker.thread.start()
    await harness.stop()
