"""What a daemon asks of its own process, tried in one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.manual_clock import ManualClock

from tidewarden.node.os_process import tell_supervisor, tell_watchdog


@pytest.mark.thorough
def test_the_limit_of_open_files_is_raised_as_far_as_the_host_allows() -> None:
    script = (
        "import resource; from tidewarden.node.os_process import FILES_WANTED, raise_file_limit; from"
        " tidewarden.config.load import Limits\nhard ="
        " resource.getrlimit(resource.RLIMIT_NOFILE)[1]\nresource.setrlimit(resource.RLIMIT_NOFILE,"
        " (64, hard)); assert raise_file_limit(Limits(connections_max=100)).resp == 100\nsoft ="
        " resource.getrlimit(resource.RLIMIT_NOFILE)[0]\nassert soft == (FILES_WANTED if hard =="
        " resource.RLIM_INFINITY else min(FILES_WANTED, hard)), soft\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.thorough
def test_fewer_files_than_connections_are_told() -> None:
    script = (
        "import logging, resource; from tidewarden.node.os_process import raise_file_limit; from"
        " tidewarden.config.load import"
        " Limits\nlogging.basicConfig(format='%(message)s')\nresource.setrlimit(resource.RLIMIT_NOFILE,"
        " (64, 4096)); assert raise_file_limit(Limits()) == (2584,"
        " 1000)\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024)); assert"
        " raise_file_limit(Limits()) == (512, 256)\nresource.setrlimit(resource.RLIMIT_NOFILE, (64,"
        " 256)); assert raise_file_limit(Limits()) == (128, 64)\nassert"
        " resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True
    ).stderr
    assert (
        "the host allows 4096 open files: at most 2584 connections instead of"
        " limits.connections_max (10000)\n" in said
    )
    assert (
        "connections_max (10000), and 256 connections instead of limits.http_connections_max"
        " (1000)\n" in said
    )


def test_a_hangup_that_comes_early_is_heeded_later() -> None:
    script = (
        "import asyncio, os, signal; from tidewarden.node.os_process import heed_signals, hold_hangups\n"
        "hold_hangups(); os.kill(os.getpid(), signal.SIGHUP)\n"
        "async def main():\n"
        "    heard, stopped = asyncio.Event(), asyncio.Event()\n"
        "    heed_signals(asyncio.get_running_loop(), stopped.set, heard.set)\n"
        "    async with asyncio.timeout(30):\n"
        "        await heard.wait(); os.kill(os.getpid(), signal.SIGTERM); await stopped.wait()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.thorough
def test_a_node_that_is_only_starting_outlives_a_hangup(tmp_path: Path) -> None:
    """
    Held from the command line's first lines on: here as its imports begin, long before there is a
    loop.
    """
    script = (
        "import os, signal, sys; sys.argv = ['tidewarden', 'node', '--check']\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, Early())\n"
        "from tidewarden.cli import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "good. Node n0" in done.stdout


def test_the_collector_runs_rarely_and_passes_over_what_is_built() -> None:
    script = (
        "import gc; from tidewarden.node.os_process import calm_collector\ncalm_collector(); assert"
        " gc.isenabled() and gc.get_freeze_count() > 0 and gc.get_threshold()[0] >= 10_000\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_supervisor_is_told_where_it_listens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for address in (str(tmp_path / "s"), f"@tidewarden-test-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.bind(address.replace("@", "\0", 1))
            tell_supervisor("READY=1", {"NOTIFY_SOCKET": address})
            assert end.recv(100) == b"READY=1"
    tell_supervisor("READY=1", {})
    assert caplog.text == ""
    tell_supervisor("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert "could not be told READY=1" in caplog.text


async def test_a_watchdog_is_told_as_long_as_nothing_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, reason = ManualClock(), ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "s"))
        end.setblocking(False)

        def heard() -> int:
            count = 0
            with contextlib.suppress(BlockingIOError):
                while end.recv(100) == b"WATCHDOG=1":
                    count += 1
            return count

        asked = {
            "NOTIFY_SOCKET": str(tmp_path / "s"),
            "WATCHDOG_USEC": "60000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        others = [
            {**asked, "WATCHDOG_PID": "1"},
            {**asked, "WATCHDOG_USEC": "0"},
            {"NOTIFY_SOCKET": str(tmp_path / "s")},
        ]
        ignored = [
            asyncio.create_task(tell_watchdog(clock, lambda: reason, environ)) for environ in others
        ]
        await asyncio.sleep(0)
        await clock.advance(120)
        assert heard() == 0
        told = asyncio.create_task(tell_watchdog(clock, lambda: reason, asked))
        await asyncio.sleep(0)
        await clock.advance(60)
        assert heard() == 5
        reason = "its loop is stuck"
        await clock.advance(120)
        assert heard() == 0
        assert caplog.text.count("its loop is stuck") == 1
        reason = ""
        await clock.advance(15)
        assert heard() == 1
        assert not any(task.done() for task in (told, *ignored))
        for task in (told, *ignored):
            task.cancel()
        await asyncio.gather(told, *ignored, return_exceptions=True)


def test_no_core_is_dumped_and_no_neighbour_reads_the_memory() -> None:
    script = (
        "import ctypes, resource; from tidewarden.node.os_process import keep_memory_private\n"
        "keep_memory_private(); assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_process_that_does_not_end_is_ended_and_says_what_it_waited_for() -> None:
    script = (
        "import asyncio, logging; from tidewarden.node.os_process import end_within\n"
        "logging.basicConfig(format='%(message)s')\n"
        "async def main():\n"
        "    end_within(0.2, asyncio.get_running_loop())\n"
        "    await asyncio.create_task(asyncio.Event().wait(), name='waits')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "not ended within 0.2 s" in done.stderr
    assert "Event.wait" in done.stderr
