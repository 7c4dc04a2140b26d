"""Our beanstalkd door beside beanstalkd for a long time: the same commands, the same answers."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.doors.beanstalkd_beside import BINARY, Side, beanstalkd, compare, whoever_left
from support.doors.beanstalkd_site import beanstalkd_site

SEEDS = max(1, int(float(os.environ.get("SOAK_SECONDS", "300")) / 30))
FIRST = int(os.environ.get("SOAK_SEED", "1"))


@pytest.mark.skipif(BINARY is None, reason="no beanstalkd on this machine")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
async def test_random_commands_for_a_long_time(node: Any, seed: int) -> None:
    async with beanstalkd() as port, beanstalkd_site((await node()).queues) as site:
        sides = Side(site.server.port, whoever_left(site)), Side(port, whoever_left(None))
        try:
            await compare(sides, seed, 3000, places=5)
        finally:
            for side in sides:
                await side.close()
