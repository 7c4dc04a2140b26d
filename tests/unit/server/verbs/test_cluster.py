"""R.*: what changes the cluster is passed on, and is an administrator's."""

from __future__ import annotations

from support.doors import doubles

from tidewarden.config.load import User, hash_generated


async def test_transfer_names_a_node_or_none() -> None:
    async with doubles.Door() as door:
        line = await door.dial()
        assert await line.call("R.TRANSFER") == b"n1"
        assert await line.call("r.transfer", "n2") == b"n2"
        assert door.steering.calls == [("transfer", None), ("transfer", "n2")]
        door.provide(operations=None)
        assert "is a worker, which elects nobody" in str(await line.call("R.TRANSFER"))


async def test_members_come_and_go() -> None:
    async with doubles.Door() as door:
        line = await door.dial()
        assert await line.call("R.JOIN", "n3", "10.0.0.4:7420") == 4
        assert await line.call("R.LEAVE", "n0") == 5
        assert door.steering.calls == [("join", "n3", "10.0.0.4:7420"), ("leave", "n0")]
        assert str(await line.call("R.JOIN", "n3")).startswith("BADARG R.JOIN has 1 arguments")


async def test_the_primary_is_moved_among_stores_that_replicate_and_else_the_verb_says_where() -> (
    None
):
    async with doubles.Door() as door:
        line = await door.dial()
        for verb in ("R.SWITCHOVER", "R.RECOVER", "R.CONFIRM", "R.DISCARDED"):
            said = str(await line.call(verb))
            assert said.startswith(f"BADARG {verb} is about replicated embedded stores")
            assert "R.TRANSFER has another node lead" in said
            assert "SENTINEL FAILOVER" in said
        assert door.steering.calls == []
        door.provide(stores=door.steering)
        assert await line.call("R.SWITCHOVER") == b"n1"
        assert await line.call("R.SWITCHOVER", "n2") == b"n2"
        assert await line.call("R.CONFIRM") == b"possible"
        assert await line.call("R.DISCARDED") == [[b"path", b"/d/store/discarded/1", b"bytes", 7]]
        assert door.steering.calls == [
            ("switchover", None), ("switchover", "n2"), ("confirm",), ("discarded",),
        ]  # fmt: skip


async def test_a_loss_is_accepted_by_a_word_and_else_only_told() -> None:
    async with doubles.Door() as door:
        door.provide(stores=door.steering)
        line = await door.dial()
        for words in ((), ("n2",), ("ACCEPTLOSS",), ("n2", "acceptloss")):
            assert (await line.call("R.RECOVER", *words))[2:] == [b"loss", b"likely"]
        assert door.steering.calls == [
            ("choice", None), ("choice", "n2"), ("recover", None, False), ("recover", "n2", False),
        ]  # fmt: skip
        await line.call("R.RECOVER", "n2", "acceptloss", "beginempty")
        assert door.steering.calls[-1] == ("recover", "n2", True)
        for words in (("n2", "n1"), ("BEGINEMPTY",), ("n2", "BEGINEMPTY", "ACCEPTLOSS")):
            assert str(await line.call("R.RECOVER", *words)).startswith("BADARG R.RECOVER takes")
        assert len(door.steering.calls) == 5


class KeptBackups:
    async def make(self) -> dict[str, object]:
        return {"backup": "ab", "bytes": 3}

    async def read(self, name: str, offset: int) -> bytes:
        return f"{name}:{offset}".encode()

    async def drop(self, name: str) -> int:
        return 1


async def test_a_backup_is_made_read_and_dropped() -> None:
    async with doubles.Door() as door:
        line = await door.dial()
        assert "makes no backups" in str(await line.call("R.BACKUP"))
        door.provide(backups=KeptBackups())
        assert await line.call("R.BACKUP") == [b"backup", b"ab", b"bytes", 3]
        assert await line.call("R.BACKUP", "read", "ab", "7") == b"ab:7"
        assert await line.call("R.BACKUP", "DROP", "ab") == 1
        for wrong in (("KEEP", "ab"), ("READ", "ab"), ("READ", "ab", "-1"), ("DROP", "ab", "7")):
            assert str(await line.call("R.BACKUP", *wrong)).startswith("BADARG")


async def test_it_needs_the_right_to_everything() -> None:
    user = User(name="ada", secret_hash=hash_generated("pw"), rights=("put",))
    async with doubles.Door(users=(user,)) as door:
        line = await door.dial()
        assert await line.call("AUTH", "ada", "pw") == b"OK"
        assert str(await line.call("R.TRANSFER")).startswith(
            "DENIED R.TRANSFER needs the right admin"
        )
        assert door.steering.calls == []
