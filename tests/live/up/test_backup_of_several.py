"""
Three nodes whose stores replicate, backed up under load at a node that is no primary, restored for
one of three new ones: the others copy it, and no number goes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import START_S, Node, background, until
from support.cluster.several import NAMES, all_in_sync, cli, nodes, serving_nodes, start
from support.doors.command_line import app
from typer.testing import CliRunner

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path / "first") as made:
        yield made


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
        start(second.values())
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
        assert "acknowledged writes may be missing" in cli(survivor, "doctor").stdout
        assert cli(survivor, "cluster", "confirm").stdout == "noted: a loss was possible\n"
        assert cli(survivor, "doctor").exit_code == 0
    finally:
        for node in second.values():
            node.close()
