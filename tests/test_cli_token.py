"""``tidewarden token``: imports line by line, and the verbs on single accounts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recording_node
from command_line import app
from typer.testing import CliRunner, Result

from tidewarden import errors
from tidewarden.cli.account_file import LINE_BYTES_MAX, NotAccounts, rows

pytestmark = pytest.mark.live


Run = Callable[..., Result]


@pytest.fixture
def node() -> Iterator[Any]:
    with recording_node.running() as node:
        node.answers = {"T.PUT": 1}
        yield node


@pytest.fixture
def run(node: Any) -> Run:
    def runner(*words: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(
            app, ("token", *words), input=stdin, env={"TIDEWARDEN_URL": node.url, "COLUMNS": "200"}
        )

    return runner


def parsed(text: bytes) -> list[tuple[int, str, dict[str, Any], str]]:
    found = rows(text.splitlines(keepends=True), "p")
    return [
        (row.line, row.account, json.loads(row.fields) if row.fields else {}, row.fault)
        for row in found
        if row.fields or row.fault
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'account,refresh_token,scope\na,"r,1",s\np/b,"r""2",\n',
        b'\xef\xbb\xbfaccount\trefresh_token\tscope\r\na\tr,1\ts\r\n\r\nb\tr"2\t\r\n',
        b'{"account": "a", "refresh_token": "r,1", "scope": "s"}\n{"account": "p/b", "refresh_token": "r\\"2", "scope": null}',
    ],
    ids=["csv", "tsv", "jsonl"],
)
def test_each_form_gives_the_same_accounts(text: bytes) -> None:
    found = [(account, fields, fault) for _, account, fields, fault in parsed(text)]
    assert found == [("a", {"refresh_token": "r,1", "scope": "s"}, ""), ("b", {"refresh_token": 'r"2'}, "")]


def test_numbers_in_jsonl_stay_numbers() -> None:
    (row,) = parsed(b'{"account": "a", "refresh_token": "r", "expires_at_ms": 1700000000000}\n')
    assert row[2]["expires_at_ms"] == 1_700_000_000_000


def test_a_bad_line_costs_itself_alone() -> None:
    text = (
        b"account,refresh_token\n"
        b"a,r1\n"
        b'b,"open quote\n'
        b"c\n"
        b"d,r4,more\n"
        b",r5\n"
        b"f,\n"
        b"g,\xff\n"
        b"a,again\n" + b"h," + b"x" * LINE_BYTES_MAX + b"\nlast,r9\n"
    )
    found = parsed(text)
    assert [(line, account) for line, account, _, fault in found if not fault] == [(2, "a"), (11, "last")]
    assert [(line, fault) for line, _, _, fault in found if fault] == [
        (3, "is not CSV: unexpected end of data"),
        (4, "has 1 fields where the header has 2"),
        (5, "has 3 fields where the header has 2"),
        (6, "account is empty"),
        (7, "refresh_token is empty"),
        (8, "is not UTF-8 at byte 3"),
        (9, "the account stands on an earlier line already"),
        (10, "has 262,147 bytes; at most 262,144 are allowed"),
    ]


def test_bad_lines_of_jsonl() -> None:
    text = (
        b'{"account": "a", "refresh_token": "r"}\n{"account\n[1]\n{"acount": "a"}\n{"account": 5}\n'
        + b"[" * 100_000
        + b"\n"
    )
    assert [fault for *_, fault in parsed(text)] == [
        "",
        "is not JSON",
        "is not a JSON object",
        "unknown field 'acount'; allowed are account, refresh_token, access_token, expires_at_ms, scope, client",
        "account is empty",
        "is not JSON",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"account,token\n", "unknown column 'token'; allowed are account, refresh_token"),
        (b"account,scope\n", "the header has no column 'refresh_token'"),
        (b"account,refresh_token,account\n", "a column stands twice"),
        (b"\xff\xfe\n", "the header cannot be read: is not UTF-8"),
        (b"a,r1\n", "unknown column 'a'"),
    ],
)
def test_a_file_without_its_header_is_none(text: bytes, expected: str) -> None:
    with pytest.raises(NotAccounts, match=expected):
        parsed(text)


def test_import_puts_each_account_and_counts(run: Run, node: Any) -> None:
    result = run("import", "-", "--provider", "p", stdin=b"account,refresh_token\na,r1\nb,r2\n")
    assert (result.exit_code, result.stdout) == (0, "2 accounts stored, 0 bad lines\n")
    assert node.asked == [["T.PUT", "p/a", '{"refresh_token": "r1"}'], ["T.PUT", "p/b", '{"refresh_token": "r2"}']]


def test_import_reports_bad_lines_keeps_the_good_and_ends_with_1(run: Run, node: Any, tmp_path: Path) -> None:
    node.answers = {"T.PUT": lambda request: errors.BadArg("account: no") if request[1] == b"p/b" else 1}
    file = tmp_path / "a.csv"
    file.write_bytes(b"account,refresh_token\na,hunter2\nb,hunter2\nc\nd,hunter2\n")
    result = run("import", str(file), "--provider", "p")
    assert result.exit_code == 1
    assert result.stdout == "2 accounts stored, 2 bad lines\n"
    assert result.stderr == "line 3: BADARG account: no\nline 4: has 1 fields where the header has 2\n"
    result = run("import", str(file), "--provider", "p", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"line": 3, "reason": "BADARG account: no"},
        {"line": 4, "reason": "has 1 fields where the header has 2"},
        {"stored": 2, "bad": 2},
    ]
    assert "hunter2" not in result.output


def test_import_in_batches(run: Run, node: Any) -> None:
    lines = b"".join(b"a%d,r%d\n" % (number, number) for number in range(1234))
    assert run("import", "-", "--provider", "p", stdin=b"account,refresh_token\n" + lines).exit_code == 0
    assert [request[1] for request in node.asked] == [f"p/a{number}" for number in range(1234)]


@pytest.mark.parametrize(
    "error", [errors.NoAuth("who?"), errors.Denied("no"), errors.StoreDown("away"), errors.NotFound("no provider 'p'")]
)
def test_import_stops_at_what_would_refuse_every_line(run: Run, node: Any, error: errors.Error) -> None:
    node.answers = {"T.PUT": error}
    result = run("import", "-", "--provider", "p", stdin=b"account,refresh_token\na,r\nb,r\n")
    assert result.exit_code == 1
    assert str(error) in result.stderr
    assert "line" not in result.stderr
    assert "stored" not in result.stderr


def test_import_over_a_breaking_line_says_how_far_it_came(run: Run, node: Any) -> None:
    node.answers = {"T.PUT": lambda request: None if request[1] == b"p/a700" else 1}
    lines = b"".join(b"a%d,r\n" % number for number in range(1000))
    result = run("import", "-", "--provider", "p", stdin=b"account,refresh_token\n" + lines)
    assert result.exit_code == 3
    assert "499 were stored before; run it again" in result.stderr


def test_import_of_a_wrong_header_is_wrong_usage(run: Run, node: Any) -> None:
    result = run("import", "-", "--provider", "p", stdin=b"name,token\na,r\n")
    assert result.exit_code == 2
    assert "unknown column 'name'" in result.stderr
    assert not node.asked


def test_get_prints_the_access_token_alone(run: Run, node: Any) -> None:
    node.answers = {"T.GET": ["at-1", "Bearer", 1_700_000_000_000, 3, "fresh"]}
    assert run("get", "p/a", "--min-ttl-ms", "5").stdout == "at-1\n"
    assert node.asked == [["T.GET", "p/a", "MINTTL", "5", "WAIT", "10000"]]
    found = json.loads(run("get", "p/a", "--json").stdout)
    assert (found["account"], found["generation"], found["state"]) == ("p/a", 3, "fresh")


def test_list_goes_on_until_it_has_enough(run: Run, node: Any) -> None:
    pages = iter([[[{"account": "p/a", "state": "fresh", "expires_at_ms": 1_700_000_000_000}], "c1"], [[], "c2"]])
    last = [[{"account": "p/b", "state": "dead", "expires_at_ms": 0}], "c3"]
    node.answers = {"T.LIST": lambda request: next(pages, last)}
    result = run("list", "--provider", "p", "--count", "2")
    assert "2023-11-14 22:13:20" in result.stdout
    assert "p/b" in result.stdout
    assert "more: --after c3" in result.stdout
    assert node.asked == [
        ["T.LIST", "PROVIDER", "p", "COUNT", "2"],
        ["T.LIST", "PROVIDER", "p", "AFTER", "c1", "COUNT", "1"],
        ["T.LIST", "PROVIDER", "p", "AFTER", "c2", "COUNT", "1"],
    ]


@pytest.mark.parametrize(
    ("words", "asked", "answer", "out"),
    [
        ("refresh p/a", "T.REFRESH p/a", "OK", "OK\n"),
        ("delete p/a", "T.DELETE p/a", 1, "OK\n"),
        ("stats", "T.STATS", {"p": {"fresh": 2}}, "p:\n  fresh  2\n"),
    ],
)
def test_verbs_ask_what_they_say(run: Run, node: Any, words: str, asked: str, answer: Any, out: str) -> None:
    node.answers = {asked.split()[0]: answer}
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (0, out)
    assert node.asked == [asked.split()]
    json.loads(run(*words.split(), "--json").stdout)


def test_presets_are_listed_with_their_sources(run: Run) -> None:
    listed = json.loads(run("presets", "--json").stdout)
    google = next(one for one in listed if one["name"] == "google")
    assert google["settings"]["rotation"] == "none"
    assert google["source"].startswith("https://developers.google.com/")
    shown = run("presets")
    assert shown.exit_code == 0
    assert "github" in shown.stdout
