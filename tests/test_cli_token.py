"""``tidewarden token``: imports line by line, and the verbs on single accounts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import recording_node
from typer.testing import CliRunner, Result

from tidewarden.cli import app

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
