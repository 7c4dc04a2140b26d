"""Locks script by script, at a time of the test's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidewarden.errors import Full, Stale


def acquire(
    desk: Any,
    name: str,
    key: str = "=k",
    ms: int = 1000,
    *,
    take: int = 1,
    holder: str = "",
    uuid: str = "",
) -> list[int]:
    return list(desk.run("queue.lock_acquire", name, key, ms, take, 0, uuid, holder=holder)[0])


def release(desk: Any, name: str, fence: int) -> int:
    return int(desk.run("queue.lock_release", name, fence)[0])


def renew(desk: Any, name: str, fence: int, ms: int = 1000) -> list[int]:
    return list(desk.run("queue.lock_renew", name, fence, ms)[0])


def left(desk: Any) -> set[bytes]:
    """Which keys the shard has."""
    return {key.rpartition(b"}:")[2] for key in desk.client.scan_iter(f"{desk.prefix}:*")}


def test_one_holds_it_until_it_is_released(desk: Any) -> None:
    fence, lease, end_ms = acquire(desk, "a", "=one")
    assert (fence, end_ms) == (lease, desk.now + 1000)
    assert acquire(desk, "a", "=two") == [0, 0, desk.now + 1000]
    assert release(desk, "a", fence + 1) == 0
    assert release(desk, "b", fence) == 0
    assert release(desk, "a", fence) == lease
    assert release(desk, "a", fence) == 0, "released twice"
    assert renew(desk, "a", fence) == [0, 0]
    assert acquire(desk, "a", "=two")[0] > fence


def test_a_released_lock_leaves_nothing(desk: Any) -> None:
    for n in range(50):
        assert release(desk, f"lock{n}", acquire(desk, f"lock{n}")[0])
    acquire(desk, "a", ms=10)
    desk.now += 11
    assert desk.run("queue.sweep", 1, 100, holder="n0.1")[0] == 1
    assert left(desk) == {b"shard", b"counts"}


def test_fences_grow_whatever_becomes_of_the_lock(desk: Any) -> None:
    fences = []
    for n in range(12):
        fence, lease, _ = acquire(desk, "a", f"={n}", ms=10)
        fences.append(fence)
        if n % 4 == 0:
            release(desk, "a", fence)
        elif n % 4 == 1:
            desk.now += 10
        elif n % 4 == 2:
            assert desk.end(("a", lease), "loss") == 1
        else:
            desk.run("queue.reap", 1, "n0", 0, 100)
            assert desk.run("queue.release_all", 100) == 1
        if desk.views:
            desk.set_view(n + 2)
    assert fences == sorted(set(fences))


def test_the_same_key_gets_the_same_fence_and_the_lock_goes_with_it(desk: Any) -> None:
    """
    A retry after a broken connection: the end of that connection, heard of later, ends nothing.
    """
    fence, lease, _ = acquire(desk, "a", "=k", holder="n0.1")
    desk.now += 500
    again, later, end_ms = acquire(desk, "a", "=k", holder="n1.1")
    assert (again, end_ms) == (fence, desk.now + 1000)
    assert later > lease
    assert desk.end(("a", lease), "loss") == 0, "the first connection has gone"
    assert desk.peek("a")["holder"] == b"n1.1"
    assert renew(desk, "a", fence, 700) == [later, desk.now + 700]
    assert acquire(desk, "a", "=other")[0] == 0
    assert desk.end(("a", later), "loss") == 1
    assert acquire(desk, "a", "=k")[0] > later, (
        "the key of a hold that has ended is nothing special"
    )


def test_only_what_the_key_holds(desk: Any) -> None:
    assert acquire(desk, "a", "=k", take=0) == [0, 0, 0]
    fence = acquire(desk, "a", "=k")[0]
    assert acquire(desk, "a", "=k", take=0)[0] == fence
    assert acquire(desk, "a", "=x", take=0)[0] == 0


def test_a_lease_that_ran_out_needs_no_sweep(desk: Any) -> None:
    old = acquire(desk, "a", "=k", ms=100)[0]
    desk.now += 99
    assert acquire(desk, "a", "=other")[0] == 0
    assert renew(desk, "a", old, 10)[1] == desk.now + 10
    desk.now += 10
    new = acquire(desk, "a", "=k")[0]
    assert new > old, "the same key, but its hold had ended"
    assert release(desk, "a", old) == 0
    assert renew(desk, "a", old) == [0, 0]


def test_a_dead_nodes_locks_are_free_and_it_gets_none(desk: Any) -> None:
    old = acquire(desk, "a", holder="n1.4")[0]
    acquire(desk, "b", "=b", holder="n0.1")
    assert desk.run("queue.reap", 1, "n1", 4, 100) == [1, 0]
    with pytest.raises(Stale):
        acquire(desk, "a", "=x", holder="n1.4")
    assert acquire(desk, "a", "=x", holder="n1.5")[0] > old
    assert acquire(desk, "b", "=x")[0] == 0


def test_a_sessions_lock_outlives_its_node_and_ends_with_the_session(desk: Any) -> None:
    uuid = "0123456789abcdef" * 2
    fence, _, _ = acquire(desk, "a", "=k", holder="n0.1", uuid=uuid)
    assert desk.run("queue.reap", 1, "n0", 1, 100) == [0, 0]
    assert acquire(desk, "a", "=other", holder="n1.1") == [0, 0, desk.now + 1000]
    assert acquire(desk, "a", "=k", holder="n1.1", uuid=uuid)[0] == fence
    assert renew(desk, "a", fence)[0]
    desk.audit()
    assert acquire(desk, "a", "=k", holder="n1.1")[0] == fence, (
        "by a bare connection that knows the key"
    )
    assert desk.run("queue.session_release", uuid, 10) == [0, 0]
    assert acquire(desk, "a", "=k", holder="n1.1", uuid=uuid)[0] == fence
    assert desk.run("queue.session_release", uuid, 10) == [1, 0]
    assert acquire(desk, "a", "=k", holder="n1.1")[0] > fence
    assert release(desk, "a", acquire(desk, "a", holder="n1.1", uuid=uuid)[0])


def test_several_in_one_script(desk: Any) -> None:
    args = [
        "a",
        "=1",
        100,
        1,
        0,
        "",
        "a",
        "=2",
        100,
        1,
        1,
        "",
        "b",
        "=1",
        100,
        1,
        0,
        "",
        "a",
        "=1",
        200,
        1,
        0,
        "",
    ]
    first, second, other, again = desk.run("queue.lock_acquire", *args)
    assert second == [0, 0, desk.now + 100]
    assert again[0] == first[0] != other[0]
    assert len({first[1], other[1], again[1]}) == 3
    assert desk.run("queue.lock_release", "a", first[0], "b", other[0], "b", other[0]) == [
        again[1],
        other[1],
        0,
    ]


def test_a_lock_that_a_repair_put_aside_can_be_taken(desk: Any) -> None:
    old = acquire(desk, "a")[0]
    desk.client.zrem(f"{desk.prefix}:leased:n0.1", "a")
    desk.run("queue.check", "tasks", "0", 100, 1)
    assert desk.state("a") == "ready"
    fence = acquire(desk, "a", "=x")[0]
    assert fence > old
    assert release(desk, "a", fence)


def test_on_a_full_store_locks_are_released_and_kept_but_not_taken(desk: Any) -> None:
    fence = acquire(desk, "a", "=k")[0]
    for n in range(20):
        acquire(desk, f"b{n}", "=k")
    used = desk.client.info("memory")["used_memory"]
    desk.client.config_set("maxmemory", used // 2)
    try:
        before = desk.digest()
        with pytest.raises(Full):
            acquire(desk, "c")
        assert desk.digest() == before
        assert acquire(desk, "a", "=k")[0] == fence
        assert renew(desk, "a", fence)[0]
        assert desk.run("queue.lock_acquire", "a", "=x", 10, 1, 1, "")[0][0] == 0, (
            "and it is noted that somebody waits"
        )
        assert desk.client.hlen(f"{desk.prefix}:waits") == 1
        assert release(desk, "a", fence)
    finally:
        desk.client.config_set("maxmemory", 0)


def test_any_order_of_everything(desk: Any) -> None:
    """
    Against a model: at most one holds a lock, under a fence greater than all before, until its end
    by any way.
    """

    @settings(
        max_examples=settings().max_examples // 2, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def play(data: st.DataObject) -> None:
        desk.client.flushdb()
        if desk.views:
            desk.set_view(1)
        held: dict[str, tuple[str, int, int, int]] = {}  # name: key, fence, lease, end
        greatest = dict.fromkeys("ab", 0)
        old: list[tuple[str, int, int]] = []
        for _ in range(data.draw(st.integers(1, 25))):
            what = data.draw(
                st.sampled_from(["acquire", "acquire", "renew", "release", "loss", "time", "sweep"])
            )
            name = data.draw(st.sampled_from("ab"))
            key, fence, lease, end_ms = held.get(name, ("", 0, 0, 0))
            if what == "acquire":
                want = data.draw(st.sampled_from(["=1", "=2", "=3"]))
                ms = data.draw(st.integers(1, 50))
                got, new, until_ms = acquire(
                    desk, name, want, ms, holder=data.draw(st.sampled_from(["n0.1", "n1.1"]))
                )
                if end_ms > desk.now and key != want:
                    assert (got, new, until_ms) == (0, 0, end_ms)
                    continue
                assert until_ms == desk.now + ms
                if end_ms > desk.now:
                    assert got == fence
                    assert new > lease
                    old.append((name, 0, lease))
                else:
                    assert got == new > greatest[name]
                    old.append((name, fence, lease))
                greatest[name] = new
                held[name] = (want, got, new, until_ms)
            elif what == "time":
                desk.now += data.draw(st.integers(0, 40))
            elif what == "sweep":
                desk.run("queue.sweep", 1, 100)
                held = {name: hold for name, hold in held.items() if hold[3] > desk.now}
            elif old and data.draw(st.booleans()):
                stale, was, ended = data.draw(st.sampled_from(old))
                assert renew(desk, stale, was) == [0, 0]
                assert release(desk, stale, was) == 0
                assert desk.end((stale, ended), "loss") == 0
            elif name in held and desk.state(name):
                # it may have ended by its time in another's script
                if what == "renew":
                    assert renew(desk, name, fence, 30) == [lease, desk.now + 30]
                    held[name] = (key, fence, lease, desk.now + 30)
                else:
                    done = (
                        release(desk, name, fence)
                        if what == "release"
                        else desk.end((name, lease), "loss")
                    )
                    assert done == (lease if what == "release" else 1)
                    old.append((name, fence, lease))
                    del held[name]
        desk.audit()

    play()
