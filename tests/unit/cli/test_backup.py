"""
``tidewarden cluster backup|restore``: what is written, and what is refused; a real store does it in
tests/live/up/test_backup.py.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from support.doors.command_line import Run, node, run

from tidewarden import errors
from tidewarden.config.cluster_secret import key_check

__all__ = ["node", "run"]  # fixtures
BODY = b"\xff no store " * 100_000
KEYS = {
    "cluster": {"where": "/k/cluster.key", "check": key_check("c")},
    "vault": {"where": "/k/vault.key", "check": key_check("v")},
}


def backed_up(node: Any, body: bytes = BODY) -> None:
    header = {
        "backup": "ab12", "format": 1, "made_at_ms": 5, "bytes": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest(),
        "cluster": "tidewarden", "node": "n0", "view": 3, "epoch": 7, "members": {}, "keys": KEYS,
    }  # fmt: skip

    def answer(request: list[bytes]) -> Any:
        if len(request) == 1:
            return header
        return 1 if request[1] == b"DROP" else body[int(request[3]) : int(request[3]) + 1_000_000]

    node.answers = {"R.BACKUP": answer}


def test_a_backup_is_one_private_file(run: Run, node: Any, tmp_path: Path) -> None:
    backed_up(node)
    done = run("cluster", "backup", "b")
    assert done.exit_code == 0
    assert "needed with it: /k/vault.key on n0" in done.stdout
    header, _, body = (tmp_path / "b").read_bytes().partition(b"\n")
    assert body == BODY
    assert json.loads(header)["what"] == "tidewarden backup"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert node.asked[-1] == ["R.BACKUP", "DROP", "ab12"]
    assert run("cluster", "backup", "b").exit_code == 1
    assert json.loads(run("cluster", "backup", "c", "--json").stdout)["epoch"] == 7


def test_what_came_damaged_or_was_refused_is_not_kept(run: Run, node: Any, tmp_path: Path) -> None:
    backed_up(node, BODY[:-1])
    done = run("cluster", "backup", "b")
    assert (done.exit_code, "damaged" in done.stderr) == (1, True)
    assert node.asked[-1] == ["R.BACKUP", "DROP", "ab12"]
    node.answers = {"R.BACKUP": errors.BadArg("The store is your own")}
    assert "The store is your own" in run("cluster", "backup", "b").stderr
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_restored_is_said_and_leaves_nothing(
    run: Run, node: Any, tmp_path: Path
) -> None:
    backed_up(node)
    assert run("cluster", "backup", "b").exit_code == 0
    file, target = tmp_path / "b", tmp_path / "new"
    whole = file.read_bytes()

    def refused(because: str) -> None:
        done = run("cluster", "restore", "b", "--data-dir", "new")
        assert done.exit_code == 1
        assert because in done.stderr
        assert not (target / "store").exists()

    refused("the store cannot be started on it")  # it is whole, but nothing that the store wrote
    (target / "store.part").mkdir(parents=True, exist_ok=True)  # of a try that was killed
    refused("the store cannot be started on it")
    assert not (target / "store.part").exists()
    file.write_bytes(whole[:-1])
    refused("is damaged or cut short")
    file.write_bytes(b"{}\n")
    refused("is no backup of tidewarden")
    first, _, body = whole.partition(b"\n")
    for change in (
        {"keys": {}},
        {"keys": None},
        {"cluster": 7},
        {"cluster": "a}b"},
        {"bytes": "9"},
        {"view": None},
        {"sha256": 1},
    ):
        file.write_bytes(json.dumps(json.loads(first) | change).encode() + b"\n" + body)
        refused("its first line is damaged")
    file.write_bytes(whole.replace(b'"format": 1', b'"format": 9', 1))
    refused("has format 9; this version reads 1")
    file.unlink()
    refused("No such file")
    file.write_bytes(whole)
    (target / "secrets").mkdir(parents=True, exist_ok=True)
    (target / "secrets" / "vault.key").write_text("another")
    refused("is another key than the backup's, which was /k/vault.key")
    (target / "n0").mkdir()
    refused("is not empty")
