"""A child that is started again, against small real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.doors.http_app import serving_app
from support.waiting import eventually

from tidewarden.cli.up import supervise
from tidewarden.cli.up.supervise import Child, Tell
from tidewarden.clock import SystemClock
from tidewarden.errors import ConfigError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits five seconds here."""
    monkeypatch.setattr("tidewarden.cli.up.supervise.RESTART_S", 0.05)


def child_of(
    argv: list[str],
    log: Path,
    tell: Tell,
    ready_url: str = "http://127.0.0.1:1/",
) -> Child:
    return Child("n0", argv, log, tell, SystemClock(), ready_url=ready_url)


async def test_what_ends_is_started_again_and_its_last_words_are_told(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    argv = [sys.executable, "-c", "import sys; print('no room'); sys.exit(3)"]
    child = child_of(argv, tmp_path / "out" / "log", lambda *event: told.append(event))
    task = asyncio.create_task(child.run())
    await eventually(lambda: child.restarts >= 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await child.stop(1)
    assert ("n0", "ended with status 3: no room; it starts again in 0 s") in told
    assert not child.served.is_set()


async def test_a_killed_one_is_started_again(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = child_of(argv, tmp_path / "log", lambda *event: told.append(event))
    task = asyncio.create_task(child.run())
    first = await eventually(lambda: child.pid)
    os.kill(first, signal.SIGKILL)
    second = await eventually(lambda: child.pid not in (None, first) and child.pid)
    assert any(text.startswith("was killed by SIGKILL") for _, text in told)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await child.stop(5)
    assert child.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_what_cannot_be_started_at_first_ends_it_and_later_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    start, full = supervise.start_child, True

    async def started(*words: Any, **options: Any) -> asyncio.subprocess.Process:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start(*words, **options)

    monkeypatch.setattr(supervise, "start_child", started)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = child_of(argv, tmp_path / "log", lambda _, text: told.append(text))
    with pytest.raises(ConfigError, match="n0 could not be started: No space left on device"):
        await child.run()
    child.served.set()
    task = asyncio.create_task(child.run())
    await eventually(lambda: told)
    full = False
    await eventually(lambda: child.pid)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await child.stop(5)
    assert told[0] == "could not be started: No space left on device; it is tried again in 0 s"


@pytest.mark.thorough
async def test_why_it_is_not_ready_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    reason = ""

    async def ready(_: web.Request) -> web.Response:
        return web.json_response(
            {"ok": not reason, "reason": reason}, status=503 if reason else 200
        )

    app = web.Application()
    app.router.add_get("/health/ready", ready)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    async with serving_app(app) as port:
        child = child_of(
            argv,
            tmp_path / "log",
            lambda _, text: told.append(text),
            f"http://127.0.0.1:{port}/health/ready",
        )
        task = asyncio.create_task(child.run())
        await eventually(lambda: "serves" in told)
        reason = "the store refuses: MISCONF"
        await eventually(lambda: not child.serves)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await child.stop(5)
    assert told[-1] == "is not ready: the store refuses: MISCONF"
