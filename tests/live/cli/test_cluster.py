"""``tidewarden cluster``: who is in it, and what changes that."""

from __future__ import annotations

import json
from typing import Any

from support.doors.command_line import Run, node, run

from tidewarden import errors
from tidewarden.cli.cluster import at

__all__ = ["node", "run"]  # fixtures


def status_of(node: Any) -> dict[str, Any]:
    """What a leader of two says, the other being away; its own address is the double's."""
    here = node.url.removeprefix("redis://")
    return {
        "node": "n0", "role": "leader", "leader": "n0", "epoch": 7, "view": 3, "primary": "embedded", "quorum": True,
        "store": {"name": "Valkey", "version": "9.1.2", "at": "unix:/s", "up": True},
        "processes": [],
        "members": {
            "n0": {"address": here, "boot": 5, "store_age_ms": 120, "raft_heard_s": None},
            "n2": {"address": "127.0.0.1:2", "votes": False, "met": False, "boot": 0, "store_age_ms": -1, "raft_heard_s": None},
            "w1": {"address": "", "votes": False, "met": True, "boot": 3, "store_age_ms": 300, "raft_heard_s": None},
            "w2": {"address": "127.0.0.1:3", "votes": False, "met": True, "boot": 3, "store_age_ms": 300, "raft_heard_s": None},
            "n1": {"address": "127.0.0.1:1", "boot": 0, "store_age_ms": -1, "raft_heard_s": 12.5},
        },
    }  # fmt: skip


def test_status_shows_every_member_the_silent_too(run: Run, node: Any) -> None:
    node.answers = {"R.STATUS": status_of(node)}
    result = run("cluster", "status")
    assert result.exit_code == 0
    rows = {
        line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()[:1]
    }
    assert rows["n0"][1:4] == ["leader", "yes", "7"]
    assert rows["w1"][1:3] == ["worker", "no"]
    assert rows["w2"][1:3] == ["worker", "no"]
    assert rows["n2"][1:3] == ["awaited", "no"]
    assert rows["n1"][1] == "silent"
    assert "12.5 s" in " ".join(rows["n1"])
    assert "leader n0, epoch 7, a quorum; store Valkey 9.1.2 at unix:/s, up" in result.stdout
    assert "127.0.0.1:1 does not answer" in result.stderr
    found = json.loads(run("cluster", "status", "--json").stdout)
    assert [(row["node"], row["role"]) for row in found["nodes"]] == [
        ("n0", "leader"),
        ("n2", "awaited"),
        ("w1", "worker"),
        ("w2", "worker"),
        ("n1", "silent"),
    ]
    assert (found["leader"], found["seen_by"], found["store"]["up"]) == ("n0", "n0", True)


def test_status_of_a_cluster_is_its_leaders_whoever_is_asked(run: Run, node: Any) -> None:
    leads = status_of(node)
    here = leads["members"]["n0"]["address"]
    alone = leads | {"node": "n1", "role": "orphan", "leader": "", "quorum": False, "epoch": 5}
    answers = iter(
        (alone | {"members": {"n0": leads["members"]["n0"], "n1": leads["members"]["n0"]}}, leads)
    )
    node.answers = {"R.STATUS": lambda request: next(answers)}
    assert here in node.url
    assert "leader n0, epoch 7, a quorum" in run("cluster", "status").stdout


def test_transfer_asks_for_a_node_or_for_any(run: Run, node: Any) -> None:
    node.answers = {"R.TRANSFER": lambda request: request[1] if len(request) > 1 else b"n2"}
    assert run("cluster", "transfer").stdout == "n2 leads\n"
    assert json.loads(run("cluster", "transfer", "n1", "--json").stdout) == {"leader": "n1"}
    assert node.asked == [["R.TRANSFER"], ["R.TRANSFER", "n1"]]
    node.answers = {"R.TRANSFER": errors.NotFound("There is no member 'n9'; there are n0.")}
    assert run("cluster", "transfer", "n9").exit_code == 1


def test_members_come_and_go(run: Run, node: Any) -> None:
    node.answers = {"R.JOIN": 4, "R.LEAVE": 5}
    assert (
        "n3 may join (version 4 of the members): start it with --join"
        in run("cluster", "join", "n3", "h:1").stdout
    )
    assert json.loads(run("cluster", "leave", "n3", "--json").stdout) == {
        "node": "n3",
        "version": 5,
    }
    assert node.asked == [["R.JOIN", "n3", "h:1"], ["R.LEAVE", "n3"]]


def test_the_others_are_asked_as_the_same_user() -> None:
    assert (
        at("rediss://ada:s%40@10.0.0.1:7420?ca=x", "10.0.0.2:7430")
        == "rediss://ada:s%40@10.0.0.2:7430?ca=x"
    )
    assert at("redis://127.0.0.1:7420", "[::1]:7430") == "redis://[::1]:7430"
