"""
Three nodes whose stores replicate, backed up under load at a node that is no primary, restored for
one of three new ones: the others copy it, and no number goes back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import ADMIN, START_S, Node, background, free_base_port, until
from support.doors.command_line import app
from typer.testing import CliRunner, Result

from tidewarden.config.load import hash_generated

pytestmark = pytest.mark.timeout(400)
SECRET = "of-the-tests"
NAMES = ("n0", "n1", "n2")


def nodes(folder: Path) -> dict[str, Node]:
    """Three nodes with their data in ``folder``/NAME, which find their keys in ``folder``."""
    folder.mkdir(exist_ok=True)
    for key in ("cluster.key", "vault.key"):
        if not (folder / key).exists():
            (folder / key).write_text(base64.b64encode(secrets.token_bytes(32)).decode())
            (folder / key).chmod(0o600)
    bases: dict[str, int] = {}
    while len(bases) < len(NAMES):
        base = free_base_port()
        if base not in bases.values():
            bases[NAMES[len(bases)]] = base
    members = ", ".join(f'{name} = "127.0.0.1:{base}"' for name, base in bases.items())
    made = {}
    for name, base in bases.items():
        text = f"""
[cluster]
secret_file = "{folder}/cluster.key"
members = {{{members}}}
[node]
name = "{name}"
base_port = {base}
data_dir = "{folder}/{name}"
[vault]
key_file = "{folder}/vault.key"
[[users]]
name = "{ADMIN}"
secret_hash = "{hash_generated(SECRET)}"
"""
        made[name] = Node(name, folder / f"{name}.files", base, text, SECRET)
    return made


def cli(one: Node, *words: str) -> Result:
    url = f"redis://{ADMIN}:{SECRET}@127.0.0.1:{one.base_port}"
    return CliRunner().invoke(app, [*words, "--url", url])


def all_in_sync(of: dict[str, Node]) -> dict[str, Any]:
    """The status of a node once the stores of all are in sync."""

    def whole() -> dict[str, Any] | None:
        found = [node.status() for node in of.values()]
        same = {(one["primary"], one["in_sync"]) for one in found}
        return found[0] if len(same) == 1 and found[0]["in_sync"] == " ".join(NAMES) else None

    return until(whole, START_S, what="all stores are in sync")


def start(of: dict[str, Node]) -> None:
    for node in of.values():
        node.start()
    for node in of.values():
        until(node.ready, START_S, what=f"{node.name} serves")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[dict[str, Node]]:
    made = nodes(tmp_path / "first")
    try:
        start(made)
        yield made
    finally:
        for node in made.values():
            node.close()


async def noise(one: Node, put: list[str]) -> None:
    async with one.aclient() as client:
        while True:
            put.append(await client.execute_command("Q.PUT", "noise", "x" * 500))


async def test_one_of_three_new_stores_has_what_was_stored_and_the_others_copy_it(
    first: dict[str, Node], tmp_path: Path
) -> None:
    status = all_in_sync(first)
    assert first["n0"].say("Q.CONFIG", "mails")["durability"] == "quorum"
    for number in range(50):
        first["n1"].say("Q.PUT", "mails", f"body {number}", "ID", f"m{number}")
    holder = first["n2"].client()
    ((_, held, lease, *_),) = holder.execute_command("Q.TAKE", "LEASE", 600_000, "FROM", "mails")
    asked = first[next(name for name in NAMES if name != status["primary"])]
    file = tmp_path / "monday.backup"
    async with background(noise(first["n0"], [])):
        done = await asyncio.to_thread(cli, asked, "cluster", "backup", str(file))
    assert done.exit_code == 0, done.stderr
    assert json.loads(file.read_bytes().partition(b"\n")[0])["view"] == status["view"]
    holder.close()
    for node in first.values():
        node.kill()

    folder = tmp_path / "second"
    second = nodes(folder)
    for key in ("cluster.key", "vault.key"):
        (folder / key).write_bytes((tmp_path / "first" / key).read_bytes())
    words = ["cluster", "restore", str(file), "--data-dir", str(folder / "n1"), "--json"]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["view"] > status["view"]
    try:
        start(second)
        now = all_in_sync(second)
        assert now["view"] > found["view"]
        assert second["n2"].say("Q.PEEK", "mails", "m7")
        row = second["n0"].say("Q.TAKE", "WAIT", 10_000, "ID", held, "FROM", "mails")[0]
        assert row[2] > lease
        until(lambda: any(node.status()["sweeping"] for node in second.values()), what="it sweeps")
        assert max(node.status()["epoch"] for node in second.values()) > found["epoch"]
        second[now["primary"]].kill()
        survivor = next(node for name, node in second.items() if name != now["primary"])
        until(lambda: survivor.status()["primary"] != now["primary"], START_S, what="elected")
        assert until(lambda: survivor.say("Q.PEEK", "mails", "m8"), what="a copy has it too")
        assert cli(survivor, "doctor").exit_code == 0
    finally:
        for node in second.values():
            node.close()
