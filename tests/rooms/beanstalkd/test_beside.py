"""Our door beside beanstalkd: the same commands have the same answers."""

from __future__ import annotations

import pytest
from support.doors.beanstalkd_beside import BINARY, Side, beanstalkd, compare, whoever_left
from support.doors.beanstalkd_site import BeanstalkdSite

pytestmark = pytest.mark.skipif(BINARY is None, reason="no beanstalkd on this machine")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_random_commands_have_the_same_answers(site: BeanstalkdSite, seed: int) -> None:
    async with beanstalkd() as port:
        sides = Side(site.server.port, whoever_left(site)), Side(port, whoever_left(None))
        try:
            await compare(sides, seed, 400)
        finally:
            for side in sides:
                await side.close()
