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


def stands(world: World, address: str, seconds: float) -> None:
    """Have a member stand by its report for so long."""
    voter = world.members[address].voter
    voter.stands_until = voter.clock.monotonic() + seconds


def silent_s(world: World, listener: str, speaker: str) -> float:
    """Since when one has heard of the other's store."""
    voter = world.members[listener].voter
    return float(voter.clock.monotonic() - voter.reports.heard[speaker.removesuffix(":1")][0])


def reset(world: World, *pair: str, noticed: bool = True) -> None:
    """End the link between two members, at both."""
    for own, other in (pair, pair[::-1]):
        world.running = world.members[own]
        world.running.secret("transport").reset(other, noticed)


def goes_along(world: World, speaker: str, listener: str, kind: str) -> Any:
    """What goes with a message of that kind from one to the other."""
    world.running = world.members[speaker]
    voter = world.running.voter
    node = next(node for node in voter.otherNodes if node.id == listener)
    return voter.carried(node, {"type": kind})


def test_who_stands_by_a_report_is_heard_with_every_message() -> None:
    with World(1) as world:
        leader = scenes.founded(world)
        for address in world.alive():
            say(world, address, (address,))
        world.run(0.2)
        speaker = others(world, leader)[0]
        world.run(1.0)
        assert silent_s(world, leader, speaker) > 1.0, "nothing was said"
        stands(world, speaker, 1.0)
        world.run(0.9)
        assert silent_s(world, leader, speaker) < 0.3
        assert said(world, leader)[speaker.removesuffix(":1")] == (speaker,)
        world.run(2.0)
        assert silent_s(world, leader, speaker) > 1.0, "it stands by it no more"


@pytest.mark.parametrize("rested", [True, False])
def test_both_ways_of_a_link_that_was_reset_are_stood_by_again(rested: bool) -> None:
    """Where neither stood by its report meanwhile, one says something first, the other next."""
    with World(1) as world:
        leader = scenes.founded(world)
        other = others(world, leader)[0]
        for address in world.alive():
            say(world, address, (address,))
        world.run(1.0)
        if rested:
            stands(world, leader, 1.5)
            stands(world, other, 1.5)
        reset(world, leader, other)
        world.run(0.1)
        if not rested:
            for address in (other, leader):
                world.running = world.members[address]
                world.running.voter.say_store((address,), now=False)
                stands(world, address, 1.5)
                world.run(0.02)
        for _ in range(12):
            world.run(0.1)
            assert silent_s(world, leader, other) < 0.3
            assert silent_s(world, other, leader) < 0.3


def test_a_link_in_the_place_of_another_begins_anew() -> None:
    """A report from before it is not stood by: what the other has been told is not known."""
    with World(1) as world:
        leader = scenes.founded(world)
        other = others(world, leader)[0]
        for address in world.alive():
            say(world, address, (address,))
        world.run(0.2)
        reset(world, leader, other, noticed=False)
        stands(world, other, 1.0)
        assert goes_along(world, other, leader, "ping") == {}
        say(world, leader, ("again",))
        assert world.run(0.1, lambda: said(world, other)[leader.removesuffix(":1")] == ("again",))
        assert goes_along(world, other, leader, "pre_vote") == {}
        assert goes_along(world, other, leader, "ping")["report"] == (other,)
        assert goes_along(world, other, leader, "ping") == {"stands": True}


def test_a_report_that_another_was_not_told_is_not_stood_by() -> None:
    with World(1) as world:
        leader = scenes.founded(world)
        other = others(world, leader)[0]
        for address in world.alive():
            say(world, address, (address,))
        world.run(0.2)
        world.running = world.members[other]
        world.running.voter.say_store(("new",), now=False)
        stands(world, other, 1.0)
        assert goes_along(world, other, leader, "pre_vote") == {}
        told = goes_along(world, other, leader, "next_node_idx")
        assert told == {"report": ("new",), "carries": True, "believes": True}
        assert goes_along(world, other, leader, "pre_vote") == {"stands": True}


def test_a_follower_of_a_former_version_is_told_each_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes nothing from pings, and followers say nothing else to each other."""
    with World(1) as world:
        leader = scenes.founded(world)
        speaker, former = others(world, leader)
        send = world.send

        def as_before(sender: str, receiver: str, message: Any) -> None:
            news = ("believes",) if sender == former else ()
            send(sender, receiver, {key: message[key] for key in message if key not in news})

        monkeypatch.setattr(world, "send", as_before)
        for address in world.alive():
            say(world, address, ("first",))
        world.run(0.2)
        for n in range(3):
            world.running = world.members[speaker]
            world.running.voter.say_store((n,), now=False)
            world.run(0.05)
            assert said(world, former)[speaker.removesuffix(":1")] == (n,)


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
