"""``tidewarden vault`` and sealed files of accounts, against a recording node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.doors.command_line import Run, node, run  # noqa: F401  # fixtures

from tidewarden.config.sealed_file import file_key, open_line, read_header, seal_line
from tidewarden.errors import Denied

ROTATION = {
    "state": "done", "node": "n0", "total": 3, "seen": 3, "sealed": 4, "unreadable": 0, "dropped": 1, "key": 77,
    "message": "", "started_ms": 1_700_000_000_000,
}  # fmt: skip
STATUS = {
    "kek": "00aa11bb", "keks": ["00aa11bb"], "origin": "vault.key", "data_keys": 2, "data_key": 77,
    "wrapped_otherwise": 0, "nodes": {"n0": {"keks": ["00aa11bb"], "newest": 77, "said_ms": 1_700_000_000_000}},
    "rotation": ROTATION,
}  # fmt: skip


def test_status_and_rotate(run: Run, node: Any) -> None:  # noqa: F811
    node.answers = {"V.STATUS": STATUS, "V.ROTATE": STATUS}
    shown = run("vault", "status").stdout
    assert "00aa11bb" in shown
    assert "2, the newest 77" in shown
    done = run("vault", "rotate", "--force")
    assert done.exit_code == 0, done.output
    assert "done: 4 pairs sealed anew under data key 77; 1 old data keys dropped" in done.stdout
    assert json.loads(run("vault", "rotate", "--no-wait", "--json").stdout)["kek"] == "00aa11bb"
    refused = {
        **ROTATION,
        "state": "refused",
        "message": "key-encryption key 11 is not at n1: give it to every node",
    }
    node.answers = {"V.STATUS": {**STATUS, "rotation": refused}, "V.ROTATE": STATUS}
    answer = run("vault", "rotate")
    assert answer.exit_code == 1
    assert "refused; key-encryption key 11 is not at n1" in answer.stdout


def test_new_key(run: Run, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "vault.key"
    assert run("vault", "new-key", str(path)).exit_code == 4
    path.write_text("A" * 43 + "=\n")
    answer = run("vault", "new-key", str(path))
    assert answer.exit_code == 0, answer.output
    first, second = path.read_text().split()
    assert second == "A" * 43 + "="
    assert first not in answer.output


def test_export_and_import(run: Run, node: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "transfer.key").write_bytes(b"k" * 40)
    file = tmp_path / "accounts.sealed"

    def export(key: str, file_id: str, line: str, *_: str) -> list[Any]:
        sealed = seal_line(
            bytes.fromhex(key), bytes.fromhex(file_id), int(line), b'{"account": "p/a"}'
        )
        return [[sealed], "" if int(line) == 2 else "more", []]

    node.answers = {"T.EXPORT": lambda words: export(*(word.decode() for word in words[1:]))}
    words = ("token", "export", str(file), "--key-file", str(tmp_path / "transfer.key"))
    answer = run(*words)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("2 accounts written to ")
    assert file.stat().st_mode & 0o777 == 0o600
    header, *lines = file.read_bytes().splitlines()
    key = file_key(read_header(header), b"k" * 40)
    assert open_line(key, read_header(header).id, 2, lines[1]) == b'{"account": "p/a"}'
    again = run(*words)
    assert again.exit_code == 2
    assert "is there already" in again.stderr

    node.answers = {"T.IMPORT": [1, "p/a: no such provider"]}
    words = ("token", "import", str(file), "--key-file", str(tmp_path / "transfer.key"))
    answer = run(*words)
    assert answer.exit_code == 1
    assert "1 accounts stored, 0 were there, 1 bad lines" in answer.stdout
    assert "line 3: p/a: no such provider" in answer.stderr
    node.asked.clear()
    for damaged in (
        b"\n".join([header, *lines[:-1]]),
        b"\n".join([header, lines[1], lines[0], lines[2]]),
        header,
    ):
        file.write_bytes(damaged + b"\n")
        answer = run(*words)
        assert answer.exit_code == 2, answer.output
        assert "cut short" in answer.stderr or "does not open" in answer.stderr
    (tmp_path / "transfer.key").write_bytes(b"short")
    assert "has 5 bytes; at least 32" in run(*words).stderr
    assert not [words for words in node.asked if words[0] == "T.IMPORT"]


def test_an_export_that_fails_leaves_nothing(
    run: Run,  # noqa: F811
    node: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    (tmp_path / "transfer.key").write_bytes(b"k" * 40)
    words = (
        "token",
        "export",
        str(tmp_path / "accounts.sealed"),
        "--key-file",
        str(tmp_path / "transfer.key"),
    )

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    node.answers = {"T.EXPORT": [[], "", []]}
    with monkeypatch.context() as patch:
        patch.setattr("tidewarden.cli.token.sealed.os.fsync", full)
        answer = run(*words)
    assert (answer.exit_code, answer.exception.__class__) == (1, SystemExit)
    assert answer.stderr.endswith("accounts.sealed: cannot be written: No space left on device\n")
    node.answers = {"T.EXPORT": Denied("the right token:export is missing")}
    assert run(*words).exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["transfer.key"]
