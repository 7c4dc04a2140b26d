"""``tidewarden token``: the verbs on single accounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.doors import recording_node
from support.doors.command_line import app
from typer.testing import CliRunner, Result

Run = Callable[..., Result]


@pytest.fixture
def node() -> Iterator[Any]:
    with recording_node.running() as node:
        yield node


@pytest.fixture
def run(node: Any) -> Run:
    def runner(*words: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(
            app, ("token", *words), input=stdin, env={"TIDEWARDEN_URL": node.url, "COLUMNS": "200"}
        )

    return runner


def test_get_prints_the_access_token_alone(run: Run, node: Any) -> None:
    node.answers = {"T.GET": ["at-1", "Bearer", 1_700_000_000_000, 3, "fresh"]}
    assert run("get", "p/a", "--min-ttl-ms", "5").stdout == "at-1\n"
    assert node.asked == [["T.GET", "p/a", "MINTTL", "5", "WAIT", "10000"]]
    found = json.loads(run("get", "p/a", "--json").stdout)
    assert (found["account"], found["generation"], found["state"]) == ("p/a", 3, "fresh")


def test_verbs_ask_what_they_say(run: Run, node: Any) -> None:
    node.answers = {"T.REFRESH": "OK", "T.DELETE": 1}
    for words, out in (
        ("refresh p/a", "OK\n"),
        ("refresh p/a p/b", "2 queued\n"),
        ("delete p/a", "OK\n"),
    ):
        node.asked.clear()
        result = run(*words.split())
        assert (result.exit_code, result.stdout) == (0, out)
        verb, *names = words.split()
        assert node.asked == [[f"T.{verb.upper()}", name] for name in names]
        json.loads(run(*words.split(), "--json").stdout)


@pytest.mark.parametrize("words", ["refresh", "refresh p/a --state dead", "delete"])
def test_verbs_without_knowing_of_whom_do_nothing(run: Run, node: Any, words: str) -> None:
    assert run(*words.split()).exit_code == 2
    assert not node.asked


def test_delete_names_who_was_not_there(run: Run, node: Any) -> None:
    node.answers = {"T.DELETE": lambda request: int(request[1] == b"p/a")}
    result = run("delete", "p/a", "p/b")
    assert (result.exit_code, result.stdout) == (5, "1 deleted, 1 absent\n")
    assert "there is no account 'p/b'" in result.stderr


def test_presets_are_listed_with_their_sources(run: Run) -> None:
    listed = json.loads(run("presets", "--json").stdout)
    google = next(one for one in listed if one["name"] == "google")
    assert google["settings"]["rotation"] == "none"
    assert google["source"].startswith("https://developers.google.com/")
    shown = run("presets")
    assert shown.exit_code == 0
    assert "github" in shown.stdout


@pytest.mark.parametrize("words", [("get",), ("show",), ("refresh",), ("list", "--provider")])
def test_a_word_of_the_shells_that_is_no_utf_8_is_a_wrong_argument(
    run: Run, node: Any, words: tuple[str, ...]
) -> None:
    result = run(*words, "p\udcff/a")
    assert (result.exit_code, node.asked) == (2, [])
    assert result.stderr == "tidewarden: an argument is no UTF-8 text\n"


def test_a_terminal_of_another_encoding_shows_what_it_can(node: Any) -> None:
    node.answers = {"T.PEEK": {"account": "p/a", "message": "né доступ"}, "T.STATS": {}}
    environ = os.environ | {"PYTHONIOENCODING": "latin-1", "TIDEWARDEN_URL": node.url}
    command = [sys.executable, "-m", "tidewarden", "token", "show", "p/a"]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (
        0,
        b"Why, and what comes next: tidewarden token why p/a\n",
    )
    assert b"n\xe9 \\u0434\\u043e" in done.stdout
