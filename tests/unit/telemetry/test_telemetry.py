"""A process ends in its time while the receiver accepts everything and answers nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys
from tidewarden import tracing
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.telemetry import spans, telemetry

spans.SEND_S = telemetry.SEND_S = 3600.0  # a receiver's time out would end the waiting, too

async def main():
    asked = asyncio.Event()
    async def text():
        asked.set()
        return b"# TYPE a gauge\\na 1\\n"
    async with telemetry.telemetry(load(sys.argv[1], {}, {}), SystemClock(), text):
        for _ in range(2000):  # several batches, the first of which is sent at once
            with tracing.client_span("refresh dot", {}):
                pass
        await asked.wait()
    print("ended")

asyncio.run(main())
"""


@pytest.mark.thorough
def test_a_receiver_that_never_answers_holds_up_no_end(tmp_path: Path) -> None:
    config = tmp_path / "tidewarden.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config.write_text(
            f'[otel]\nendpoint = "http://127.0.0.1:{silent.getsockname()[1]}"\n'
            "metrics_interval_s = 1.0\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(config)],
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert done.stderr == "the last spans are lost: the receiver does not take them in 3 s\n"
