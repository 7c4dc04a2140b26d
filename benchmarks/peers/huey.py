"""
huey on Redis: four worker threads, results not kept.

It has no way to give a task back whose consumer died.
"""

from __future__ import annotations

import os
from typing import Any

from huey import RedisHuey

from benchmarks.peers.runs import URL, ran

huey = RedisHuey("bench", url=os.environ[URL], results=False)


@huey.task()
def run(number: int, due_s: float, hold_s: float, payload: str) -> None:
    ran(number, due_s, hold_s)


def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    if delay_s:
        run.schedule(args=arguments, delay=delay_s)
    else:
        run(*arguments)


def work() -> None:
    huey.create_consumer(workers=4).run()
