"""Which durability can be had where, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.clock import SystemClock
from tidewarden.config import load
from tidewarden.errors import NoQuorum
from tidewarden.store import Link
from tidewarden.store.check import Server
from tidewarden.store.commit import Commit, Demand
from tidewarden.store.commits import SYSTEM, Commits, Impossible, at_once
from tidewarden.store.firm import Firm

SENTINEL = "redis+sentinel://127.0.0.1:1/main"
ALWAYS = Server("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="always")
EVERYSEC = Server("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="everysec")
OLD = Server("redis", "7.0.15", False, 0, waitaof=False, appendfsync="always")
HIDDEN = Server("redis", "8.0", False, 0, waitaof=True)


def commits(server: Server | None = None, **store: Any) -> Commits:
    """Of an embedded store, or of a server of one's own."""
    config = load(None, {}, {f"store.{name}": str(value) for name, value in store.items()}).store
    clock = SystemClock()

    def beside(link: Link) -> Link:
        return Link(link.url, "commit", clock)

    if server is None:
        return Commits(config, "k", clock, beside, embedded=True)
    return Commits(config, "k", clock, beside, embedded=False, server=server)


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
async def test_what_cannot_be_had_is_refused_and_never_served(made: dict[str, Any], durability: str, why: str) -> None:
    here = commits(**made)
    assert why in here.refusal(durability)
    link = Link("redis://h", "data", SystemClock())
    found = here.of(link, durability)
    assert isinstance(found, Impossible)
    assert why in found.why
    with pytest.raises(NoQuorum):
        here.firm(link, durability, "k")


async def test_what_can_be_had() -> None:
    link = Link("redis://127.0.0.1:1", "data", SystemClock())
    embedded = commits(fsync="always")
    assert [embedded.of(link, one) for one in ("one", "fsync", SYSTEM)] == [None, None, None]
    assert embedded.strongest(link) is None
    assert embedded.firm(link, "fsync", "k") is at_once
    own = commits(ALWAYS, url=SENTINEL, replicas=2)
    quorum, fsync = own.of(link, "quorum"), own.of(link, "fsync")
    assert isinstance(quorum, Commit)
    assert isinstance(fsync, Commit)
    assert (quorum._demand, fsync._demand) == (Demand(2), Demand(2, disk=True, always=True))
    assert own.of(link, SYSTEM) is quorum
    assert own.strongest(link) is quorum
    hidden = commits(HIDDEN, url="redis://h", fsync="always")
    assert hidden.refusal("fsync") == ""
    assert (hidden.of(link, SYSTEM), hidden.strongest(link)) == (None, None)
    for one in (embedded, own, hidden):
        await one.stop()


async def test_tokens_are_brought_to_the_disk_that_is_synced_once_a_second() -> None:
    link = Link("redis://127.0.0.1:1", "data", SystemClock())
    embedded = commits()
    assert isinstance(embedded.strongest(link), Firm)
    assert embedded.of(link, SYSTEM) is None
    own = commits(EVERYSEC, url=SENTINEL)
    both = own.strongest(link)
    assert isinstance(both, Commit)
    assert both._demand == Demand(1, disk_here=True)
    single = commits(EVERYSEC, url="redis://h").strongest(link)
    assert isinstance(single, Commit)
    assert single._demand == Demand(0, disk_here=True)
    for one in (embedded, own):
        await one.stop()
    await single.stop()
    await single._link.stop()


async def test_what_is_said_at_the_start() -> None:
    two = Server("valkey", "9.1.2", False, 0, waitaof=True, appendfsync="everysec", replicas=2)
    assert commits().warnings(Server("v", "9", True, 0), True) == []
    assert commits(two, url=SENTINEL).warnings(two, True) == []
    assert "has 2 replicas and store.replicas is 3" in commits(two, url=SENTINEL, replicas=3).warnings(two, False)[0]
    assert "appendfsync to always" in commits(two, url="redis://h").warnings(two, True)[0]
    assert commits(two, url="redis://h").warnings(two, False) == []


async def test_figures() -> None:
    assert commits().stats() == {"commit_groups_total": 0, "commit_missed_total": 0}


async def test_what_a_server_that_has_taken_over_does_is_found(caplog: pytest.LogCaptureFixture) -> None:
    here = commits(ALWAYS, url=SENTINEL, replicas=0)
    link = Link("redis://h", "data", SystemClock())
    assert here.strongest(link) is None, "nothing is answered before it is on disk"
    assert not here.told(EVERYSEC)
    assert not here.told(EVERYSEC)
    commit = here.strongest(link)
    assert isinstance(commit, Commit)
    assert commit._demand == Demand(0, disk_here=True)
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
