"""
Members that come, go, and lose their folders, over real links; the rules themselves are shown in
test_raft_roll.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.inspect import close_file
from support.raft.group import Group, group, wait_for

from benchmarks.ports import free_ports
from tidewarden.config.load import Cluster, Config
from tidewarden.errors import BadArg, ConfigError, Exists, NoLeader, NoQuorum, NotFound
from tidewarden.raft import RaftMember, files, operations

__all__ = ["group"]  # a fixture


def address(config: Config) -> str:
    return f"127.0.0.1:{config.node.base_port}"


def newcomer(made: Group, name: str, role: str = "joining") -> None:
    """A further node's configuration, which names all."""
    first = made.configs["n0"]
    if name not in made.configs:
        folder = str(Path(first.node.data_dir).parent / name)
        node = dataclasses.replace(first.node, name=name, base_port=free_ports(4), data_dir=folder)
        made.configs[name] = dataclasses.replace(first, node=node)
    node = dataclasses.replace(made.configs[name].node, role=role)
    everybody = {
        **{other: address(config) for other, config in made.configs.items()},
        name: address(made.configs[name]),
    }
    made.configs[name] = dataclasses.replace(
        made.configs[name], node=node, cluster=Cluster(members=everybody)
    )


async def voting(made: Group, *names: str) -> RaftMember:
    """The leader, once exactly these have a vote, and everybody who runs knows it."""
    wanted = set(names)
    await wait_for(
        lambda: all(
            {name for name, seat in raft.seats().items() if seat.votes and seat.met} == wanted
            for raft in made.running.values()
        )
    )
    return await made.elected()


async def test_from_one_to_three_and_back(
    group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine is no reason to give up
    monkeypatch.setattr(operations, "CHANGE_TRIES_S", 120.0)
    made = group(1, pace=0.5)
    await made.start()
    await made.claim()
    for name in ("n1", "n2"):
        newcomer(made, name)
        lead = await made.elected()
        assert await lead.join(name, address(made.configs[name])) > 1
        await lead.join(name, address(made.configs[name]))  # asked again it is the same
        assert not lead.seats()[name].votes
        with pytest.raises(Exists, match=f"cluster leave {name}"):
            await lead.join(name, "127.0.0.1:9")
        await made.start(name)
    lead = await voting(made, "n0", "n1", "n2")
    epoch = await made.claim()

    await made.end("n0")
    # as if nobody had told it
    made.configs["n0"] = dataclasses.replace(made.configs["n0"], cluster=Cluster())
    await made.start("n0")
    lead = await voting(made, "n0", "n1", "n2")
    assert await made.claim() > epoch

    asked = next(raft for raft in made.running.values() if raft is not lead)
    await asked.leave(lead.name)  # whoever leads hands over first, whoever is asked
    left = [name for name in ("n0", "n1", "n2") if name != lead.name]
    await wait_for(lambda: "no member" in lead.not_member_because())
    await made.end(lead.name)
    second = await voting(made, *left)
    with pytest.raises(NotFound):
        await second.leave(lead.name)
    last = next(raft for raft in made.running.values() if raft is not second)
    await last.leave(last.name)  # whose log ends with that, and which is told that it counts
    for change in (last.leave(last.name), last.join("n9", "127.0.0.1:9"), last.transfer(None)):
        with pytest.raises((NotFound, NoLeader), match="no member"):
            await change
    await wait_for(lambda: second.seats().keys() == {second.name})
    assert await second.claim(1, 0) > epoch


async def test_a_folder_made_anew_is_refused_until_it_joins_anew(
    group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    made = group(3, pace=0.5)
    await made.start()
    lead = await voting(made, "n0", "n1", "n2")
    lost = next(name for name in made.running if name != lead.name)
    await made.end(lost)
    shutil.rmtree(made.configs[lost].node.data_dir)
    await made.start(lost)
    with pytest.raises(ConfigError, match=f"`tidewarden cluster leave {lost}`"):
        await asyncio.wait_for(made.running[lost].watch(), 20)
    await made.end(lost)
    shutil.rmtree(made.configs[lost].node.data_dir)
    lead = await made.elected()
    await lead.leave(lost)
    await lead.join(lost, address(made.configs[lost]))
    newcomer(made, lost)
    await made.start(lost)
    await voting(made, "n0", "n1", "n2")
    assert made.running[lost].not_member_because() == ""
    lead = await made.elected()
    name = next(name for name in made.running if name != lead.name)
    await lead.leave(name)  # one that goes and comes back as it is votes again at once
    assert await lead.join(name, address(made.configs[name])) > 1
    await voting(made, "n0", "n1", "n2")


async def test_who_was_never_let_in_ends_with_the_way_in(group: Callable[..., Group]) -> None:
    made = group(1, pace=0.5)
    await made.start()
    await voting(made, "n0")
    newcomer(made, "n1", role="member")
    await made.start("n1")
    with pytest.raises(ConfigError, match="`tidewarden cluster join n1 HOST:"):
        await asyncio.wait_for(made.running["n1"].watch(), 20)


async def test_what_cannot_be_is_said(
    group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidewarden.raft")
    made = group(3, pace=0.3)
    await made.start()
    lead = await voting(made, "n0", "n1", "n2")
    for name, where in (("n9", "nowhere"), ("n 9", "h:1"), ("n9", "h:70000")):
        with pytest.raises(BadArg):
            await lead.join(name, where)
    first, second = (name for name in made.running if name != lead.name)
    await made.end(first)
    await asyncio.sleep(0.5)
    said = ""
    while "only 1 of the 2 that would vote then can be heard" not in said:
        # on a busy machine, nobody may lead for a while
        with pytest.raises((NoQuorum, NoLeader)) as caught:
            await lead.leave(second)
        said = str(caught.value)
    await lead.leave(first)
    await voting(made, lead.name, second)


async def test_a_name_server_that_is_silent_holds_up_nobody(
    group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Somebody joins under a host's name; where that is nobody says. The leader leads on and commits.
    """
    made = group(1, pace=0.5)
    await made.start()
    lead = await voting(made, "n0")
    silent, asked, answer = threading.Event(), threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if host != "silent.invalid":
            return answer(host, *args, **options)
        asked.set()
        assert silent.wait(120)
        raise socket.gaierror("nobody knows it")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        epoch = await made.claim()
        await lead.join("n1", "silent.invalid:7420")
        await wait_for(asked.is_set)
        assert await asyncio.wait_for(made.claim(), 30) > epoch
    finally:
        silent.set()


@pytest.mark.thorough
async def test_who_joins_a_cluster_of_many_elections_is_soon_a_member(
    group: Callable[..., Group],
) -> None:
    """
    Forty thousand entries in one message: each for itself on the disk, they would take the thread
    minutes.
    """
    made = group(1, pace=0.5)
    folder = Path(made.configs["n0"].node.data_dir)
    folder.mkdir()
    log = files.FileJournal(str(folder / "raft.journal"))
    for index in range(1, 40_000):
        log.add(b"\x01", index, index - 1)
    log.setCurrentTerm(40_000, None)
    close_file(log)
    await made.start()
    lead = await voting(made, "n0")
    newcomer(made, "n1")
    await lead.join("n1", address(made.configs["n1"]))
    await made.start("n1")
    await voting(made, "n0", "n1")
    assert made.running["n1"].status()["commit"] >= 40_000
