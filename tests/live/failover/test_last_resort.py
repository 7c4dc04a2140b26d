"""
A node that waits for a primary answers operators: when no store in sync comes back, they decide.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.harness import START_S, Node, until
from support.cluster.several import all_in_sync, cli, serving_nodes

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with serving_nodes(tmp_path) as found:
        yield found


def answered(node: Node) -> str:
    """What a put is answered, whether it was done or not."""
    try:
        return str(node.say("Q.PUT", "mails", "late"))
    except Exception as error:
        return str(error)


def test_a_store_that_was_not_in_sync_goes_on_by_an_operators_word(
    made: dict[str, Node], tmp_path: Path
) -> None:
    all_in_sync(made)
    n0, n1, n2 = made.values()
    n0.say("Q.PUT", "mails", "kept", "ID", "m1")
    for node in made.values():
        node.kill()
    # n1 is gone for good, n2 has lost its disk, and n0's store cannot show that it lost nothing
    shutil.rmtree(tmp_path / "n2" / "store")
    (tmp_path / "n0" / "store" / "lineage.json").unlink()
    n0.start()
    n2.start()

    def chosen() -> dict[str, object] | None:
        done = cli(n0, "cluster", "recover", "--json")
        return json.loads(done.stdout) if done.exit_code == 0 else None

    choice = until(chosen, START_S, what="it says what it would choose")
    assert (choice["node"], choice["loss"]) == ("n0", "likely")
    assert any("is lost" in sentence for sentence in choice["missing"])
    status = n0.status()
    assert (status["store"]["up"], status["members"]["n1"]["store"]["role"]) == (False, "away")
    said = answered(n0)
    assert "No store takes writes yet, and this node waits" in said
    assert "n1" in said
    done = cli(n2, "cluster", "recover", "n0", "--accept-loss", "--yes")
    if done.exit_code:  # whoever does not lead Raft may not be able to choose
        done = cli(n0, "cluster", "recover", "n0", "--accept-loss", "--yes")
    assert done.exit_code == 0, done.stderr
    for node in (n0, n2):
        until(node.ready, START_S, what=f"{node.name} serves")
    status = until(
        lambda: (found := n0.status())["in_sync"] == "n0 n2" and found, START_S, what="n2 follows"
    )
    assert (status["primary"], status["loss"]) == ("n0", "likely")
    assert n2.say("Q.PEEK", "mails", "m1")
    done = cli(n0, "doctor")
    assert done.exit_code == 1
    assert "acknowledged writes may be missing (likely)" in done.stdout
    assert cli(n2, "cluster", "confirm").stdout == "noted: a loss was likely\n"
    until(lambda: n0.status()["loss"] == "", what="it is confirmed everywhere")
    assert "warning" not in cli(n0, "cluster", "status").stdout
    n1.close()
