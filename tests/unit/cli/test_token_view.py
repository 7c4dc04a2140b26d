"""``tidewarden token`` about single accounts and all: what a person reads, and a program."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.doors.command_line import Run, node, run

__all__ = ["node", "run"]  # fixtures
AT_MS = 1_700_000_000_000  # 2023-11-14 22:13:20
LATER_MS = 4_102_444_800_000  # 2100-01-01 00:00:00
DEAD: dict[str, Any] = {
    "account": "p/b", "provider": "p", "state": "dead", "since_ms": AT_MS, "grant": 1, "generation": 4, "stored_ms": AT_MS,
    "expires_at_ms": 0, "due_ms": AT_MS, "tries": 2, "error": "invalid_grant", "message": "HTTP 400 invalid_grant",
    "next_ms": 0, "advice": "Ask the owner",
}  # fmt: skip
FRESH = DEAD | {
    "account": "p/a",
    "state": "fresh",
    "error": "",
    "message": "",
    "next_ms": LATER_MS,
    "advice": "",
}
DOWN = {
    "total": 2, "fresh": 1, "expiring": 0, "late": 0, "failing": 0, "stopped": 2, "dead": 1, "lost_rotation": 0, "state": "silent",
    "since_ms": AT_MS, "next_ms": AT_MS + 5000, "error": "refused", "message": "no connection: Connection refused",
    "advice": "See whether it is up",
}  # fmt: skip


def test_list_goes_on_until_it_has_enough(run: Run, node: Any) -> None:
    pages = iter([[[DEAD], "c1"], [[], "c2"]])
    node.answers = {"T.LIST": lambda request: next(pages, [[FRESH], "c3"])}
    result = run("token", "list", "--provider", "p", "--count", "2")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["p/a", "fresh", "11-14", "22:13:20", "-", "01-01", "00:00:00", "2", "-"] in lines
    assert [
        "p/b",
        "dead",
        "11-14",
        "22:13:20",
        "-",
        "-",
        "2",
        "HTTP",
        "400",
        "invalid_grant",
    ] in lines
    assert result.stdout.index("p/a") < result.stdout.index("p/b")
    assert "more: --after c3" in result.stdout
    told, more = result.stderr.splitlines()
    assert told == "1 of p dead: Ask the owner."
    assert "tidewarden token why PROVIDER/ACCOUNT" in more
    assert node.asked == [
        ["T.LIST", "PROVIDER", "p", "COUNT", "2"],
        ["T.LIST", "PROVIDER", "p", "AFTER", "c1", "COUNT", "1"],
        ["T.LIST", "PROVIDER", "p", "AFTER", "c2", "COUNT", "1"],
    ]


def test_list_of_nobody_says_so(run: Run, node: Any) -> None:
    node.answers = {"T.LIST": [[], ""]}
    assert (run("token", "list").stdout, run("token", "list", "--state", "dead").stderr) == (
        "",
        "No account is so.\n",
    )
    assert "token import FILE" in run("token", "list").stderr
    assert json.loads(run("token", "list", "--json").stdout) == {"accounts": [], "after": ""}


def test_stats_tell_how_many_consents_end_soon(run: Run, node: Any) -> None:
    counts = {"total": 9, "consents_1d": 1, "consents_7d": 20, "consents_30d": 1300}
    node.answers = {"T.STATS": {"p": counts, "q": counts | {"consents_30d": 0}}}
    text = run("token", "stats").stdout
    assert "p: consents end of 1,300 within 30 days, 20 within 7 days, 1 within a day." in text
    assert "q: consents" not in text


def test_show_tells_what_is_known_of_an_account_beside_its_tokens(run: Run, node: Any) -> None:
    known = {
        "consent_expires_ms": 1_700_000_000_000, "consent_moves": True, "parameters": {"shop": "a", "dc": "eu"},
        "extras": {"instance_url": "https://x"},
    }  # fmt: skip
    node.answers = {"T.PEEK": DEAD | known, "T.STATS": {}}
    text = run("token", "show", "p/b").stdout
    for line in (
        "consent       ends 2023-11-14 22:13:20 UTC, later with each refresh",
        "parameters    dc = eu, shop = a",
        "extras        instance_url = https://x",
    ):
        assert line in text


def test_show_tells_of_one_account_and_its_provider(run: Run, node: Any) -> None:
    node.answers = {
        "T.PEEK": DEAD | {"access_token": False, "scope": "mail"},
        "T.STATS": {"p": DOWN},
    }
    text = run("token", "show", "p/b").stdout
    for line in (
        "state         dead since 2023-11-14 22:13:20 UTC",
        "why           HTTP 400 invalid_grant",
        "next try      none by itself",
        "access token  none yet",
        "provider      silent since 2023-11-14 22:13:20: no connection: Connection refused",
        "what to do    Ask the owner",
    ):
        assert line in text
    assert json.loads(run("token", "show", "p/b", "--json").stdout)["advice"] == "Ask the owner"
    assert node.asked[0] == ["T.PEEK", "p/b"]


def test_answers_shows_what_nobody_could_read(run: Run, node: Any) -> None:
    one = {
        "node": "n1",
        "at_ms": AT_MS,
        "grant": 1,
        "generation": 4,
        "current": True,
        "body": '<p>{"refresh_token": "r"}',
    }
    node.answers = {
        "T.ANSWERS": {"answers": [one, one | {"current": False, "body": b"\xff"}], "silent": ["n2"]}
    }
    result = run("token", "answers", "p/b")
    assert (result.exit_code, result.stdout) == (0, '<p>{"refresh_token": "r"}\n\\xff\n')
    assert (
        "2023-11-14 22:13:20 UTC, kept by n1, to generation 4; nothing was stored since:"
        in result.stderr
    )
    assert "another grant or pair was stored since" in result.stderr
    assert "not asked, for they do not answer: n2" in result.stderr
    assert json.loads(run("token", "answers", "p/b", "--json").stdout)["answers"][0] == one
    node.answers = {"T.ANSWERS": {"answers": [], "silent": []}}
    assert run("token", "answers", "p/b").exit_code == 5


def test_stats_count_and_tell_how_each_provider_stands(run: Run, node: Any) -> None:
    node.answers = {"T.STATS": {"p": DOWN, "q": {"total": 0, "state": "answers"}}}
    result = run("token", "stats")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "p 2 1 0 0 0 2 1 0 silent 11-14 22:13:20 due" in lines
    assert "q 0 0 0 0 0 0 0 0 answers - -" in lines
    assert "p: no connection: Connection refused. See whether it is up." in lines
    assert lines[-1] == "Why, and what comes next: tidewarden token why p"
    assert json.loads(run("token", "stats", "--json").stdout)["p"] == DOWN


def test_stats_name_who_is_in_quarantine(run: Run, node: Any) -> None:
    quarantined = {"total": 9, "state": "answers", "since_ms": 0, "quarantined_since_ms": AT_MS}
    both = DOWN | {"state": "limiting", "quarantined_since_ms": AT_MS}
    node.answers = {"T.STATS": {"p": quarantined, "q": both, "r": {"total": 1, "state": "answers"}}}
    lines = [" ".join(line.split()) for line in run("token", "stats").stdout.splitlines()]
    assert "p 9 0 0 0 0 0 0 0 quarantined 11-14 22:13:20 -" in lines
    assert "q 2 1 0 0 0 2 1 0 limiting, quarantined 11-14 22:13:20 due" in lines
    assert "p is in quarantine: no refusal counts, and nobody is given up." in lines
    assert lines[-1] == "Why, and what comes next: tidewarden token why p, tidewarden token why q"


def test_get_prints_the_access_token_alone(run: Run, node: Any) -> None:
    node.answers = {"T.GET": ["at-1", "Bearer", 1_700_000_000_000, 3, "fresh"]}
    assert run("token", "get", "p/a", "--min-ttl-ms", "5").stdout == "at-1\n"
    assert node.asked == [["T.GET", "p/a", "MINTTL", "5", "WAIT", "10000"]]
    found = json.loads(run("token", "get", "p/a", "--json").stdout)
    assert (found["account"], found["generation"], found["state"]) == ("p/a", 3, "fresh")


def test_verbs_ask_what_they_say(run: Run, node: Any) -> None:
    node.answers = {"T.REFRESH": "OK", "T.DELETE": 1}
    for words, out in (
        (
            "refresh p/a",
            "p/a is asked for. What comes of it: tidewarden token why p/a\n",
        ),
        ("refresh p/a p/b", "2 queued\n"),
        ("delete p/a", "OK\n"),
    ):
        node.asked.clear()
        result = run("token", *words.split())
        assert (result.exit_code, result.stdout) == (0, out)
        verb, *names = words.split()
        assert node.asked == [[f"T.{verb.upper()}", name] for name in names]
        json.loads(run("token", *words.split(), "--json").stdout)


@pytest.mark.parametrize("words", ["refresh", "refresh p/a --state dead", "delete"])
def test_verbs_without_knowing_of_whom_do_nothing(run: Run, node: Any, words: str) -> None:
    assert run("token", *words.split()).exit_code == 2
    assert not node.asked


def test_delete_names_who_was_not_there(run: Run, node: Any) -> None:
    node.answers = {"T.DELETE": lambda request: int(request[1] == b"p/a")}
    result = run("token", "delete", "p/a", "p/b")
    assert (result.exit_code, result.stdout) == (5, "1 deleted, 1 absent\n")
    assert "there is no account 'p/b'" in result.stderr


def test_a_link_to_a_consent_is_printed(run: Run, node: Any) -> None:
    url = "https://auth.example.com/v1/connect/p/a?link=x"
    node.answers = {"T.CONNECT": url}
    assert run("token", "connect", "p/a").stdout == f"{url}\n"
    more = ("--return", "https://app.example.com/", "--scope", "a b", "--parameter", "shop=x=y")
    told = json.loads(run("token", "connect", "p/a", *more, "--json").stdout)
    assert told == {"account": "p/a", "url": url}
    asked = ["RETURN", "https://app.example.com/", "SCOPE", "a b"]
    assert node.asked == [
        ["T.CONNECT", "p/a"],
        ["T.CONNECT", "p/a", *asked, "PARAMETERS", '{"shop": "x=y"}'],
    ]
    wrong = run("token", "connect", "p/a", "--parameter", "shop")
    assert (wrong.exit_code, "'shop' is not of the form NAME=VALUE" in wrong.stderr) == (2, True)


def test_a_code_for_another_device_is_printed(run: Run, node: Any) -> None:
    codes = {"user_code": "WDJB-MJHT", "verification_uri": "https://p/d", "until_ms": LATER_MS}
    node.answers = {"T.DEVICE": codes}
    lines = run("token", "connect", "p/a", "--device", "--scope", "a").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["user_code", "WDJB-MJHT"],
        ["verification_uri", "https://p/d"],
        ["until_ms", "2100-01-01", "00:00:00"],
    ]
    told = json.loads(run("token", "connect", "p/a", "--device", "--json").stdout)
    assert told == {"account": "p/a"} | codes
    assert node.asked == [["T.DEVICE", "p/a", "SCOPE", "a"], ["T.DEVICE", "p/a"]]
    wrong = run("token", "connect", "p/a", "--device", "--return", "https://a/")
    assert (wrong.exit_code, "--return is for a link" in wrong.stderr) == (2, True)


def test_presets_are_listed_with_their_sources(run: Run) -> None:
    listed = json.loads(run("token", "presets", "--json").stdout)
    google = next(one for one in listed if one["name"] == "google")
    assert google["settings"]["rotation"] == "none"
    assert google["source"].startswith("https://developers.google.com/")
    shown = run("token", "presets")
    assert shown.exit_code == 0
    assert "github" in shown.stdout


@pytest.mark.parametrize("words", [("get",), ("show",), ("refresh",), ("list", "--provider")])
def test_a_word_of_the_shells_that_is_no_utf_8_is_a_wrong_argument(
    run: Run, node: Any, words: tuple[str, ...]
) -> None:
    result = run("token", *words, "p\udcff/a")
    assert (result.exit_code, node.asked) == (2, [])
    assert result.stderr == "tidewarden: an argument is no UTF-8 text\n"
