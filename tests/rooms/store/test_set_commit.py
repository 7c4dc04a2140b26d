"""
Group commit by the in-sync set, on a primary and two replicas: whose word it takes, and whose it
does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import held_of, transport_of
from support.store.proxy import Proxy
from support.store.replicated import MEMBERS, ReplicatedSeat, ReplicatedStores, replicated_seat
from support.store.sentinels import wait

from tidewarden.clock import SystemClock
from tidewarden.errors import BadArg, ConfigError, NoQuorum, StoreDown
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.durability import set_commit
from tidewarden.store.durability.held_answers import HeldFuture, Moved
from tidewarden.store.durability.set_commit import ANSWERS, GROUPS_MAX
from tidewarden.store.preflight import check_store

Eventually = Callable[..., Awaitable[Any]]
SHORT_MS = 400
N0, N1, N2 = MEMBERS


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedStores]:
    """Stores that keep their roles."""
    made = ReplicatedStores(tmp_path_factory.mktemp("replicated"))
    yield made
    made.stop()


@pytest.fixture
def stores(shared: ReplicatedStores) -> ReplicatedStores:
    """The same, all in sync and without data."""
    with shared.client() as client:
        for key in client.scan_iter("*"):
            if not key.endswith((":primary", ":view")):
                client.delete(key)
    shared.whole()
    return shared


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ReplicatedStores]:
    """Stores of a test's own."""
    made = ReplicatedStores(tmp_path)
    yield made
    made.stop()


@pytest.fixture
async def one(stores: ReplicatedStores) -> AsyncIterator[ReplicatedSeat]:
    """A process that is in no hurry."""
    async with replicated_seat(stores) as made:
        yield made


@pytest.fixture
async def hasty(stores: ReplicatedStores) -> AsyncIterator[ReplicatedSeat]:
    """A process whose answers do not wait for long."""
    async with replicated_seat(stores, SHORT_MS) as made:
        yield made


async def test_what_was_confirmed_is_at_every_member(
    one: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    await one.write("k")
    for member in MEMBERS:
        assert stores.client(stores.port_of(member)).get("k") == "v"


async def test_many_answers_share_few_groups(one: ReplicatedSeat) -> None:
    await asyncio.gather(*(one.write(f"k{i}") for i in range(500)))
    assert (one.commit.groups < 50, one.commit.missed) == (True, 0)


async def test_a_member_that_does_not_answer_is_named(
    hasty: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    with (
        stores.servers.stopped(stores.port_of(N2)),
        pytest.raises(NoQuorum, match=r"every store in sync \(not confirmed by n2 \(for 0\.\d s\)"),
    ):
        await hasty.write("k")


async def read(seat: ReplicatedSeat) -> Any:
    """What a read finds, once it may be shown."""
    firm = seat.commits.shown(seat.data)
    found = await seat.data.call("GET", "k")
    await firm()
    return found


async def test_what_was_read_is_shown_once_every_member_has_it(
    one: ReplicatedSeat, hasty: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    await one.write("k")
    before = one.commit.groups
    assert await asyncio.gather(*(read(one) for _ in range(50))) == [b"v"] * 50
    assert 0 < one.commit.groups - before < 10
    with stores.servers.stopped(stores.port_of(N2)):
        with pytest.raises(NoQuorum, match=r"not confirmed by n2"):
            await read(hasty)
        with pytest.raises(NoQuorum, match=r"not confirmed by n2 .*nothing was done"):
            await read(hasty)


async def test_a_former_primary_that_does_not_know_it_yet_shows_nothing(
    own: ReplicatedStores,
) -> None:
    """Its data are as they were when another took over, and it answers at once."""
    async with replicated_seat(own, SHORT_MS) as hasty, replicated_seat(own) as patient:
        for seat in (hasty, patient):
            await read(seat)
        own.fail_over(N1)
        own.open(N1, N2)
        waiting = asyncio.ensure_future(read(patient))
        with pytest.raises(NoQuorum, match="not confirmed by"):
            await read(hasty)
        patient.move(own.primary)
        with pytest.raises(Moved):  # it has to be read again, where the primary is
            await waiting


async def test_once_no_majority_of_the_nodes_is_heard_that_is_the_reason(
    hasty: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    with stores.servers.stopped(stores.port_of(N2)):
        with pytest.raises(NoQuorum, match="not confirmed by n2"):
            await hasty.write("k")
        hasty.finder.fault = "1 of 3 nodes is heard: start one"
        await eventually(lambda: "1 of 3 nodes is heard" in hasty.commit.warning())
        with pytest.raises(NoQuorum, match=r"\(1 of 3 nodes is heard: start one; for .* s\); noth"):
            await hasty.write("k")


async def test_it_is_confirmed_as_soon_as_the_member_has_left_the_set(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    with stores.servers.stopped(stores.port_of(N2)):
        waiting = asyncio.ensure_future(one.write("k"))
        await eventually(lambda: one.commit.groups >= 2)
        assert not waiting.done()
        stores.open(N0, N1)
        await waiting


async def test_a_learner_does_not_count_as_wait_counts_it(own: ReplicatedStores) -> None:
    """
    A member's stream is held, a learner keeps up, and the primary's host dies: whoever believed
    WAIT's count has lost an acknowledged write, for the member is elected.
    """
    proxy = Proxy(own.primary)
    try:
        with own.client(own.port_of(N1)) as member:
            member.replicaof("127.0.0.1", proxy.port)
            wait(lambda: member.info("replication")["master_link_status"] == "up")
            own.attached(N1)
            own.open(N0, N1)
            async with replicated_seat(own, SHORT_MS) as one:
                await one.write("before")
                proxy.ways["down"].lost = True
                with pytest.raises(NoQuorum, match="not confirmed by n1"):
                    await one.write("k")
                with own.client() as client:
                    client.set("k2", "v")
                    assert client.execute_command("WAIT", 1, 1000) == 1  # the learner, n2
            primary = own.servers.processes[own.primary]
            primary.kill()
            primary.wait()
            proxy.close()
            member.replicaof("no", "one")
            assert (member.get("before"), member.get("k"), member.get("k2")) == ("v", None, None)
    finally:
        proxy.close()


async def test_a_member_that_was_started_anew_does_not_count(own: ReplicatedStores) -> None:
    port = own.port_of(N2)
    async with replicated_seat(own, SHORT_MS) as one:
        own.whole()
        await one.write("k")
        own.servers.processes[port].kill()
        own.servers.processes[port].wait()
        own.servers.start(port, of=own.primary, member="n2.dd")
        own.attached("n2.dd")
        with pytest.raises(NoQuorum, match="not confirmed by n2"):
            await one.write("k2")
        assert own.client(port).get("k2") == "v"  # it has it, but as another
        own.open(N0, N1, "n2.dd")
        await asyncio.wait_for(_written_at_last(one), 30)


async def _written_at_last(one: ReplicatedSeat) -> None:
    while True:
        try:
            return await one.write("k3")
        except NoQuorum:
            await asyncio.sleep(0.01)


async def test_a_failover_between_the_scripts_and_the_group_is_found_out(
    own: ReplicatedStores,
) -> None:
    own.whole()
    async with replicated_seat(own) as one:
        ground = one.commit.ground()
        await one.data.call("SET", "lost", "v")
        own.fail_over(N1)
        own.open(N1, N2)
        untold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.move(own.primary)
        one.commit.add(ground, HeldFuture(untold))
        with pytest.raises(NoQuorum, match="another server has taken over"):
            await untold
        await _written_at_last(one)
        assert own.client(own.port_of(N2)).get("k3") == "v"


async def test_the_same_server_in_another_view_is_another_primaryship(
    own: ReplicatedStores,
) -> None:
    own.whole()
    async with replicated_seat(own) as one:
        await one.write("k")
        ground = one.commit.ground()
        own.view += 1
        own.open()
        untold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.commit.add(ground, HeldFuture(untold))
        with pytest.raises(NoQuorum, match="another server"):
            await untold
        await one.write("k2")


async def test_below_a_majority_it_is_refused_before_it_is_sent_until_the_set_has_grown(
    hasty: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    await hasty.write("k")
    session = hasty.queues.open_session()
    first = await hasty.queues.put("q", TaskSpec(b"x"))
    stores.open("")
    with pytest.raises(NoQuorum, match="fewer than a majority"):
        await hasty.write("k1")
    sent = hasty.data.calls
    for act in (
        lambda: hasty.write("k2"),
        lambda: hasty.queues.put("q", TaskSpec(b"x")),
        lambda: hasty.queues.take(session, ["q"]),
    ):
        with pytest.raises(NoQuorum, match=r"fewer than a majority.*nothing was done"):
            await act()
    assert hasty.data.calls == sent
    assert not hasty.commits.confirms
    assert (await hasty.queues.admin.stats("q"))["leased"] == 0  # reads go on
    assert "NOQUORUM" in hasty.commits.warning()
    stores.open(N0, N1)
    await asyncio.wait_for(_written_at_last(hasty), 30)
    assert hasty.commits.confirms
    (task,) = await hasty.queues.take(session, ["q"])
    assert task.id == first


async def test_a_set_that_is_too_small_for_a_moment_is_a_wait(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    """As in the first seconds of a cluster: the other stores are about to be taken in."""
    stores.open("")
    waiting = [asyncio.ensure_future(one.write("k1"))]
    groups = one.commit.groups
    await eventually(lambda: one.commit.groups > groups + 2)
    assert one.commits.confirms
    waiting.append(asyncio.ensure_future(one.write("k2")))
    stores.open(N0, N1)
    await asyncio.gather(*waiting)


@pytest.mark.thorough
async def test_once_the_set_has_grown_to_a_majority_a_write_waits_instead_of_being_refused(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    """Though nothing was confirmed yet: the member that was taken in is about to."""
    await one.write("k")
    stores.open("")
    with pytest.raises(NoQuorum, match="fewer than a majority"):
        await one.write("k1")
    assert not one.commits.confirms
    with stores.servers.stopped(stores.port_of(N1)):
        stores.open(N0, N1)
        await eventually(lambda: one.commits.confirms)
        waiting = asyncio.ensure_future(one.write("k2"))
        groups = one.commit.groups
        await eventually(lambda: one.commit.groups > groups + 1)
        assert not waiting.done()
    await waiting


async def test_while_nothing_was_confirmed_for_so_long_it_is_refused_before_it_is_sent(
    hasty: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    await hasty.write("k")
    with stores.servers.stopped(stores.port_of(N2)):
        with pytest.raises(NoQuorum, match="may or may not last"):
            await hasty.write("k1")
        sent, began = hasty.data.calls, time.monotonic()
        with pytest.raises(NoQuorum, match=r"not confirmed by n2 .* nothing was done"):
            await hasty.write("k2")
        assert hasty.data.calls == sent
        assert time.monotonic() - began < SHORT_MS / 1000
    await eventually(lambda: not hasty.commits.warning())  # though nobody writes
    await hasty.write("k3")


@pytest.mark.thorough
async def test_after_thousands_of_failed_groups_writes_go_on_once_they_can(
    hasty: ReplicatedSeat,
    stores: ReplicatedStores,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    # As many are refused at once in seconds as otherwise in minutes.
    monkeypatch.setattr(set_commit, "RETRY_FIRST_S", 1e-300)
    monkeypatch.setattr(set_commit, "RETRY_LAST_S", 0.0)
    await hasty.write("before")
    with stores.client() as client:
        client.config_set("min-replicas-to-write", len(MEMBERS))
        try:
            before = hasty.commit.groups
            with pytest.raises(NoQuorum):
                await read(hasty)
            await eventually(lambda: hasty.commit.groups - before > 8000, limit_s=60)
        finally:
            client.config_set("min-replicas-to-write", 0)

    async def written() -> bool:
        with contextlib.suppress(NoQuorum):
            await read(hasty)
            return True
        return False

    await eventually(written, limit_s=60)


async def test_two_groups_are_under_way_at_a_time(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    lines = held_of(one.commit).lines
    with stores.servers.stopped(stores.port_of(N1)):
        first = asyncio.ensure_future(one.write("k1"))
        await eventually(lambda: any(lines))
        more = [asyncio.ensure_future(one.write("k2"))]

        def both() -> bool:
            # one that comes as the first group is sent again goes with that
            two = sum(map(bool, lines)) == GROUPS_MAX
            if not two and not held_of(one.commit).gathered and len(more) < 1000:
                more.append(asyncio.ensure_future(one.write("k2")))
            return two

        await eventually(both)
        more.append(asyncio.ensure_future(one.write("k3")))
        await eventually(lambda: held_of(one.commit).gathered or max(map(len, lines)) > 1)
    await asyncio.gather(first, *more)


async def flying(one: ReplicatedSeat, eventually: Eventually) -> None:
    """Return once a queue's calls go by flights: the servers behind the lanes are known."""
    await one.queues.put("q", TaskSpec(b"first"))

    def boards() -> bool:
        return one.commit.board() is not None

    await eventually(boards)


async def test_a_put_travels_with_its_confirmation_and_is_at_every_member(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    await flying(one, eventually)
    (lanes, groups), data = sent_of(one), one.data.calls
    ids = [await one.queues.put("q", TaskSpec(b"x")) for _ in range(20)]
    assert one.commit.groups - groups == 20, "none needed a second one"
    assert sent_of(one)[0] - lanes == 20 * (1 + ANSWERS)
    assert one.data.calls - data == 20, "they count as the calls of their connection"
    for member in MEMBERS:
        with stores.client(stores.port_of(member)) as client:
            (key,) = (key for key in client.scan_iter("{tw:q:0}*") if client.type(key) == "zset")
            assert {client.zscore(key, task_id) is not None for task_id in ids} == {True}


def sent_of(one: ReplicatedSeat) -> tuple[int, int]:
    """How many commands went by the lanes, and how many flights."""
    return sum(link.calls for link in one.commit_links), one.commit.groups


async def test_a_flight_waits_for_each_member_and_is_sent_once(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    await flying(one, eventually)
    with stores.servers.stopped(stores.port_of(N2)):
        groups = one.commit.groups
        put = asyncio.ensure_future(one.queues.put("q", TaskSpec(b"x", id="a")))
        await eventually(lambda: one.commit.groups > groups + 2)
        assert not put.done()
        assert (await one.queues.admin.stats("q"))["ready"] == 2  # what it did is seen meanwhile
        stores.open(N0, N1)
        assert await put == "a"
    assert (await one.queues.admin.stats("q"))["ready"] == 2


async def test_a_lane_lost_between_an_answer_and_its_confirmation_loses_no_answer(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    await flying(one, eventually)
    with stores.servers.stopped(stores.port_of(N1)):
        put = asyncio.ensure_future(one.queues.put("q", TaskSpec(b"x", id="a")))
        await eventually(lambda: any(held_of(one.commit).lines))
        for link in one.commit_links:
            transport_of(link).abort()
    assert await put == "a"
    assert (await one.queues.admin.stats("q"))["ready"] == 2


async def test_a_flight_is_not_confirmed_in_another_view(
    own: ReplicatedStores, eventually: Eventually
) -> None:
    own.whole()
    async with replicated_seat(own) as one:
        await flying(one, eventually)
        before = (await one.queues.admin.stats("q"))["total"]
        with own.servers.stopped(own.port_of(N2)):
            put = asyncio.ensure_future(one.queues.put("q", TaskSpec(b"x")))
            await eventually(lambda: any(held_of(one.commit).lines))
            own.view += 1
            own.open()
        assert await put, "it was sent again, and confirmed in that view"
        assert one.commit.missed > 0
        assert (await one.queues.admin.stats("q"))["total"] == before + 1


async def test_a_script_that_the_library_lacks_is_sent_with_its_text(
    own: ReplicatedStores, eventually: Eventually
) -> None:
    own.whole()
    async with replicated_seat(own) as one:
        one.scripts.embedded = False  # no lane has loaded a script
        await flying(one, eventually)
        assert await one.queues.put("q", TaskSpec(b"x", id="a")) == "a"


async def test_requests_of_one_connection_to_one_queue_run_in_their_order(
    one: ReplicatedSeat, eventually: Eventually
) -> None:
    """Though a put goes by a lane, and a look by the link that promises nothing."""
    await flying(one, eventually)
    for n in range(200):
        put = asyncio.ensure_future(one.queues.put("q", TaskSpec(b"x", id=f"t{n}")))
        await asyncio.sleep(0)
        seen = asyncio.ensure_future(one.queues.admin.stats("q"))
        if n % 2:
            await asyncio.sleep(0)
        assert ((await seen)["ready"], await put) == (n + 2, f"t{n}")


async def test_a_group_whose_connection_was_lost_is_sent_again(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    with stores.servers.stopped(stores.port_of(N1)):
        waiting = asyncio.ensure_future(one.write("k"))
        await eventually(lambda: any(held_of(one.commit).lines))
        await eventually(lambda: all(transport_of(link) for link in one.commit_links))
        for link in one.commit_links:
            transport_of(link).abort()
    await waiting


async def test_an_answer_of_a_connection_that_was_lost_meanwhile_is_not_confirmed(
    one: ReplicatedSeat, eventually: Eventually
) -> None:
    firm = one.commit.begun()
    await one.data.call("SET", "k", "v")
    connects = one.data.reconnects
    transport_of(one.data).abort()
    await eventually(lambda: one.data.reconnects > connects)
    with pytest.raises(NoQuorum, match="another server"):
        await firm()
    await one.write("k")


async def test_those_who_wait_are_told_when_it_stops(
    one: ReplicatedSeat, stores: ReplicatedStores, eventually: Eventually
) -> None:
    with stores.servers.stopped(stores.port_of(N1)):
        waiting = asyncio.ensure_future(one.write("k"))
        await eventually(lambda: any(held_of(one.commit).lines))
        await one.commits.stop()
        with pytest.raises(NoQuorum, match="goes down"):
            await waiting


async def test_a_new_queue_is_durable_and_what_is_stored_stays(
    one: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    await one.queues.put("new", TaskSpec(b"x"))
    assert (await one.queues.admin.settings("new"))["durability"] == "quorum"
    with stores.client() as client:
        client.hset("{tw}:queues", "old", '{"durability":"one"}')
    assert (await one.queues.admin.settings("old"))["durability"] == "one"
    await one.queues.admin.configure("new", {"durability": "one"})
    assert (await one.queues.admin.settings("new"))["durability"] == "one"


async def test_a_store_that_follows_another_is_no_fault_of_the_configuration(
    stores: ReplicatedStores,
) -> None:
    """The node that looks would end otherwise, in the middle of a failover."""
    link = StoreConnection(stores.servers.url(stores.port_of(N1)), "look", SystemClock())
    await link.start(wait_s=60)
    with pytest.raises(StoreDown, match="a failover is under way"):
        await check_store(link, "tw", replicated=True)
    with pytest.raises(ConfigError, match="it is a slave"):
        await check_store(link, "tw")
    await link.stop()


async def test_fsync_is_served_where_every_store_is_started_with_it(
    one: ReplicatedSeat, stores: ReplicatedStores
) -> None:
    with pytest.raises(BadArg, match=r'store\.fsync = "always"'):
        await one.queues.admin.configure("q", {"durability": "fsync"})
    with stores.client() as client:
        client.config_set("appendfsync", "always")
        try:
            async with replicated_seat(stores, fsync="always") as synced:
                assert synced.commits.of(synced.data, "fsync") is synced.commit
                assert synced.commits.strongest(synced.data) is synced.commit
        finally:
            client.config_set("appendfsync", "everysec")
