"""A lone node with one embedded store becomes three with a copy each, in place; nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cluster.harness import START_S, Node, until
from support.cluster.several import all_in_sync, cli, nodes, start

pytestmark = pytest.mark.timeout(400)


def change(node: Node, old: str, new: str) -> None:
    """Edit its configuration file."""
    text, count = re.subn(old, new, node.config.read_text())
    assert count == 1
    node.config.write_text(text)


def test_a_lone_nodes_folder_becomes_the_first_of_three_copies(tmp_path: Path) -> None:
    made = nodes(tmp_path)
    first = made["n0"]
    with_members = first.config.read_text()
    change(first, r"members = .*", "members = {}")
    try:
        start([first])
        assert first.status()["primary"] == "embedded"
        first.say("Q.PUT", "mails", "kept", "ID", "m1")
        ((*_, lease),) = (row[:3] for row in first.say("Q.TAKE", "FROM", "mails"))
        view = first.status()["view"]
        assert first.terminate() == 0

        first.config.write_text(with_members)
        start([first])
        for name in ("n1", "n2"):
            other = made[name]
            done = cli(first, "cluster", "join", name, f"127.0.0.1:{other.base_port}")
            assert done.exit_code == 0, done.stderr
            change(other, r"\[node\]", '[node]\nrole = "joining"')
            start([other])
            until(
                lambda name=name: first.status()["members"][name]["votes"],  # type: ignore[misc]
                START_S,
                what=f"{name} votes",
            )
        status = all_in_sync(made)
        assert status["view"] > view
        first.kill()
        survivor = made["n1"]
        until(lambda: survivor.status()["primary"] in ("n1", "n2"), START_S, what="elected")
        row = until(
            lambda: survivor.say("Q.TAKE", "WAIT", 1_000, "FROM", "mails"), START_S, what="taken"
        )[0]
        assert (row[1], row[2] > lease) == ("m1", True)
    finally:
        for node in made.values():
            node.close()
