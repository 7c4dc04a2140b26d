"""
Runs inside a library's own virtual environment: its worker, or a producer steered by lines.

    python -m benchmarks.peers.inside NAME worker|producer

Each line to the producer is a JSON object: ``{"do": "enqueue", …}``, and each answer another. The
library's file has ``put`` (blocking, or a coroutine function: then 50 of them are under way),
``work``, and perhaps a coroutine function ``connect``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.runs import PATH, Runs

UNDER_WAY = 50
PAYLOAD = "x" * 100
STALLED_S = 5.0


class Producer:
    """Puts tasks through one library."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library
        self.loop = asyncio.new_event_loop()
        self.runs = Runs(Path(os.environ[PATH]))
        self.numbers = itertools.count(1)
        self.is_async = asyncio.iscoroutinefunction(library.put)
        if hasattr(library, "connect"):
            self.wait(library.connect())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def one(self, delay_s: float = 0.0, hold_s: float = 0.0) -> Any:
        """Put the next task; a coroutine, or done."""
        due_s = time.monotonic() + delay_s
        return self.library.put((next(self.numbers), due_s, hold_s, PAYLOAD), delay_s)

    def enqueue(self, seconds: float, most: int) -> dict[str, float]:
        """As many as possible for so long; how many, and in what time."""
        began, count = time.monotonic(), 0

        async def keep_putting() -> None:
            nonlocal count
            while count < most and time.monotonic() - began < seconds:
                count += 1
                await self.one()

        async def together() -> None:
            await asyncio.gather(*(keep_putting() for _ in range(UNDER_WAY)))

        if self.is_async:
            self.wait(together())
        else:
            while count < most and time.monotonic() - began < seconds:
                self.one()
                count += 1
        return {"count": count, "seconds": time.monotonic() - began}

    def cycle(self, seconds: float) -> dict[str, float]:
        """
        Put a task whenever fewer than 50 are unfinished.

        Counts the runs after the first quarter of the time.
        """
        first = len(self.runs)
        began, put = time.monotonic(), 0
        warm_at, warm = began + seconds / 4, 0

        def room() -> int:
            nonlocal warm
            done = len(self.runs) - first
            if not warm and time.monotonic() > warm_at:
                warm = max(1, done)
            return UNDER_WAY - (put - done)

        async def together() -> None:
            nonlocal put
            while time.monotonic() - began < seconds:
                free = room()
                if free > 0:
                    put += free
                    await asyncio.gather(*(self.one() for _ in range(free)))
                else:
                    await asyncio.sleep(0.0005)

        if self.is_async:
            self.wait(together())
        else:
            while time.monotonic() - began < seconds:
                if room() > 0:
                    self.one()
                    put += 1
                else:
                    time.sleep(0.0005)
        done = len(self.runs) - first
        return {"count": done - warm, "seconds": time.monotonic() - warm_at}

    def delayed(self, count: int, seconds: float, delay_s: float) -> dict[str, float]:
        """
        Put that many tasks, due evenly over a time.

        A random part is added, because pollers look at the same moments.
        """
        dice = random.Random(1)
        for _ in range(count):
            done = self.one(delay_s + dice.random())
            if self.is_async:
                self.wait(done)
            time.sleep(seconds / count)
        return {"count": count}

    def hold(self, hold_s: float) -> dict[str, float]:
        """One that keeps its worker."""
        done = self.one(hold_s=hold_s)
        if self.is_async:
            self.wait(done)
        return {"count": 1}


def produce(library: ModuleType, name: str) -> None:
    """Do what each line says until there are no more."""
    producer = Producer(library)
    print(
        json.dumps({"version": importlib.metadata.version(getattr(library, "PACKAGE", name))}),
        flush=True,
    )
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(getattr(producer, words.pop("do"))(**words)), flush=True)


def main() -> None:
    """See the module's docstring."""
    name, role = sys.argv[1:3]
    library = importlib.import_module(f"benchmarks.peers.{name}")
    if role == "worker":
        library.work()
    else:
        produce(library, name)


if __name__ == "__main__":
    main()
