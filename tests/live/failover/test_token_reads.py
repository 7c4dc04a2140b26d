"""A failover never shows an older token to whoever reads after a newer one was read anywhere."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator

import pytest
import redis
from support.cluster.harness import TROUBLE, Node, until
from support.faults.history import REFUSED, History, Operation, generations
from support.faults.hosts import STORE, HostCluster
from support.providers.scripted_provider import ScriptedProvider

ACCOUNT = "a0"
NAME = f"counted/{ACCOUNT}"
STALE = "stale"


class Readers:
    """One reader at each node, again and again, and what each was told."""

    def __init__(self, cluster: HostCluster) -> None:
        self.history = History()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(node,)) for node in cluster.nodes.values()
        ]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, node: Node) -> None:
        with node.client(socket_timeout=30) as client:
            while not self._stop.wait(0.01):
                with contextlib.suppress(redis.RedisError):
                    self._read(client, node)

    def _read(self, client: redis.Redis, node: Node) -> None:
        read = self.history.begin("read", node.name, "counted", ACCOUNT)
        row = client.execute_command("T.GET", NAME)
        if row[4] == STALE:
            read.refused(STALE)
        else:
            read.ok(int(row[3]))

    def newest(self, name: str) -> int:
        """The greatest generation that the reader at that node was shown; 0: none."""
        return max((one.value for one in self.history.of("read") if one.who == name), default=0)

    def ends_at(self, name: str, after: Operation) -> list[Operation]:
        """What was asked at that node after that was answered, and was answered, too."""
        return [
            one
            for one in self.history.of("read") + self.history.of("read", outcome=REFUSED)
            if one.who == name and one.invoked > after.answered
        ]

    def first_of(self, generation: int) -> Operation:
        """The read that was the first to be shown that generation, or a later one."""
        return min(
            (one for one in self.history.of("read") if one.value >= generation),
            key=lambda one: one.answered,
        )


@pytest.fixture
def account(hosts: HostCluster, counted: ScriptedProvider) -> Iterator[int]:
    """The generation of an account that every node shows."""
    node = hosts.leader()
    if not shown(node):
        seed = json.dumps({"refresh_token": counted.seeds[ACCOUNT]})
        assert node.say("T.PUT", NAME, seed) == 1
    yield max(
        until(functools.partial(shown, one), what=f"{one.name} shows a token")
        for one in hosts.nodes.values()
    )
    counted.hold = False
    assert hosts.network
    hosts.network.heal()
    hosts.wait_whole()


def shown(node: Node) -> int:
    """The generation that a node shows a reader now; 0: none, or one that may be old."""
    with contextlib.suppress(*TROUBLE):
        row = node.say("T.GET", NAME)
        return 0 if row[4] == STALE else int(row[3])
    return 0


def refreshed(node: Node) -> bool:
    """Whether a node takes the order to refresh the account."""
    with contextlib.suppress(*TROUBLE):
        return bool(node.say("T.REFRESH", NAME))
    return False


@pytest.mark.timeout(300)
def test_a_former_primary_that_nobody_hears_shows_nothing_older(
    hosts: HostCluster, account: int
) -> None:
    """It does not know yet that another took over, and its own store answers at once."""
    former = hosts.primary()
    with Readers(hosts) as readers:
        until(lambda: readers.newest(former) >= account, what="its token is read there")
        for name in hosts.nodes:
            if name != former:
                hosts.cut(former, name)
        until(lambda: hosts.primary() not in ("", former), what="another is the primary")
        new = hosts.nodes[hosts.primary()]
        until(lambda: refreshed(new), what="it is told to refresh the account")
        before = max(readers.newest(name) for name in hosts.nodes)
        until(lambda: readers.newest(new.name) > before, what="a newer token is read there")
        newer = readers.first_of(readers.newest(new.name))
        until(lambda: len(readers.ends_at(former, newer)) > 2, what="readers there are answered")
    assert generations(readers.history, ()) == []


@pytest.mark.timeout(300)
def test_what_only_a_primary_has_that_loses_its_place_is_shown_to_nobody(
    hosts: HostCluster, account: int, counted: ScriptedProvider
) -> None:
    """An account is refreshed there while no other store copies it, and another takes over."""
    former = hosts.primary()
    counted.hold = True
    until(lambda: refreshed(hosts.nodes[former]), what="it is told to refresh the account")
    until(lambda: counted.held, what="its provider is asked")
    with Readers(hosts) as readers:
        until(lambda: readers.newest(former) >= account, what="its token is read there")
        for name in hosts.nodes:
            if name != former:
                hosts.cut(former, name, STORE)
        counted.hold = False
        until(lambda: hosts.primary() not in ("", former), what="another is the primary")
        new = hosts.nodes[hosts.primary()]
        until(lambda: shown(new) > account, what="the newer token is there in the end")
    assert generations(readers.history, ()) == []
