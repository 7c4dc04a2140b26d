"""Our door beside beanstalkd: the same commands have the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.doors.beanstalkd_beside import BINARY, Side, beanstalkd, compare
from support.doors.beanstalkd_site import BeanstalkdSite

pytestmark = pytest.mark.skipif(BINARY is None, reason="no beanstalkd on this machine")


def ours(site: BeanstalkdSite) -> Callable[[], Awaitable[None]]:
    context = site.server.context

    async def settled() -> None:
        """Whoever hung up has given back what it had."""
        while context.closing or any(one.half_closed for one in context.connections):
            await asyncio.sleep(0.001)

    return settled


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_random_commands_have_the_same_answers(site: BeanstalkdSite, seed: int) -> None:
    async with beanstalkd() as port:

        async def settled() -> None:
            """It reads what has come in its order: who hung up is gone before who comes then."""

        sides = Side(site.server.port, ours(site)), Side(port, settled)
        try:
            await compare(sides, seed, 400)
        finally:
            for side in sides:
                await side.close()
