"""What keeps a process's duties going."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.manual_clock import ManualClock

from tidewarden import duties as module
from tidewarden.duties import Duties, ending_with
from tidewarden.errors import ConfigError


class Duty:
    """Fails so often, then waits for ever."""

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, 0
        self.got_on = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise RuntimeError(f"the handler is closed ({self.runs})")
        self.got_on.set()
        await asyncio.Event().wait()


async def advance_until(clock: ManualClock, done: asyncio.Event | asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not (done.is_set() if isinstance(done, asyncio.Event) else done.done()):
            await clock.advance(module.PAUSE_S_MAX)


async def test_a_duty_that_fails_is_begun_anew_and_told(caplog: pytest.LogCaptureFixture) -> None:
    clock, duty = ManualClock(), Duty(module.FAILURES_MAX)
    duties = Duties(clock)
    task = duties.begin("in-sync set", duty.run)
    await advance_until(clock, duty.got_on)
    assert not task.done()
    assert duty.runs == module.FAILURES_MAX + 1
    assert duties.stats() == {"duties_begun_anew_total": module.FAILURES_MAX}
    assert "in-sync set failed and was begun anew: RuntimeError: the handler" in duties.warning()
    told = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(told) == module.FAILURES_MAX
    assert told[0].exc_info is not None, "with its traceback"
    await clock.advance(module.STEADY_S)
    assert duties.warning() == ""
    task.cancel()
    await asyncio.wait([task])


async def test_one_that_fails_again_and_again_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, duty, stopping = ManualClock(), Duty(1000), asyncio.Event()
    task = Duties(clock).begin("beats", duty.run)

    async def serve() -> None:
        async with ending_with(task, stopping):
            await advance_until(clock, task)
            await stopping.wait()

    with pytest.raises(RuntimeError, match="the handler is closed"):
        await serve()
    assert duty.runs == module.FAILURES_MAX + 1
    assert [one.message for one in caplog.records if one.levelno == logging.CRITICAL] == [
        f"beats failed for the {module.FAILURES_MAX + 1}. time in a row: the process ends"
    ]


async def test_one_that_was_steady_has_all_its_tries_again() -> None:
    clock = ManualClock()
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        await clock.sleep_until(clock.monotonic() + module.STEADY_S)
        raise RuntimeError("once a minute")

    task = Duties(clock).begin("sweep", run)
    async with asyncio.timeout(60):
        while runs < 3 * module.FAILURES_MAX:
            await clock.advance(module.STEADY_S)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_cancellation_of_something_below_it_is_its_failure() -> None:
    """Else the duty would have ended, and nobody known."""
    clock, got_on = ManualClock(), asyncio.Event()

    async def run() -> None:
        if not got_on.is_set():
            got_on.set()
            raise asyncio.CancelledError  # as of a take that somebody else has ended
        await asyncio.Event().wait()

    duties = Duties(clock)
    task = duties.begin("refreshers", run)
    await advance_until(clock, got_on)
    assert duties.begun_anew == 1
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_what_somebody_has_to_change_ends_it_at_once() -> None:
    async def run() -> None:
        raise ConfigError(["node.name: another process has it"])

    with pytest.raises(ConfigError, match="another process has it"):
        await Duties(ManualClock()).keep("nodes", run)


async def test_a_duty_that_returns_is_over() -> None:
    duty = Duty(0)
    duty.got_on.set()

    async def run() -> None:
        duty.runs += 1

    duties = Duties(ManualClock())
    await duties.keep("facts of the stores", run)
    assert (duty.runs, duties.begun_anew) == (1, 0)


async def test_an_orderly_end_is_no_failure() -> None:
    duty, stopping = Duty(0), asyncio.Event()
    async with ending_with(Duties(ManualClock()).begin("beats", duty.run), stopping):
        await duty.got_on.wait()
    assert not stopping.is_set()
