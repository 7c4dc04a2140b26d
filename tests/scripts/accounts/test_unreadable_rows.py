"""
One account whose row nobody can read: the others of the same script go on, and an answer for it is
kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.inspect import answer_within
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness

from tidewarden.errors import Internal
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.events.outbox import details

RAWS = (b"", b"\x01", b"\x02" + bytes(80), b"\xff" * 90, b"\x01" + bytes(40))
NAMES = ("before", "it", "after")


def row(desk: Any, generation: int = 1) -> bytes:
    mark = b"m%07d" % generation
    return AccountRow(
        1, generation, desk.now, desk.now + 10_000, desk.now, mark, mark, refresh=b"sealed"
    ).pack()


def each(*words: Any, names: tuple[str, ...] = NAMES) -> list[Any]:
    """The arguments of a verb for every account."""
    return [word for name in names for word in (name, *words)]


def put(desk: Any) -> None:
    desk.client.flushdb()
    if desk.views:
        desk.set_view(1)
    args = each(0, 0, row(desk), desk.now, desk.now + 10_000, "")
    assert desk.run("tokens.put", *args) == [1, 1, 1]


@pytest.mark.parametrize("raw", RAWS)
def test_a_row_that_nobody_can_read_harms_no_other_account(desk: Any, raw: bytes) -> None:
    put(desk)
    leases = {taken.id: taken.lease for taken in desk.take(10)}
    desk.client.hset(f"{desk.prefix}:accounts", "it", raw)
    intents = desk.run(
        "tokens.intent", *(word for name in NAMES for word in (name, leases[name], 1000))
    )
    assert [one[0] for one in intents] == [b"OK", b"NOTHELD", b"OK"]
    stored = each(1, 1, row(desk, 2), desk.now + 5000, desk.now + 10_000, b"")
    assert desk.run("tokens.stored", *stored) == [b"STORED", b"SPARE", b"STORED"]
    assert desk.client.hget(f"{desk.prefix}:account_spares", "it") == row(desk, 2), (
        "a pair is never thrown away"
    )
    assert desk.run("tokens.refresh", *each(1, 0, 0)) == [b"QUEUED", b"GONE", b"QUEUED"]
    assert sorted(one.id for one in desk.take(10)) == ["after", "before"]
    (cursor, _, *shown) = desk.run("tokens.page", 0, 10, "all")
    assert (cursor, sorted(one[0] for one in shown)) == (b"0", [b"after", b"before"])
    again = each(1, 2, row(desk, 3), desk.now, desk.now + 10_000, "")
    assert desk.run("tokens.put", *again) == [1, 0, 1]
    _, _, problems = desk.run("queue.check", "accounts", "0", 100, 1)
    assert [(kind, name) for kind, name, *_ in problems] == [(b"unreadable task, set aside", b"it")]
    assert [bool(gone) for gone in desk.run("tokens.delete", *NAMES)] == [True, True, True]
    assert desk.run("queue.check", "accounts", "0", 100, 0)[2] == []
    desk.audit()


@pytest.mark.parametrize("raw", RAWS)
def test_it_is_taken_out_of_the_way_before_anybody_asks_for_it(desk: Any, raw: bytes) -> None:
    put(desk)
    desk.client.hset(f"{desk.prefix}:accounts", "it", raw)
    assert sorted(one.id for one in desk.take(10)) == ["after", "before"]
    shown = desk.peek("it")
    assert (shown["state"], shown["reason"]) == (b"buried", b"unreadable")
    assert desk.run("tokens.delete", "it") != [0]
    desk.audit()


def test_however_many_are_deleted_there_are_grants_left(desk: Any) -> None:
    """
    After a downgrade, say, all rows are a newer version's: who deletes them to import them anew
    puts the same accounts.
    """
    names = [f"a{n}" for n in range(5000)]
    for from_ in range(0, len(names), 1000):
        some = names[from_ : from_ + 1000]
        desk.client.hset(
            f"{desk.prefix}:accounts", mapping=dict.fromkeys(some, b"\x02" + bytes(80))
        )
        assert 0 not in desk.run("tokens.delete", *some)
    _, floor, *_ = desk.run("tokens.get", "it")[0]
    args = ("it", floor, 0, row(desk), desk.now, desk.now + 10_000, "")
    assert desk.run("tokens.put", *args) == [1]
    desk.client.flushdb()


def test_an_intent_that_nobody_can_read_is_over(desk: Any) -> None:
    put(desk)
    for raw in (b"", b"x", b"\xff" * 35):
        desk.client.hset(f"{desk.prefix}:account_intents", "it", raw)
        leases = {taken.id: taken.lease for taken in desk.take(10)}
        intents = desk.run(
            "tokens.intent", *(word for name in NAMES for word in (name, leases[name], 1000))
        )
        assert [one[0] for one in intents] == [b"OK"] * 3
        done = [w for name in NAMES for w in (name, leases[name], "hold", 0, b"", "keep", "", 0)]
        assert desk.run("tokens.failed", *done) == [1, 1, 1]
    desk.audit()


RUBBISH = {
    "accounts": (
        *RAWS,
        b"\x01" + bytes(44),
        b"\x01" + bytes(43) + b"\xff" * 60,
        b"\x01" + bytes(43) + b"\2\xff\xff" + bytes(6),
    ),
    "account_troubles": (b"\xc1", b"\x93\x01", b"\x92\xa1x\x01"),
    "account_spares": RAWS,
    "account_details": (b"", b"\xc1", b"\x01" + bytes(10) + b"\xc1", bytes(40)),
    "account_intents": (b"", b"x", bytes(36) + b"\xff"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "raw"),
    [
        pytest.param(place, raw, marks=pytest.mark.soak if number else ())
        for place, raws in RUBBISH.items()
        for number, raw in enumerate(raws)
    ],
)
async def test_nothing_of_one_account_holds_up_what_is_done_with_all(
    valkey: Any, tmp_path: Path, place: str, raw: bytes
) -> None:
    """
    They are listed, leave the cluster and are sealed anew; and what is not the account's row does
    not stop its refreshes.
    """
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url), go=False) as side,
    ):
        tokens = side.tokens
        for name in NAMES:
            await tokens.put(f"p/{name}", {"refresh_token": f"{name}.0"})
        (found,) = [
            key for key in valkey.client.keys("*:accounts") if valkey.client.hexists(key, "it")
        ]
        valkey.client.hset(found.decode().removesuffix("accounts") + place, "it", raw)
        whole = {f"p/{name}" for name in NAMES if name != "it" or place != "accounts"}
        listed, _ = await tokens.list()
        assert whole <= {one["account"] for one in listed}
        lines, _, unreadable = await tokens.custody.export((os.urandom(32), os.urandom(16), 1))
        assert (len(lines), len(unreadable)) == (len(whole), 3 - len(whole))
        side.go()
        for account in whole:
            assert (await tokens.get(account, wait_ms=20_000)).generation == 2
        answer_within(tokens.custody.rotator, 0.2)
        await tokens.custody.rotate()

        async def done() -> Any:
            assert side.running is not None
            assert not side.running.done()
            return (await tokens.custody.status())["rotation"]["state"] == "done"

        await harness.eventually(done)
        if place == "accounts":
            with pytest.raises(Internal):
                await tokens.put("p/it", {"refresh_token": "new.0"})
        assert await tokens.delete("p/it")
        assert await tokens.put("p/it", {"refresh_token": "it.9"}) == 1


@pytest.mark.parametrize("raw", RUBBISH["account_troubles"])
def test_an_event_of_troubles_that_nobody_can_read(raw: bytes) -> None:
    assert details("account.recovered", raw)["error"] == "unreadable"
