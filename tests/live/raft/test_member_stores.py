"""The facts about the stores, of members on loopback: asked of any, applied on all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.inspect import open_questions_of
from support.raft.group import Group, group, wait_for

from tidewarden.errors import BadArg, Draining, NoLeader, Timeout
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
    await wait_for(lambda: calls[-1] == found)
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


async def test_reports_come_to_all_members_at_once(group: Callable[..., Group]) -> None:
    three = group(3)
    await three.start()
    await three.elected()
    one, two, last = three.running.values()
    calls: list[str] = []
    for raft in (one, two, last):
        raft.on_stores = lambda name=raft.name: calls.append(name)

    def heard_everywhere() -> bool:
        one.say_store(
            ("a", 1, ("b",)), now=True
        )  # again, as nodes do: some may have been told to none
        return all("n0" in raft.store_reports() for raft in (two, last))

    await wait_for(heard_everywhere)
    assert {raft.store_reports()["n0"][1] for raft in (one, two, last)} == {("a", 1, ("b",))}
    await wait_for(lambda: {"n0", "n1", "n2"} <= set(calls))
    heard = two.store_reports()["n0"][0]
    calls.clear()
    one.say_store(("a", 1, ("b",)), now=True)
    await wait_for(lambda: two.store_reports()["n0"][0] > heard)
    one.say_store(("a", 2, ("b",)))
    await wait_for(lambda: two.store_reports()["n0"][1] == last.store_reports()["n0"][1])
    await wait_for(lambda: set(calls) == {"n0", "n1", "n2"})
    with pytest.raises(BadArg, match="plain values"):
        one.say_store((b"bytes",))


async def test_the_report_of_a_member_that_left_is_forgotten(group: Callable[..., Group]) -> None:
    three = group(3)
    await three.start()
    leader = await three.elected()
    leaver, stays = [raft for raft in three.running.values() if raft is not leader]

    def heard_everywhere() -> bool:
        leaver.say_store(("a",), now=True)
        return all(leaver.name in raft.store_reports() for raft in (leader, stays))

    await wait_for(heard_everywhere)
    await leader.leave(leaver.name)
    await wait_for(lambda: not any(leaver.name in raft.store_reports() for raft in (leader, stays)))
    assert leaver.name not in leader.voters()


async def test_a_stop_answers_who_waits_and_tells_nobody_more(group: Callable[..., Group]) -> None:
    three = group(3, pace=3.0)  # a time-out comes late
    await three.start("n0", "n1")
    await three.elected()
    raft = three.running["n0"]
    await three.end("n1")
    calls: list[str] = []
    waiting = [asyncio.create_task(raft.look_stores()) for _ in range(3)]
    await wait_for(lambda: len(open_questions_of(raft)) == 3 or all(t.done() for t in waiting))
    raft.say_store(("a",), now=True)
    raft.on_stores = lambda: calls.append("stores")
    await three.end("n0")
    assert all(isinstance(error, NoLeader) for error in await asyncio.wait_for(ends(waiting), 10))
    assert calls == []


async def ends(tasks: list[asyncio.Task[StoreFacts]]) -> list[object]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_leave_is_refused_in_words_until_the_primary_is_handed_over(
    group: Callable[..., Group],
) -> None:
    three = group(3, pace=0.5)
    await three.start()
    leader = await three.elected()
    asked, leaver = [raft for raft in three.running.values() if raft is not leader]
    await wait_for(lambda: len(asked.voters()) == 3)
    await leader.store_command(("found", leaver.name, "a", 0))
    for raft in three.running.values():  # at once: with a wait it would be no quorum
        with pytest.raises(BadArg, match=f"{leaver.name}'s store is the primary, which is handed"):
            await raft.leave(leaver.name)
    text = " ".join(f"{raft.name}.a" for raft in three.running.values())
    await leader.store_command(("change", 1, 1, text))
    await leader.store_command(("elect", 1, asked.name, "a", "a", "", 0))
    await asked.leave(leaver.name)
    await wait_for(lambda: leader.voters() == {asked.name, leader.name})
