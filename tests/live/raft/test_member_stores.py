"""The facts about the stores, of members on loopback: asked of any, applied on all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.raft.group import Group, group, wait_for

from tidewarden.errors import Draining, NoLeader, Timeout
from tidewarden.raft.store_facts import StoreFacts, StoreMember

__all__ = ["group"]  # a fixture


async def test_any_member_commits_and_sees_what_it_committed(group: Callable[..., Group]) -> None:
    three = group(3)
    await three.start()
    await three.elected()
    calls: list[StoreFacts] = []
    one, two, last = three.running.values()
    await wait_for(lambda: all(raft.voters() == {"n0", "n1", "n2"} for raft in (one, two, last)))
    two.on_stores = lambda: calls.append(two.store_facts())
    found = await one.store_command(("found", "n0", "a", 0))
    assert found == one.store_facts()
    assert (found.view, found.primary_member) == (1, StoreMember("n0", "a"))
    for raft in (two, last):
        assert await raft.look_stores() == found == raft.store_facts()
    await wait_for(lambda: calls)
    assert calls == [found]
    again = await last.store_command(("found", "n1", "b", 0))
    assert again == found
    grown = await two.store_command(("change", 1, 1, "n0.a n1.b"))
    assert grown.nodes_in_sync == {"n0", "n1"}
    await wait_for(lambda: all(raft.store_facts() == grown for raft in (one, two, last)))


async def test_the_facts_outlive_restarts_and_the_stop(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    raft = await lone.elected()
    await wait_for(lambda: raft.voters() == {"n0"})
    found = await raft.store_command(("found", "n0", "a", 4))
    assert found.view == 5
    await lone.end("n0")
    assert raft.store_facts() == found
    with pytest.raises(Draining):
        await raft.look_stores()
    await lone.start()
    raft = await lone.elected()
    assert await raft.look_stores() == found


async def test_without_a_majority_nothing_is_known(group: Callable[..., Group]) -> None:
    three = group(3)
    await three.start()
    await three.elected()
    await asyncio.gather(three.end("n0"), three.end("n1"))
    with pytest.raises((NoLeader, Timeout)):
        await three.running["n2"].look_stores()
