"""
``tidewarden token import``: what is put, what is said of each line and of the whole, and how it
ends.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.doors.command_line import Run, node, run

from tidewarden import errors
from tidewarden.cli.token import import_accounts, progress
from tidewarden.cli.token.import_accounts import SHOWN_MAX

__all__ = ["node", "run"]  # fixtures
NEW = [1, "new", "expiring"]
FILE = b"account,refresh_token\n"


@pytest.fixture(autouse=True)
def answers(node: Any) -> None:
    node.answers = {"T.STATS": {"p": {}, "q": {}}, "T.PUT": NEW}


def put(node: Any) -> list[list[str]]:
    return [request for request in node.asked if request[0] == "T.PUT"]


def test_import_puts_each_account_and_counts(run: Run, node: Any) -> None:
    answers = iter([NEW, [2, "renewed", "fresh"], [7, "same", "fresh"], [7, "same", "dead"]])
    node.answers["T.PUT"] = lambda request: next(answers)
    result = run(
        "token", "import", "-", "--provider", "p", stdin=FILE + b"a,r1\nb,r2\nc,r3\nd,r4\n"
    )
    assert result.exit_code == 0
    assert (
        result.stdout
        == "4 accounts: 1 new, 1 with a new grant, 2 unchanged (of which 1 dead); 0 bad lines\n"
    )
    assert (
        result.stderr
        == "The dead stay dead with the refresh token that was refused: tidewarden token list"
        " --state dead\n"
    )
    assert put(node)[:2] == [
        ["T.PUT", "p/a", '{"refresh_token": "r1"}', "VERBOSE"],
        ["T.PUT", "p/b", '{"refresh_token": "r2"}', "VERBOSE"],
    ]


def test_import_tells_what_the_stopped_need(run: Run, node: Any) -> None:
    answers = iter([[7, "same", "stopped"], [7, "same", "dead"]])
    node.answers["T.PUT"] = lambda request: next(answers)
    result = run("token", "import", "-", "--provider", "p", stdin=FILE + b"a,r1\nb,r2\n")
    assert "2 unchanged (of which 1 dead, 1 stopped); 0 bad lines" in result.stdout
    assert result.stderr.endswith(
        "The stopped are asked for again by: tidewarden token refresh --state stopped\n"
    )


def test_a_providers_grant_says_what_its_accounts_need(run: Run, node: Any) -> None:
    node.answers["T.STATS"] = {
        "p": {"grant": "client_credentials"},
        "q": {"grant": "refresh_token"},
    }
    assert (
        run("token", "import", "-", "--provider", "p", stdin=b"account,scope\na,mail\n").exit_code
        == 0
    )
    assert put(node) == [["T.PUT", "p/a", '{"scope": "mail"}', "VERBOSE"]]
    result = run("token", "import", "-", "--provider", "q", stdin=b"account,scope\na,mail\n")
    assert "the header has no column 'refresh_token'" in result.stderr


def test_each_line_may_name_its_provider(run: Run, node: Any) -> None:
    result = run("token", "import", "-", "--keep", stdin=FILE + b"p/a,r1\nq/a,r2\nx/a,r3\n")
    assert result.stderr.startswith("line 4: account names the provider 'x'; configured: p, q\n")
    assert [request[1:2] + request[3:] for request in put(node)] == [
        [f"{name}/a", "KEEP", "VERBOSE"] for name in "pq"
    ]


def test_import_reports_bad_lines_keeps_the_good_and_ends_with_1(
    run: Run, node: Any, tmp_path: Path
) -> None:
    refused = errors.BadArg("refresh_token holds characters other than printable ASCII")
    node.answers["T.PUT"] = lambda request: refused if request[1] == b"p/b" else NEW
    file = tmp_path / "a.csv"
    file.write_bytes(FILE + b"a,hunter2\nb,hunter3\nc\nd,hunter4\n")
    result = run("token", "import", str(file), "--provider", "p")
    assert result.exit_code == 1
    assert result.stdout == "2 accounts: 2 new, 0 with a new grant, 0 unchanged; 2 bad lines\n"
    assert (
        result.stderr
        == f"line 3 (p/b): {refused}\nline 4: refresh_token is missing: 1 field where the header"
        " has 2 (account, refresh_token)\nCorrect what is bad and import the file again: what"
        " is there already stays as it is.\n"
    )
    result = run("token", "import", str(file), "--provider", "p", "--json")
    first, second, last = (json.loads(line) for line in result.stdout.splitlines())
    assert first == {"line": 3, "account": "p/b", "field": "refresh_token", "reason": str(refused)}
    assert (second["line"], second["account"], second["field"]) == (4, "", "refresh_token")
    assert last == {
        "stored": 2,
        "new": 2,
        "renewed": 0,
        "unchanged": 0,
        "dead": 0,
        "stopped": 0,
        "bad": 2,
    }
    assert "hunter" not in result.output


def test_of_many_bad_lines_a_person_is_shown_the_first(run: Run, node: Any) -> None:
    result = run("token", "import", "-", "--provider", "p", stdin=FILE + b"a\x1b[31m,\xff\n" * 700)
    lines = result.stderr.splitlines()
    assert (len(lines), "\x1b" in result.output) == (SHOWN_MAX + 2, False)
    assert lines[SHOWN_MAX] == "further bad lines are only counted; --json names them all"
    assert "700 bad lines" in result.stdout


@pytest.mark.thorough
def test_import_in_batches(run: Run, node: Any) -> None:
    lines = b"".join(b"a%d,r%d\n" % (number, number) for number in range(1234))
    assert run("token", "import", "-", "--provider", "p", stdin=FILE + lines).exit_code == 0
    assert [request[1] for request in put(node)] == [f"p/a{number}" for number in range(1234)]


@pytest.mark.parametrize(
    "error", [errors.Denied("no"), errors.StoreDown("away"), errors.Full("no room")]
)
def test_import_stops_at_what_would_refuse_every_line(
    run: Run, node: Any, error: errors.Error
) -> None:
    node.answers["T.PUT"] = lambda request: NEW if request[1] == b"p/a" else error
    result = run("token", "import", "-", "--provider", "p", stdin=FILE + b"a,r1\nb,r2\nc,r3\n")
    assert result.exit_code == 1
    assert str(error) in result.stderr
    assert "line" not in result.stderr
    assert "stored before this: 1 account; run it again, that repeats nothing" in result.stderr


def test_import_without_a_user_says_who_it_takes(run: Run, node: Any) -> None:
    node.answers["T.STATS"] = errors.NoAuth("who?")
    result = run("token", "import", "-", stdin=FILE + b"p/a,r\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "who? (name a user: --url redis://USER:SECRET@HOST:PORT; " in result.stderr


def test_import_to_a_provider_that_is_not_configured_puts_nothing(run: Run, node: Any) -> None:
    result = run("token", "import", "-", "--provider", "shpo", stdin=FILE + b"a,r\n")
    assert result.exit_code == 2
    assert (
        "there is no provider 'shpo'; configured: p, q ([providers.NAME] of config.toml"
        in result.stderr
    )
    assert not put(node)


def test_import_over_a_breaking_line_says_how_far_it_came(run: Run, node: Any) -> None:
    node.answers["T.PUT"] = lambda request: None if request[1] == b"p/a700" else NEW
    lines = b"".join(b"a%d,r%d\n" % (number, number) for number in range(1000))
    result = run("token", "import", "-", "--provider", "p", stdin=FILE + lines)
    assert result.exit_code == 3
    assert "stored before this: 499 accounts; run it again" in result.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("folder", "Is a directory"),
        ("missing", "No such file"),
        ("empty", "is empty; needed is a header"),
    ],
)
def test_import_of_what_is_no_file_of_accounts_is_wrong_usage(
    run: Run, node: Any, tmp_path: Path, name: str, expected: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    result = run("token", "import", name, "--provider", "p")
    assert result.exit_code == 2
    assert f"{name}: " in result.stderr
    assert expected in result.stderr
    assert not put(node)


def test_a_long_import_says_how_far_it_is_where_there_is_no_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SAY_S", 0.0)
    monkeypatch.setattr(import_accounts, "BATCH_ROWS", 2)
    file = tmp_path / "a.csv"
    file.write_bytes(FILE + b"a,r1\nb,r2\nc,r3\n")
    said = run("token", "import", str(file), "--provider", "p").stderr.splitlines()
    assert [re.sub(r"[\d,]+/s", "N/s", line) for line in said] == [
        "1 stored, 0 bad, N/s (72 %)",
        "3 stored, 0 bad, N/s (100 %)",
    ]


@pytest.mark.parametrize("option", [["--keep"], ["--provider", "p"]])
def test_what_a_sealed_file_cannot_be_told_is_refused(
    run: Run, node: Any, option: list[str]
) -> None:
    result = run("token", "import", "file", "--key-file", "key", *option)
    assert (result.exit_code, node.asked) == (2, [])
    assert "--keep and --provider are not for a sealed file" in result.stderr
