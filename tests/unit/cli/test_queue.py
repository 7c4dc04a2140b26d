"""The command line's verbs for queues, tasks and schedules: each asks the node what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.doors.command_line import Run, node, run

from tidewarden.errors import NotFound, StoreDown

__all__ = ["node", "run"]  # fixtures


def test_put_passes_every_option_on(run: Run, node: Any) -> None:
    node.answers = {"Q.PUT": b"id-1"}
    words = (
        "--id id-1 --delay-ms 5 --within-ms 9 --priority 0 --lease-ms 7 --attempts 3 --backoff-ms 0"
        " --lane t-7 --if-exists fail"
    )
    assert run("queue", "put", "mails", "é", *words.split()).stdout == "id-1\n"
    asked = (
        "ID id-1 DELAY 5 WITHIN 9 PRIORITY 0 LEASE 7 ATTEMPTS 3 BACKOFF 0 LANE t-7 IFEXISTS fail"
    )
    assert node.asked == [["Q.PUT", "mails", "é", *asked.split()]]
    run("queue", "put", "mails", "-", stdin=b"\x00\xff\n")
    assert node.asked[1] == ["Q.PUT", "mails", "\x00\\xff\n"]
    assert run("queue", "put", "mails", "x", "--priority", "100").exit_code == 2
    assert run("queue", "put", "mails", "x", "--jsn").exit_code == 2


def test_take_hands_back_what_it_does_not_acknowledge(run: Run, node: Any) -> None:
    task = [b"q", b"t1", 68_719_476_737, b"\x1b[31m\xff", 1, 5, 9]
    node.answers = {"Q.TAKE": [task], "Q.RELEASE": "OK", "Q.ACK": "OK"}
    assert run("queue", "take", "q", "--wait-ms", "10").stdout == "t1  \\x1b[31m\\xff\n"
    assert node.asked == [
        ["Q.TAKE", "COUNT", "1", "WAIT", "10", "FROM", "q"],
        ["Q.RELEASE", "q", "t1", "68719476737"],
    ]
    node.asked.clear()
    taken = json.loads(run("queue", "take", "q", "--ack", "--json").stdout)
    assert taken["payload"] == {"base64": "G1szMW3/"}
    assert node.asked[1] == ["Q.ACK", "q", "t1", "68719476737"]


def test_take_without_tasks_is_exit_code_5(run: Run, node: Any) -> None:
    node.answers = {"Q.TAKE": []}
    assert run("queue", "take", "q").exit_code == 5


def test_take_reports_what_it_lost_before_its_ack(run: Run, node: Any) -> None:
    node.answers = {
        "Q.TAKE": [["q", "t1", 1, "a", 1, 5, 9], ["q", "t2", 2, "b", 1, 5, 9]],
        "Q.ACK": [1, 0],
    }
    assert "t2: the lease had ended" in run("queue", "take", "q", "--count", "2", "--ack").stderr


@pytest.mark.parametrize(
    ("words", "asked", "answer", "out"),
    [
        ("queue stats", "Q.STATS", {"mails": {"ready": 3}}, "mails:\n  ready  3\n"),
        ("queue stats q", "Q.STATS q", {"ready": 3, "paused": False}, "ready   3\npaused  no\n"),
        ("queue peek q t", "Q.PEEK q t", {"id": "t", "reason": None}, "id      t\nreason  -\n"),
        ("queue kick q --count 3 --reason no", "Q.KICK q COUNT 3 REASON no", 2, "2\n"),
        ("queue kick q --all --age-ms 9", "Q.KICK q ALL AGE 9", 3, "3\n"),
        ("queue kick q --count 3 --reason-is no", "Q.KICK q COUNT 3 REASONIS no", 2, "2\n"),
        ("queue kick q --id t --payload p", "Q.KICK q ID t PAYLOAD p", 1, "1\n"),
        (
            "queue purge q --state buried --reason-is no --yes",
            "Q.PURGE q STATE buried REASONIS no",
            3,
            "3\n",
        ),
        ("queue link t q", "Q.LINK t q", 1, "1\n"),
        ("queue link t q --expire-ms 9 --capacity 7", "Q.LINK t q EXPIRE 9 CAPACITY 7", 1, "1\n"),
        ("queue unlink t q", "Q.UNLINK t q", 0, "0\n"),
        ("queue list --topics", "Q.LIST TOPICS", {"t": ["q", "r"]}, "t  q, r\n"),
        (
            "queue stats q --shards",
            "Q.STATS q SHARDS",
            {"by_shard": [{"shard": 0}]},
            "by_shard  shard=0\n",
        ),
        ("queue kick q --id t", "Q.KICK q ID t", 1, "1\n"),
        ("queue purge q --yes", "Q.PURGE q", 3, "3\n"),
        ("queue purge q --state ready --yes", "Q.PURGE q STATE ready", 4, "4\n"),
        ("queue release-all q", "Q.RELEASEALL q", 5, "5\n"),
        ("queue release-all q --holder n0.4", "Q.RELEASEALL q HOLDER n0.4", 1, "1\n"),
        ("consumer end --user u --name w --yes", "CLIENT KILL USER u NAME w", 2, "2\n"),
        ("consumer end --client n0:7 --yes", "CLIENT KILL ID 7 NODE n0", 1, "1\n"),
        (
            "consumer end-session x --yes",
            "SESSION END x",
            {"session": "x", "released": 3, "unreachable": []},
            "3\n",
        ),
        ("queue drop q --yes", "Q.DROP q", 0, "0\n"),
        ("queue drop q --force --yes", "Q.DROP q FORCE", 7, "7\n"),
        ("queue drop-topic t", "Q.DROPTOPIC t", 2, "2\n"),
        ("queue move dead q --count 9", "Q.MOVE dead COUNT 9 TO q", 6, "6\n"),
        ("queue move dead q --all --reason x", "Q.MOVE dead ALL REASON x TO q", 6, "6\n"),
        ("queue delete q t --force", "Q.DELETE q t FORCE", 1, ""),
        ("queue pause q --ms 5", "Q.PAUSE q MS 5", "OK", "OK\n"),
        ("queue resume q", "Q.RESUME q", "OK", "OK\n"),
        ("queue config q", "Q.CONFIG q", {"lease_ms": 5}, "lease_ms  5\n"),
        ("schedule delete s", "S.DELETE s", 1, "OK\n"),
        ("schedule pause s", "S.PAUSE s", "OK", "OK\n"),
        ("schedule run s", "S.RUN s", "s:run:5", "s:run:5\n"),
        ("schedule run s --id r1", "S.RUN s ID r1", "s:run:r1", "s:run:r1\n"),
        (
            "schedule resume s",
            "S.RESUME s",
            1_700_000_000_000,
            "OK, next at 2023-11-14 22:13:20 UTC\n",
        ),
        (
            "schedule put s q p --every-ms 9",
            "S.PUT s EVERY 9 q p",
            1_700_000_000_000,
            "OK, next at 2023-11-14 22:13:20 UTC\n",
        ),
        (
            "schedule put s q p --at-ms 9 --catchup all",
            "S.PUT s AT 9 CATCHUP all q p",
            "OK",
            "OK\n",
        ),
    ],
)
def test_verbs_ask_what_they_say(
    run: Run, node: Any, words: str, asked: str, answer: Any, out: str
) -> None:
    verb = asked.split()[0]
    node.answers = {verb: answer}
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (0, out)
    assert node.asked == [asked.split()]
    result = run(*words.split(), "--json")
    assert result.exit_code == 0
    json.loads(result.stdout)


def test_a_cron_schedule_with_options(run: Run, node: Any) -> None:
    node.answers = {"S.PUT": "OK"}
    words = (
        "--cron",
        "30 2 * * 1-5",
        "--tz",
        "Europe/Berlin",
        "--priority",
        "5",
        "--within-ms",
        "60",
    )
    run("schedule", "put", "s", "q", "p", *words)
    expected = [
        "S.PUT",
        "s",
        "CRON",
        "30 2 * * 1-5",
        "TZ",
        "Europe/Berlin",
        "q",
        "p",
        "PRIORITY",
        "5",
        "WITHIN",
        "60",
    ]
    assert node.asked == [expected]


@pytest.mark.parametrize(
    "words",
    [
        "schedule put s q p",
        "schedule put s q p --every-ms 5 --at-ms 5",
        "schedule put s q p --every-ms 5 --tz UTC",
        "queue peek q",
        "queue peek q t --state ready",
        "queue kick q",
        "queue kick q --count 1 --id t",
        "queue kick q --all --id t",
        "queue kick q --all --payload p",
        "queue kick q --id t --reason-is no",
        "queue purge q --state buried --reason= --yes",
        "queue kick q --id t --payload p --age-ms 9",
        "queue purge q --reason no --yes",
        "queue purge q --state ready --count 1 --yes",
        "queue peek q t --match x",
        "queue move dead q",
        "queue move dead q --all --count 1",
        "queue stats --shards",
        "queue config q nonsense",
        "queue take q --count 0",
        "token import absent.csv --provider p",
        "nonsense",
    ],
)
def test_wrong_usage_is_exit_code_2_and_asks_nothing(run: Run, node: Any, words: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert result.stderr
    assert not node.asked


@pytest.mark.parametrize("words", ["queue delete q t", "schedule delete s", "token delete p/a"])
def test_deleting_nothing_is_exit_code_5(run: Run, node: Any, words: str) -> None:
    node.answers = {"Q.DELETE": 0, "S.DELETE": 0, "T.DELETE": 0}
    assert run(*words.split()).exit_code == 5


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pausing_nothing_is_exit_code_5(run: Run, node: Any, verb: str) -> None:
    node.answers = {f"S.{verb.upper()}": NotFound("there is no schedule 's'")}
    result = run("schedule", verb, "s")
    assert (result.exit_code, result.stdout) == (5, "")
    node.answers = {f"S.{verb.upper()}": StoreDown("away")}
    assert run("schedule", verb, "s").exit_code == 1


def test_an_empty_page_is_nothing_to_show(run: Run, node: Any) -> None:
    node.answers = {"Q.PEEK": [[], ""]}
    result = run("queue", "peek", "q", "--state", "buried")
    assert (result.exit_code, result.stderr) == (5, "tidewarden: no task of q is buried\n")
    assert run("queue", "peek", "q", "--state", "buried", "--json").exit_code == 0


def test_a_page_of_tasks_ends_with_its_cursor(run: Run, node: Any) -> None:
    node.answers = {"Q.PEEK": [[{"id": "t1", "reason": "x"}, {"id": "t2"}], "cursor-7"]}
    result = run("queue", "peek", "q", "--state", "buried", "--count", "2", "--after", "c")
    assert node.asked == [["Q.PEEK", "q", "STATE", "buried", "COUNT", "2", "AFTER", "c"]]
    assert "t2" in result.stdout
    assert "more: --after cursor-7" in result.stdout


def test_a_search_says_how_far_it_looked(run: Run, node: Any) -> None:
    told = {"looked": 1000, "unread": 2}
    node.answers = {"Q.PEEK": [[{"id": "t1"}], "cursor-7", told]}
    words = ("--match", "*x*", "--match-in", "id", "--where", "$.a=1")
    result = run("queue", "peek", "q", "--state", "buried", *words)
    asked = ["Q.PEEK", "q", "STATE", "buried", "COUNT", "20"]
    assert node.asked == [[*asked, "MATCH", "*x*", "IN", "id", "WHERE", "$.a=1"]]
    assert "looked at 1000 tasks, 2 of them too long for --where" in result.stdout
    assert "more: --after cursor-7" in result.stdout
    whole = json.loads(run("queue", "peek", "q", "--state", "buried", *words, "--json").stdout)
    assert whole == {"tasks": [{"id": "t1"}], "after": "cursor-7", **told}
    node.answers = {"Q.PEEK": [[], "", {"looked": 3, "unread": 0}]}
    result = run("queue", "peek", "q", "--state", "buried", "--match", "x")
    assert (result.exit_code, result.stderr) == (5, "tidewarden: no task of q is buried and fits\n")


def test_queue_config_sets_then_shows(run: Run, node: Any) -> None:
    node.answers = {"Q.CONFIG": lambda request: "OK" if len(request) > 2 else {"lease_ms": 5}}
    assert run("queue", "config", "q", "lease_ms=5", "order=edf").stdout == "lease_ms  5\n"
    assert node.asked == [
        ["Q.CONFIG", "q", "SET", "lease_ms", "5", "order", "edf"],
        ["Q.CONFIG", "q"],
    ]


def test_schedules_are_listed(run: Run, node: Any) -> None:
    beat = {"name": "s", "queue": "q", "kind": "every", "every_ms": 9, "next_ms": 1_700_000_000_000}
    node.answers = {
        "S.LIST": [
            beat,
            {"name": "c", "queue": "q", "kind": "cron", "expr": "@daily", "zone": "Asia/Tokyo"},
        ]
    }
    out = run("schedule", "list").stdout
    assert all(
        text in out for text in ("every 9 ms", "2023-11-14 22:13:20", "@daily", "Asia/Tokyo")
    )
    node.answers = {"S.LIST": []}
    assert run("schedule", "list").exit_code == 5
    assert run("schedule", "list", "--json").stdout == "[]\n"


def test_a_schedule_is_shown_with_its_last_run_and_its_next(run: Run, node: Any) -> None:
    last = {"id": "s:5", "put_ms": 1_700_000_000_000, "state": "buried", "reason": "550 no"}
    one = {"name": "s", "queue": "q", "next_ms": 1_700_000_060_000, "last": last}
    node.answers = {"S.GET": one | {"next": [1_700_000_060_000, 1_700_000_120_000]}}
    out = run("schedule", "show", "s", "--next", "2").stdout
    assert node.asked == [["S.GET", "s", "COUNT", "2"]]
    assert "2023-11-14 22:13:20 buried: 550 no" in out
    assert out.count("next run  2023-11-14 22:1") == 2
    assert json.loads(run("schedule", "show", "s", "--json").stdout)["last"] == last
    node.answers = {"S.LIST": [one | {"last": last | {"state": "done", "reason": ""}}]}
    assert "2023-11-14 22:13:20 done" in run("schedule", "list").stdout
    node.answers = {"S.GET": NotFound("there is no schedule 's'")}
    assert run("schedule", "show", "s").exit_code == 5


def test_what_schedules_will_put_is_shown(run: Run, node: Any) -> None:
    told: dict[str, Any] = {
        "from_ms": 1, "until_ms": 1_700_000_000_000, "resting": 2, "more": True,
        "ticks": [{"name": "nightly", "queue": "q", "at_ms": 1_700_000_000_000}],
        "rates": [{"name": "pulse", "queue": "q", "next_ms": 1_700_000_000_000, "per_day": 86400}],
    }  # fmt: skip
    node.answers = {"S.NEXT": told}
    out = run("schedule", "next", "--hours", "8").stdout
    assert node.asked == [["S.NEXT", "MS", "28800000"]]
    for text in ("nightly", "pulse", "86400", "there is more after 2023-11-14 22:13:20 UTC"):
        assert text in out
    assert "paused, stuck or unreadable: 2" in out
    assert json.loads(run("schedule", "next", "--json").stdout) == told
    node.answers = {"S.NEXT": told | {"ticks": [], "rates": []}}
    assert run("schedule", "next").exit_code == 5


def test_consumers_and_holders_are_shown_page_by_page(run: Run, node: Any) -> None:
    lease: dict[str, Any] = {"id": "a", "user": "bob", "name": "w", "host": "h", "session": ""}
    lease |= {"holder": "n0.4", "since_ms": 1_700_000_000_000, "lease_end_ms": 0, "address": ""}
    away = [{"node": "n1", "why": "it has not answered"}]
    pages = {
        "Q.HOLDERS": [
            {"holders": [lease], "after": "x", "unreachable": away},
            {"holders": [lease | {"id": "b"}], "after": "", "unreachable": []},
        ]
    }
    node.answers = {"Q.HOLDERS": lambda _: pages["Q.HOLDERS"].pop(0)}
    result = run("queue", "holders", "q")
    assert "2023-11-14 22:13:20" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines() if "bob" in line] == ["a", "b"]
    assert "n1 does not answer: it has not answered" in result.stderr
    assert node.asked == [["Q.HOLDERS", "q"], ["Q.HOLDERS", "q", "AFTER", "x"]]
    node.answers = {"Q.HOLDERS": {"holders": [], "after": "", "unreachable": away}}
    assert run("queue", "holders", "q", "--id", "t").exit_code == 5
    held = [{"queue": "q", "tasks": 3, "since_ms": 1_700_000_000_000, "lease_end_ms": 0}]
    one = {"id": "n0:7", "user": "bob", "name": "", "address": "1.2.3.4:5", "door": "resp"}
    one |= {"host": "h", "pid": "9", "holds": held, "waits": ["q", "r"], "settled": 12}
    node.answers = {"R.CONSUMERS": {"consumers": [one], "after": "", "unreachable": []}}
    shown = run("consumers", "--queue", "q", "--user", "bob")
    assert "n0:7" in shown.stdout
    assert "1.2.3.4:5" in shown.stdout
    assert "q 3" in shown.stdout
    assert "q, r" in shown.stdout
    assert node.asked[-1] == [
        "R.CONSUMERS",
        "NODE",
        "all",
        "COUNT",
        "500",
        "QUEUE",
        "q",
        "USER",
        "bob",
    ]
    assert json.loads(run("consumers", "--json").stdout)["consumers"] == [one]
    node.answers = {"R.CONSUMERS": {"consumers": [], "after": "", "unreachable": []}}
    assert run("consumers").exit_code == 5


def test_consumers_are_ended_by_name_and_on_purpose(run: Run, node: Any) -> None:
    for wrong in ("", "--client 7", "--client n0:x"):
        assert run("consumer", "end", *wrong.split(), "--yes").exit_code == 2
    assert run("consumer", "end", "--user", "u", stdin="n\n").exit_code == 5
    assert run("consumer", "end-session", "x", stdin="n\n").exit_code == 5
    assert node.asked == []
    away = {"session": "x", "released": 1, "unreachable": [{"node": "n1", "why": "gone"}]}
    node.answers = {"SESSION": away}
    result = run("consumer", "end-session", "x", "--yes")
    assert (result.exit_code, "n1 does not answer: gone" in result.stderr) == (1, True)
