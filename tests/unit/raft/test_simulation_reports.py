"""Reports of stores between simulated members: to all, from members alone, and nothing but plain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.raft import membership_scenes as scenes
from support.raft.faults import others
from support.raft.simulation import World


def said(world: World, address: str) -> dict[str, Any]:
    """What a member has heard, by name."""
    heard = world.members[address].voter.reports.heard
    return {name: report for name, (_, report) in heard.items()}


def say(world: World, address: str, report: tuple[Any, ...]) -> None:
    world.running = world.members[address]
    world.running.voter.say_store(report)


def test_all_members_hear_it_whoever_leads() -> None:
    with World(1) as world:
        scenes.founded(world)
        for address in world.alive():
            say(world, address, (address, 1))
        world.run(0.1)
        for address in world.alive():
            assert said(world, address) == {
                other.removesuffix(":1"): (other, 1) for other in others(world, address)
            }


def test_a_report_that_is_not_urgent_goes_with_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(1) as world:
        leader = scenes.founded(world)
        for address in world.alive():
            say(world, address, ("first",))
        world.run(0.2)
        sent = Counter[tuple[str, str]]()
        send = world.send

        def counted(sender: str, receiver: str, message: Any) -> None:
            sent[sender, message["type"]] += 1
            send(sender, receiver, message)

        monkeypatch.setattr(world, "send", counted)
        for n in range(20):
            for address in world.alive():
                world.running = world.members[address]
                world.running.voter.say_store((address, n), now=False)
            world.run(0.1)
        # Each has one of its own only where no heartbeat lay between two reports.
        assert sent[leader, "store_report"] <= 0.1 * 20 * len(others(world, leader))
        for address in world.alive():
            assert said(world, address) == {
                other.removesuffix(":1"): (other, 19) for other in others(world, address)
            }


def test_who_waits_to_be_let_in_is_heard_once_it_is() -> None:
    with World(2) as world:
        leader = scenes.founded(world)
        world.newcomer("n9", world.alive())
        world.run(1)
        say(world, "n9:1", ("early",))
        world.run(0.5)
        assert not any("n9" in said(world, address) for address in world.alive())
        scenes.join(world, "n9")
        say(world, "n9:1", ("in time",))
        say(world, leader, ("leads",))
        world.run(0.1)
        rest = others(world, "n9:1")
        assert [said(world, address)["n9"] for address in rest] == [("in time",)] * 3
        assert said(world, "n9:1") == {leader.removesuffix(":1"): ("leads",)}
        say(world, "n9:1", ("late",))
        scenes.leave(world, "n9")
        world.run(0.5)
        assert not any("n9" in said(world, address) for address in rest)


def test_garbage_is_not_heard_and_harms_nobody() -> None:
    with World(3) as world:
        leader = scenes.founded(world)
        sender = others(world, leader)[0]
        wrong: list[Any] = [None, 7, "text", [1], ({},), (b"",), (1e999,), ("x" * 10**6,)]
        mark = world.members[sender].secret("raftLog").mark
        for report in wrong:
            world.send(sender, leader, {"type": "store_report", "report": report, "mark": mark})
        world.send(sender, leader, {"type": "store_report", "mark": mark})
        world.run(0.2)
        assert said(world, leader) == {}
        world.send(sender, leader, {"type": "store_report", "report": ("fine",), "mark": "another"})
        world.run(0.2)
        assert said(world, leader) == {}, "of a folder that is no member's"
        say(world, sender, ("fine",))
        world.run(0.2)
        assert said(world, leader) == {sender.removesuffix(":1"): ("fine",)}
        assert world.believers() == [leader]
