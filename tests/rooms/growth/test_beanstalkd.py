"""
What the beanstalkd door keeps for long stays bounded: see docs/testing.md, "What stays".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.doors.beanstalkd_site import beanstalkd_site
from support.growth import by_container, entries

from tidewarden.server.beanstalkd import job_numbers
from tidewarden.server.beanstalkd.job_numbers import Job

pytestmark = pytest.mark.thorough


async def test_numbers_of_tasks_that_were_put_elsewhere(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_numbers, "FOREIGN_MAX", 1000)
    numbers = job_numbers.JobNumbers((await node()).queues.catalog)
    before = entries(numbers)
    first = await numbers.number_of(Job("q", "task-0"))
    for n in range(20_000):
        await numbers.number_of(Job("q", f"task-{n}"))
    assert entries(numbers) <= before + 2000, by_container(numbers)
    assert await numbers.find(first) is None


async def test_connections_that_come_and_go(node: Any) -> None:
    queues = (await node()).queues
    async with beanstalkd_site(queues, connections_max=50) as site:
        context = site.server.context
        for round_ in range(3):
            talks = [await site.dial() for _ in range(50)]
            for n, talk in enumerate(talks):
                await talk.ask(f"use t{n}")
                for m in range(10):
                    await talk.ask(f"watch w{m}")
                number = await talk.put()
                await talk.ask(f"reserve-job {number}")
                await talk.ask(f"delete {number}")
                talk.send(b"reserve\r\n")
            while site.server.stats()["waiting"] < 50:
                await asyncio.sleep(0)
            one_too_many = await site.dial()
            assert await one_too_many.line() == b"OUT_OF_MEMORY"
            for talk in talks:
                await talk.close()
            while context.peers.connections or context.peers.closing:
                await asyncio.sleep(0)
            for counter in (context.using, context.watching, context.waiting):
                assert not counter, (round_, counter)
        assert not queues.sessions.open_ones
