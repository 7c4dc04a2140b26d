"""From threads to a loop and back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidewarden.client.loop_thread import LoopThread


def test_a_coroutine_runs_there_and_its_result_or_error_comes_back() -> None:
    bridge = LoopThread("test loop")

    async def where() -> str:
        return threading.current_thread().name

    async def wrong() -> None:
        raise KeyError("x")

    assert bridge.run(where()) == "test loop"
    with pytest.raises(KeyError):
        bridge.run(wrong())
    assert asyncio.run(bridge.there(where())) == "test loop"
    bridge.stop()
    bridge.stop()
    with pytest.raises(RuntimeError, match="was closed"):
        bridge.run(where())
    with pytest.raises(RuntimeError, match="was closed"):
        asyncio.run(bridge.there(where()))


def test_a_task_in_a_forked_process_is_told(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from tidewarden.client.auth import AccountTokens
from tidewarden.client import Client

tokens = AccountTokens("shop/42", Client("redis://127.0.0.1:9"))
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    asyncio.run(tokens.get_async())
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    said = "this client was made before a fork: make one in each process\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_stop_cancels_what_still_runs() -> None:
    bridge = LoopThread("test loop")
    begun, ended = threading.Event(), threading.Event()

    async def long() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ended.set()

    asyncio.run_coroutine_threadsafe(long(), bridge.loop)
    assert begun.wait(10)
    bridge.stop()
    assert ended.is_set()
