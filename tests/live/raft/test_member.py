"""Raft members on loopback: election, claims, failover, restart, and refusals to start."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.inspect import beating_of, open_questions_of, ticker_of, voter_of
from support.raft.group import PACE, SECRET, Group, group, wait_for

from tidewarden.clock import SystemClock
from tidewarden.config.load import Cluster
from tidewarden.errors import BadArg, ConfigError, Draining, NoLeader, NotFound, Timeout
from tidewarden.raft import RaftMember

__all__ = ["group"]  # a fixture


async def test_a_lone_node_elects_itself_at_once_and_claims(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    raft = await lone.elected()
    assert (raft.role(), raft.leader(), raft.heard_s(), raft.has_quorum()) == (
        "leader",
        "n0",
        0.0,
        True,
    )
    assert await raft.claim(7, 0) == 1
    assert await raft.claim(8, 0) == 2
    assert await raft.claim(8, 40) == 41
    await wait_for(lambda: raft.committed()["epoch"] == 41)
    assert raft.committed()["holder"] == "n0.8"
    assert raft.term >= 1
    assert lone.changes["n0"] >= 2
    assert raft.status()["members"]["n0"]["heard_s"] == 0.0
    assert SECRET not in str(raft.status())


async def test_what_a_lone_node_cannot_do_is_said(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    raft = await lone.elected()
    for seen in (-1, 2**52):
        with pytest.raises(BadArg, match="seen: found"):
            await raft.claim(1, seen)
    with pytest.raises(NotFound, match="no other member"):
        await raft.transfer(None)
    with pytest.raises(NotFound, match="no member 'n9'"):
        await raft.transfer("n9")
    await lone.end("n0")
    await raft.stop()
    assert raft.role() == "follower"
    assert raft.leader() is None
    with pytest.raises(Draining):
        await raft.elected()
    with pytest.raises(NoLeader):
        await raft.claim(1, 0)


async def test_a_restart_keeps_the_epoch(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    assert [await lone.claim() for _ in range(3)] == [1, 2, 3]
    term = lone.running["n0"].term
    await lone.end("n0")
    await lone.start()
    raft = await lone.elected()
    assert raft.committed()["epoch"] == 3
    assert raft.term > term
    assert await raft.claim(2, 0) == 4


async def test_three_members_have_one_leader_and_a_new_one_when_it_dies(
    group: Callable[..., Group],
) -> None:
    trio = group(3)
    await trio.start()
    first = await trio.elected()
    epochs = [await trio.claim() for _ in range(3)]
    assert sum(raft.is_leader() for raft in trio.running.values()) == 1
    for raft in trio.running.values():
        assert await wait_for(lambda raft=raft: raft.committed()["epoch"] == epochs[-1])
        assert raft.has_quorum()
        if raft is not first:
            assert raft.role() == "follower"
            assert await wait_for(
                lambda raft=raft: raft.heard_s() < 1 and first.peer_heard_s(raft.name) < 1
            )
            with pytest.raises(NoLeader, match="does not lead"):
                await raft.claim(1, 0)

    await trio.end(first.name)
    second = await trio.elected()
    assert second is not first
    assert second.term > first.term
    epochs.append(await trio.claim())
    assert await wait_for(lambda: second.peer_heard_s(first.name) > 1)
    assert second.status()["members"][first.name]["heard_s"] >= 1

    await trio.end(second.name)
    last = next(iter(trio.running.values()))
    await wait_for(lambda: last.role() == "orphan")
    assert last.leader() is None
    assert not last.has_quorum()
    assert last.heard_s() > 2 * PACE
    with pytest.raises(NoLeader):
        await last.claim(1, 0)

    await trio.start(first.name, second.name)
    await trio.elected()
    epochs.append(await trio.claim())
    assert epochs == sorted(set(epochs))


async def test_epochs_grow_past_the_loss_of_every_journal(group: Callable[..., Group]) -> None:
    trio = group(3)
    await trio.start()
    seen = [await trio.claim() for _ in range(4)][-1]
    for name, config in trio.configs.items():
        await trio.end(name)
        shutil.rmtree(config.node.data_dir)
    await trio.start()
    assert (await trio.elected()).committed()["epoch"] == 0
    assert await trio.claim(seen) == seen + 1


async def test_leadership_is_handed_over_on_request_and_at_a_planned_end(
    group: Callable[..., Group],
) -> None:
    trio = group(3)
    await trio.start()
    first = await trio.elected()
    heir = next(raft for raft in trio.running.values() if raft is not first)
    with pytest.raises(NotFound):
        await first.transfer("n9")
    assert await first.transfer(first.name) == first.name
    assert await first.transfer(heir.name) == heir.name
    assert await trio.elected() is heir
    assert await first.transfer(first.name) == first.name, "whoever leads is asked"
    assert await trio.elected() is first
    heir = trio.running[await first.transfer(None)]
    assert await trio.elected() is heir
    assert heir is not first
    term, started = heir.term, time.monotonic()
    await trio.end(heir.name, gracefully=True)
    await wait_for(lambda: any(raft.is_leader() for raft in trio.running.values()))
    assert time.monotonic() - started < 20
    assert (await trio.elected()).term > term


async def test_a_loop_that_does_not_turn_loses_its_leadership(group: Callable[..., Group]) -> None:
    pair = group(2, pace=0.5)
    await pair.start()
    first = await pair.elected()
    ticker = ticker_of(first)
    assert ticker is not None
    assert beating_of(first) is not None
    beating_of(first).cancel()  # as seen from the thread, the loop has stopped
    await wait_for(lambda: not first.is_leader())
    other = next(raft for raft in pair.running.values() if raft is not first)
    await wait_for(other.is_leader)


async def test_a_claim_that_is_not_committed_in_time_is_a_timeout(
    group: Callable[..., Group],
) -> None:
    pair = group(2, pace=0.5)
    await pair.start()
    leader = await pair.elected()
    answers: list[Callable[..., None]] = []
    assert voter_of(leader) is not None
    voter_of(leader).claim = lambda *_, callback: answers.append(callback)
    with pytest.raises(Timeout, match="may still be"):
        await leader.claim(1, 0)
    answers[0](99, 0)
    await asyncio.sleep(0)
    assert open_questions_of(leader) == {}


async def test_a_busy_port_is_a_clear_error_and_leaves_nothing_open(
    group: Callable[..., Group],
) -> None:
    lone = group(1)
    config = lone.configs["n0"]
    busy = rf"{config.node.raft_port} .Raft.*in use"
    with (
        socket.create_server(("127.0.0.1", config.node.raft_port)),
        pytest.raises(ConfigError, match=busy),
    ):
        await lone.start()
    await lone.start()
    await lone.elected()


async def test_a_host_that_is_not_here_is_a_clear_error(group: Callable[..., Group]) -> None:
    lone = group(1)
    for host in ("192.0.2.1", "no-such-host.invalid"):
        node = dataclasses.replace(lone.configs["n0"].node, host=host)
        raft = RaftMember(
            dataclasses.replace(lone.configs["n0"], node=node), SECRET, SystemClock(), lambda: None
        )
        with pytest.raises(ConfigError, match=host):
            await raft.start()


async def test_only_its_own_address_listens(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    port = lone.configs["n0"].node.raft_port
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if " 0A " in line
    ]
    listening += [
        line.split()[1]
        for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]
        if " 0A " in line
    ]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [
        f"0100007F:{port:04X}"
    ]


async def test_unreadable_files_stop_the_start(group: Callable[..., Group]) -> None:
    lone = group(1)
    await lone.start()
    await lone.claim()
    await lone.end("n0")
    Path(lone.configs["n0"].node.data_dir, "raft.journal.meta").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match=r"raft\.journal\.meta: cannot be trusted"):
        await lone.start()


async def test_no_secret_and_strange_members_are_refused(group: Callable[..., Group]) -> None:
    config = group(1).configs["n0"]
    with pytest.raises(ConfigError, match="secret"):
        RaftMember(config, "", SystemClock(), lambda: None)
    with pytest.raises(ConfigError, match=r"node\.name: found 'n0'"):
        RaftMember(
            dataclasses.replace(config, cluster=Cluster(members={"a": "h:1"})),
            SECRET,
            SystemClock(),
            lambda: None,
        )
