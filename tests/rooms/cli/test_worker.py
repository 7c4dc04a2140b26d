"""``tidewarden worker``: finding the Worker, and a whole run as a process, signals and all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.doors.client_harness import Site, site
from support.doors.command_line import app
from typer.testing import CliRunner

from tidewarden.cli.worker import load
from tidewarden.client import AsyncClient

APP = """
import time
from tidewarden.client import Task, Worker
worker = Worker(concurrency=2, grace_s=60)
number = 5

@worker.task("jobs")
def job(task: Task) -> str:
    time.sleep(float(task.text))
    return task.text
"""


@pytest.fixture
async def here(node: Any) -> AsyncIterator[Site]:
    async with site(node) as made:
        yield made


def test_the_worker_is_found_by_module_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_app_found.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("shop_app_found").handlers.keys() == {"jobs"}
    assert load("shop_app_found:worker").concurrency == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:worker", "there is no module 'no_such_module'"),
        ("shop_app:number", "should have a Worker called number: it is a int"),
        ("shop_app:nothing", "should have a Worker called nothing: there is none"),
        (":worker", "is no MODULE:NAME"),
    ],
)
def test_what_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    message: str,
) -> None:
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(typer.Exit) as caught:
        load(name)
    assert caught.value.exit_code == 2
    assert message in capsys.readouterr().err


def test_a_worker_without_handlers_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (None, "tidewarden"):
        caplog.set_level(logging.INFO, name)  # as the verb does; this takes it back
    (tmp_path / "shop_empty.py").write_text(
        "from tidewarden.client import Worker\nworker = Worker()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["worker", "shop_empty", "--url", "redis://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "has no handler" in result.stderr


@pytest.mark.thorough  # a process of its own
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_it_finish(here: Site, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "shop_app.py").write_text(APP)
    async with AsyncClient(here.urls) as client:
        jobs = client.queue("jobs")
        await jobs.put("0", id="quick")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidewarden", "worker", "shop_app:worker", "--url", here.urls[0], "--verbose",
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert (await jobs.wait("quick", timeout_ms=30_000)).result == b"0"
            await jobs.put("3", id="slow")
            while (await jobs.peek("slow")).state != "leased":
                await asyncio.sleep(0.01)
            process.send_signal(number)
            assert process.stderr is not None
            output = b""
            while b"stops: " not in output:
                line = await process.stderr.readline()
                assert line, output
                output += line
            await jobs.put("0", id="too-late")
            _, rest = await asyncio.wait_for(process.communicate(), 60)
            output += rest
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0
        assert (await jobs.wait("slow", timeout_ms=0)).result == b"3"
        assert (await jobs.peek("too-late")).state == "ready"
        lines = [json.loads(line) for line in output.decode().splitlines()]
        messages = [line["message"] for line in lines]
        assert messages[0].startswith(
            "works on jobs, 2 at a time, at <AsyncClient redis://127.0.0.1:"
        )
        assert "stops: 1 under way have 60 s" in messages
        assert messages[-1] == "stopped"
        assert {line["node"] for line in lines} == {"shop_app.worker"}
