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


def test_status_of_a_cluster_that_just_starts_names_no_store(run: Run, node: Any) -> None:
    store = {"name": "", "version": "", "at": "", "up": False}
    young = {"role": "orphan", "leader": "", "quorum": False, "epoch": 0, "primary": ""}
    node.answers = {"R.STATUS": status_of(node) | young | {"store": store}}
    said = run("cluster", "status").stdout
    assert "leader unknown, epoch 0, NO QUORUM; store not known yet, AWAY" in said


def test_transfer_asks_for_a_node_or_for_any(run: Run, node: Any) -> None:
    node.answers = {"R.TRANSFER": lambda request: request[1] if len(request) > 1 else b"n2"}
    assert run("cluster", "transfer").stdout == "n2 leads\n"
    assert json.loads(run("cluster", "transfer", "n1", "--json").stdout) == {"leader": "n1"}
    assert node.asked == [["R.TRANSFER"], ["R.TRANSFER", "n1"]]
    node.answers = {"R.TRANSFER": errors.NotFound("There is no member 'n9'; there are n0.")}
    assert run("cluster", "transfer", "n9").exit_code == 1


def copies_of(node: Any) -> dict[str, Any]:
    """As above, of stores that replicate: one is in full sync, one is away."""
    found = status_of(node) | {
        "view": 7, "primary": "n0", "in_sync": "n0", "store_pid": 4711, "loss": "possible",
        "proposal": "n0 n1", "last_gap_ms": 800,
    }  # fmt: skip
    copy = {"role": "primary", "incarnation": "0a1b", "behind": 0, "sync": None, "why": ""}
    found["members"]["n0"]["store"] = copy
    found["members"]["n1"]["store"] = copy | {
        "role": "learner", "behind": 5_000_000, "sync": 0.34, "why": "it copies the primary's data",
    }  # fmt: skip
    found["members"]["n2"]["store"] = copy | {"role": "away", "behind": None, "why": "never heard"}
    return found


def test_of_stores_that_replicate_it_shows_each_copy(run: Run, node: Any) -> None:
    node.answers = {"R.STATUS": copies_of(node)}
    said = run("cluster", "status").stdout
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.split()[:1]}
    assert rows["n1"][1:5] == ["learner", "5,000,000", "bytes", "34%"]
    assert rows["n2"] == ["n2", "away", "-", "-", "never", "heard"]
    assert "view 7, primary n0; in sync: n0" in said
    assert "proposed as in sync: n0 n1" in said
    assert "acknowledged writes may be missing (possible)" in said
    found = json.loads(run("cluster", "status", "--json").stdout)
    assert (found["in_sync"], found["loss"], found["primary"]) == ("n0", "possible", "n0")
    assert {row["node"]: row["copy"]["role"] for row in found["nodes"] if "copy" in row} == {
        "n0": "primary", "n1": "learner", "n2": "away",
    }  # fmt: skip
    done = run("status")
    assert "in_sync" in done.stdout
    assert "4711" in done.stdout
    assert "acknowledged writes may be missing (possible)" in done.stderr


def test_the_primary_is_moved_to_a_node_or_to_the_best(run: Run, node: Any) -> None:
    node.answers = {"R.SWITCHOVER": lambda request: request[1] if len(request) > 1 else b"n2"}
    assert run("cluster", "switchover").stdout == "n2 has the primary\n"
    assert json.loads(run("cluster", "switchover", "n1", "--json").stdout) == {"primary": "n1"}
    assert node.asked == [["R.SWITCHOVER"], ["R.SWITCHOVER", "n1"]]


def test_a_last_resort_says_what_it_would_do_and_asks(run: Run, node: Any) -> None:
    node.answers = {
        "R.RECOVER": {
            "node": "n1", "view": 6, "seq": 90, "loss": "likely",
            "missing": ["what n0 alone had"], "others": ["n0: not heard for 5 s"],
        }
    }  # fmt: skip
    said = run("cluster", "recover").stdout
    assert "n1 would have the primary, whose data is of view 6, as far as mark 90" in said
    assert "loss: likely\n  what n0 alone had\n  n0: not heard for 5 s" in said
    assert "--accept-loss does it" in said
    assert json.loads(run("cluster", "recover", "n1", "--json").stdout)["loss"] == "likely"
    refused = run("cluster", "recover", "--accept-loss", stdin="n\n")
    assert (refused.exit_code, "nothing was changed" in refused.stderr) == (5, True)
    assert "what n0 alone had" in refused.stderr
    assert all("ACCEPTLOSS" not in request for request in node.asked)
    done = run("cluster", "recover", "--accept-loss", "--json", stdin="y\n")
    assert json.loads(done.stdout.splitlines()[-1])["node"] == "n1"
    assert node.asked[-1] == ["R.RECOVER", "n1", "ACCEPTLOSS"]
    done = run("cluster", "recover", "n1", "--accept-loss", "--yes")
    assert done.stdout.startswith("n1 has the primary")


def test_a_loss_is_confirmed(run: Run, node: Any) -> None:
    node.answers = {"R.CONFIRM": b"possible"}
    assert run("cluster", "confirm").stdout == "noted: a loss was possible\n"
    node.answers = {"R.CONFIRM": b""}
    assert run("cluster", "confirm").stdout == "there was no loss to confirm\n"
    assert json.loads(run("cluster", "confirm", "--json").stdout) == {"loss": ""}


def test_what_stores_set_aside_is_listed(run: Run, node: Any) -> None:
    kept = {"path": "/d/store/discarded/1", "bytes": 7, "at_ms": 86_400_000}
    node.answers = {"R.STATUS": status_of(node), "R.DISCARDED": [kept]}
    done = run("cluster", "discarded")
    assert ["n0", "/d/store/discarded/1", "7", "1970-01-02", "00:00:00"] in [
        line.split() for line in done.stdout.splitlines()
    ]
    assert "127.0.0.1:1 does not answer" in done.stderr
    assert json.loads(run("cluster", "discarded", "--json").stdout) == {
        "discarded": [{"node": "n0", **kept}]
    }
    node.answers["R.DISCARDED"] = []
    assert run("cluster", "discarded").exit_code == 5


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
