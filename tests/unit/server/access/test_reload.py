"""Users read anew while the door is open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from support.doors import doubles
from support.waiting import eventually

from tidewarden.config.load import User, hash_generated
from tidewarden.queue.task import TaskSpec

SECRET = doubles.SECRET
ADA = User(name="ada", secret_hash=hash_generated(SECRET))
BOB = User(name="bob", secret_hash=hash_generated("bob's own"))


async def enter(door: Any, user: str = "ada", secret: str = SECRET) -> Any:
    line = await door.dial()
    assert await line.call("AUTH", user, secret) == b"OK"
    return line


async def test_who_is_gone_is_cut_off_and_nobody_else() -> None:
    async with doubles.Door(users=(ADA, BOB)) as door:
        ada, bob, unauthenticated = (
            await enter(door),
            await enter(door, "bob", "bob's own"),
            await door.dial(),
        )
        assert str(await unauthenticated.call("PING")).startswith("NOAUTH")
        door.server.reload((BOB,))
        assert await ada.rest() == b""
        assert await bob.call("PING") == b"PONG"
        assert str(await unauthenticated.call("AUTH", "ada", SECRET)).startswith("WRONGPASS")
        assert await unauthenticated.call("AUTH", "bob", "bob's own") == b"OK"


async def test_another_secret_cuts_off_who_knew_the_old_one() -> None:
    async with doubles.Door(users=(ADA, BOB)) as door:
        ada = await enter(door)
        door.server.reload((replace(ADA, secret_hash=hash_generated("fresh")), BOB))
        assert await ada.rest() == b""
        line = await door.dial()
        assert str(await line.call("AUTH", "ada", SECRET)).startswith("WRONGPASS")
        assert await line.call("AUTH", "ada", "fresh") == b"OK"


async def test_what_is_under_way_is_answered_first() -> None:
    async with doubles.Door(users=(ADA, BOB)) as door:
        door.queues.hold = asyncio.Event()
        ada = await enter(door)
        ada.send("Q.PUT q body ID a", "PING")
        async with asyncio.timeout(20):
            await eventually(lambda: door.queues.calls)
        door.server.reload((BOB,))
        door.queues.hold.set()
        assert await ada.rest() == b"$1\r\na\r\n"


async def test_other_rights_count_from_the_next_request() -> None:
    async with doubles.Door(users=(ADA,)) as door:
        ada = await enter(door)
        assert await ada.call("Q.PUT", "q", "body", "ID", "a") == b"a"
        door.server.reload((replace(ADA, rights=("take",)),))
        assert str(await ada.call("Q.PUT", "q", "body")).startswith(
            "DENIED Q.PUT needs the right put:q"
        )
        door.server.reload((replace(ADA, rights=("take", "put:q")),))
        assert await ada.call("Q.PUT", "q", "body", "ID", "b") == b"b"
        door.server.reload((ADA,))
        assert await ada.call("T.STATS") is not None


async def test_who_waits_under_rights_of_before_is_cut_off() -> None:
    async with doubles.Door(users=(ADA, BOB)) as door:
        ada, bob = await enter(door), await enter(door, "bob", "bob's own")
        for line in (ada, bob):
            line.send("Q.TAKE WAIT 60000 FROM q")
        async with asyncio.timeout(20):
            await eventually(lambda: door.server.context.waiting >= 2)
        door.server.reload((replace(ADA, rights=("put",)), BOB))
        assert await ada.rest() == b""
        await door.queues.put("q", TaskSpec(b"body"))
        assert (await bob.reply())[0][0] == b"q"


async def test_the_first_users_cut_off_whoever_had_no_name() -> None:
    async with doubles.Door() as door:
        guest = await door.dial()
        assert await guest.call("PING") == b"PONG"
        door.server.reload((ADA,))
        assert await guest.rest() == b""
        line = await door.dial()
        assert str(await line.call("PING")).startswith("NOAUTH")


async def test_a_stranger_gets_no_rights_by_a_change_of_the_user_default() -> None:
    users = (replace(ADA, name="default"),)
    async with doubles.Door(users=users) as door:
        unauthenticated = await door.dial()
        assert str(await unauthenticated.call("PING")).startswith("NOAUTH")
        door.server.reload((replace(users[0], rights=("put",)),))
        assert str(await unauthenticated.call("Q.PUT", "q", "body")).startswith("NOAUTH")
