"""Dramatiq on Redis: its command line's defaults, a process a core with eight threads each."""

from __future__ import annotations

import os
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.cli import main, make_argument_parser

from benchmarks.peers.runs import URL, ran

dramatiq.set_broker(RedisBroker(url=os.environ[URL]))


@dramatiq.actor
def run(number: int, due_s: float, hold_s: float, payload: str) -> None:
    ran(number, due_s, hold_s)


def put(arguments: tuple[Any, ...], delay_s: float) -> None:
    run.send_with_options(args=arguments, delay=int(delay_s * 1000) if delay_s else None)


def work() -> None:
    main(make_argument_parser().parse_args([__name__]))
