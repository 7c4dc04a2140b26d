"""
A node with its embedded store, backed up under load, restored elsewhere: everything is there, and
no number goes back.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import ADMIN, START_S, Node, background, free_base_port, until
from support.doors.command_line import app
from typer.testing import CliRunner, Result

from tidewarden.client.replies import mapped
from tidewarden.config.load import hash_generated

pytestmark = pytest.mark.timeout(400)
SECRET = "of-the-tests"
PROVIDER = """
[providers.shop]
token_url = "http://127.0.0.1:1/token"
client_id = "c"
auth = "none"
"""


def node(folder: Path) -> Node:
    """A lone node with an embedded store and its data in ``folder``/data."""
    base = free_base_port()
    text = (
        f'[node]\nbase_port = {base}\ndata_dir = "{folder}/data"\n{PROVIDER}[[users]]\nname ='
        f' "{ADMIN}"\n'
    )
    return Node("n0", folder, base, f'{text}secret_hash = "{hash_generated(SECRET)}"\n', SECRET)


def tidewarden(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def cli(one: Node, *words: str) -> Result:
    return tidewarden(*words, "--url", f"redis://{ADMIN}:{SECRET}@127.0.0.1:{one.base_port}")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Node]:
    first = node(tmp_path / "first")
    first.start()
    try:
        until(first.ready, START_S, what="it serves")
        yield first
    finally:
        first.close()


async def noise(one: Node, put: list[str]) -> None:
    async with one.aclient() as client:
        while True:
            put.append(await client.execute_command("Q.PUT", "noise", "x" * 500))


async def test_what_was_stored_is_there_again_and_numbers_go_on(made: Node, tmp_path: Path) -> None:
    holder = made.client()
    for number in range(200):
        delay = ("DELAY", 0 if number % 2 else 3_600_000)
        holder.execute_command("Q.PUT", "mails", f"body {number}", "ID", f"m{number}", *delay)
    ((_, held, lease, *_),) = holder.execute_command("Q.TAKE", "LEASE", 600_000, "FROM", "mails")
    fence = holder.execute_command("L.ACQUIRE", "nightly", 600_000)
    made.say("S.PUT", "daily", "EVERY", 3_600_000, "mails", "tick")
    fields = {"refresh_token": "r1", "access_token": "a1", "expires_in": 36_000}
    assert made.say("T.PUT", "shop/42", json.dumps(fields)) == 1
    before, file = made.status(), tmp_path / "monday.backup"
    put: list[str] = []
    async with background(noise(made, put)):
        done = await asyncio.to_thread(cli, made, "cluster", "backup", str(file))
    assert done.exit_code == 0, done.stderr
    assert "needed with it" in done.stdout
    assert str(tmp_path / "first" / "data" / "secrets" / "vault.key") in done.stdout
    data = file.read_bytes()
    for secret in ("vault.key", "cluster.key"):
        assert (tmp_path / "first" / "data" / "secrets" / secret).read_bytes().strip() not in data
    assert b'"r1"' not in data
    assert file.stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "first" / "data" / "backups").iterdir())
    assert (await asyncio.to_thread(cli, made, "cluster", "backup", str(file))).exit_code == 1
    holder.close()
    later = made.say("Q.PUT", "mails", "after the backup")
    made.kill()

    other = tmp_path / "other.backup"
    other.write_bytes(data.replace(b'"cluster": "tidewarden"', b'"cluster": "another"', 1))
    done = await asyncio.to_thread(
        tidewarden, "cluster", "restore", str(other), "--data-dir", str(tmp_path / "third")
    )
    assert (done.exit_code, "another cluster's" in done.stderr) == (1, True)
    assert list((tmp_path / "third").iterdir()) == []
    target = tmp_path / "second" / "data"
    shutil.copytree(tmp_path / "first" / "data" / "secrets", target / "secrets")
    done = await asyncio.to_thread(
        tidewarden, "cluster", "restore", str(file), "--data-dir", str(target), "--json"
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["epoch"] > before["epoch"]
    assert found["view"] > before["view"]
    second = node(tmp_path / "second")
    second.start()
    try:
        until(second.ready, START_S, what="the restored one serves")
        assert second.say("T.GET", "shop/42")[0] == "a1"
        assert second.say("Q.PEEK", "mails", "m1")
        with pytest.raises(Exception, match="NOTFOUND"):
            second.say("Q.PEEK", "mails", later)
        assert mapped(second.say("Q.STATS", "mails"))["delayed"] == 100
        assert len(second.say("S.LIST")) == 1
        until(lambda: second.status()["sweeping"], what="it sweeps")
        assert second.status()["epoch"] > found["epoch"]
        assert second.status()["view"] > found["view"]
        # What the dead node held is ready again, and every number is above those that it gave.
        row = second.say("Q.TAKE", "WAIT", 10_000, "ID", held, "FROM", "mails")[0]
        assert row[2] > lease
        assert (
            until(lambda: second.say("L.ACQUIRE", "nightly", 1000), what="the lock is free") > fence
        )
        assert cli(second, "doctor").exit_code == 0
    finally:
        second.close()
