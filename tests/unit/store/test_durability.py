"""Which durability can be had where, and why not."""

from __future__ import annotations

from typing import Any

import pytest
from support.inspect import link_of, requirement_of

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import NoQuorum
from tidewarden.store import StoreConnection
from tidewarden.store.durability.durability import SYSTEM, Durability, Unavailable, at_once
from tidewarden.store.durability.fsync_commit import FsyncCommit
from tidewarden.store.durability.group_commit import GroupCommit, Requirement
from tidewarden.store.preflight import StoreServer

SENTINEL = "redis+sentinel://127.0.0.1:1/main"
ALWAYS = StoreServer("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="always")
EVERYSEC = StoreServer("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="everysec")
OLD = StoreServer("redis", "7.0.15", False, 0, waitaof=False, appendfsync="always")
HIDDEN = StoreServer("redis", "8.0", False, 0, waitaof=True)


def commits(server: StoreServer | None = None, **store: Any) -> Durability:
    """Of an embedded store, or of a server of one's own."""
    config = load(None, {}, {f"store.{name}": str(value) for name, value in store.items()}).store
    clock = SystemClock()

    def beside(link: StoreConnection) -> StoreConnection:
        return StoreConnection(link.url, "commit", clock)

    if server is None:
        return Durability(config, "k", clock, beside, embedded=True)
    return Durability(config, "k", clock, beside, embedded=False, server=server)


@pytest.mark.parametrize(
    ("made", "durability", "why"),
    [
        ({}, "quorum", "store.url"),
        ({}, "fsync", 'store.fsync = "always"'),
        ({"server": ALWAYS, "url": "redis://h"}, "quorum", "store.replicas"),
        ({"server": ALWAYS, "url": SENTINEL, "replicas": 0}, "quorum", "store.replicas"),
        ({"server": EVERYSEC, "url": SENTINEL}, "fsync", "appendfsync always"),
        ({"server": EVERYSEC, "url": SENTINEL, "fsync": "always"}, "fsync", "appendfsync always"),
        ({"server": OLD, "url": SENTINEL}, "fsync", "7.2"),
        ({"server": HIDDEN, "url": SENTINEL}, "fsync", "hides its settings"),
    ],
)
async def test_what_cannot_be_had_is_refused_and_never_served(
    made: dict[str, Any], durability: str, why: str
) -> None:
    here = commits(**made)
    assert why in here.refusal(durability)
    link = StoreConnection("redis://h", "data", SystemClock())
    found = here.of(link, durability)
    assert isinstance(found, Unavailable)
    assert why in found.why
    with pytest.raises(NoQuorum):
        here.firm(link, durability, "k")


async def test_what_can_be_had() -> None:
    link = StoreConnection("redis://127.0.0.1:1", "data", SystemClock())
    embedded = commits(fsync="always")
    assert [embedded.of(link, one) for one in ("one", "fsync", SYSTEM)] == [None, None, None]
    assert embedded.strongest(link) is None
    assert embedded.firm(link, "fsync", "k") is at_once
    own = commits(ALWAYS, url=SENTINEL, replicas=2)
    quorum, fsync = own.of(link, "quorum"), own.of(link, "fsync")
    assert isinstance(quorum, GroupCommit)
    assert isinstance(fsync, GroupCommit)
    assert (requirement_of(quorum), requirement_of(fsync)) == (
        Requirement(2),
        Requirement(2, disk=True, always=True),
    )
    assert own.of(link, SYSTEM) is quorum
    assert own.strongest(link) is quorum
    hidden = commits(HIDDEN, url="redis://h", fsync="always")
    assert hidden.refusal("fsync") == ""
    assert (hidden.of(link, SYSTEM), hidden.strongest(link)) == (None, None)
    for one in (embedded, own, hidden):
        await one.stop()


async def test_tokens_are_brought_to_the_disk_that_is_synced_once_a_second() -> None:
    link = StoreConnection("redis://127.0.0.1:1", "data", SystemClock())
    embedded = commits()
    assert isinstance(embedded.strongest(link), FsyncCommit)
    assert embedded.of(link, SYSTEM) is None
    own = commits(EVERYSEC, url=SENTINEL)
    both = own.strongest(link)
    assert isinstance(both, GroupCommit)
    assert requirement_of(both) == Requirement(1, disk_here=True)
    single = commits(EVERYSEC, url="redis://h").strongest(link)
    assert isinstance(single, GroupCommit)
    assert requirement_of(single) == Requirement(0, disk_here=True)
    for one in (embedded, own):
        await one.stop()
    await single.stop()
    await link_of(single).stop()


async def test_what_is_said_at_the_start() -> None:
    two = StoreServer("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="everysec", replicas=2)
    assert commits().warnings(StoreServer("v", "9", True, 0), True) == []
    assert commits(two, url=SENTINEL).warnings(two, True) == []
    assert (
        "has 2 replicas and store.replicas is 3"
        in commits(two, url=SENTINEL, replicas=3).warnings(two, False)[0]
    )
    assert "appendfsync to always" in commits(two, url="redis://h").warnings(two, True)[0]
    assert commits(two, url="redis://h").warnings(two, False) == []


async def test_figures() -> None:
    assert commits().stats() == {"commit_groups_total": 0, "commit_missed_total": 0}


async def test_what_a_server_that_has_taken_over_does_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = commits(ALWAYS, url=SENTINEL, replicas=0)
    link = StoreConnection("redis://h", "data", SystemClock())
    assert here.strongest(link) is None, "nothing is answered before it is on disk"
    assert not here.told(EVERYSEC)
    assert not here.told(EVERYSEC)
    commit = here.strongest(link)
    assert isinstance(commit, GroupCommit)
    assert requirement_of(commit) == Requirement(0, disk_here=True)
    assert not here.told(OLD)
    assert here.strongest(link) is None, "it has no better"
    assert here.told(ALWAYS)
    assert here.strongest(link) is None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "does not bring every write to disk (its appendfsync is everysec)" in said[0]
    assert "brings every write to disk again" in said[1]
    never = commits(EVERYSEC, url=SENTINEL)
    assert never.told(EVERYSEC)
    assert commits().told(EVERYSEC), "an embedded one is ours"
    for one in (here, never):
        await one.stop()
