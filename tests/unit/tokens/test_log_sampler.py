"""The log's lines about single accounts: the first ones, then that there are more."""

from __future__ import annotations

import logging
from typing import Any

from support.manual_clock import ManualClock

from tidewarden.tokens.refresh.log_sampler import LogSampler


async def test_a_flood_becomes_a_few_lines_a_minute(caplog: Any) -> None:
    clock = ManualClock()
    digest = LogSampler("shop", clock)
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        for number in range(1000):
            digest.say(f"a{number}", "dead", "is dead")
        lines = [record.getMessage() for record in caplog.records]
        assert lines[:2] == ["shop/a0 is dead", "shop/a1 is dead"]
        assert len(lines) == LogSampler.LINES + 1
        assert lines[-1].endswith("tidewarden token list --provider shop --state dead")
        await clock.advance(LogSampler.WINDOW_S)
        digest.say("late", "dead", "is dead")
    assert caplog.records[-1].getMessage() == "shop/late is dead"
