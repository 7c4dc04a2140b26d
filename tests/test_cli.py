"""The command line: what each verb asks of a node, what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recording_node
from typer.testing import CliRunner, Result

import tidewarden
from tidewarden import errors
from tidewarden.cli import app
from tidewarden.cli.connection import addresses, shown
from tidewarden.cli.output import cell
from tidewarden.config import check_secret

pytestmark = pytest.mark.live


Run = Callable[..., Result]
STATUS = {
    "node": "n0",
    "role": "leader",
    "leader": "n0",
    "epoch": 7,
    "view": 1,
    "primary": "-",
    "quorum": True,
    "pid": 1,
}
VERBS = (
    "up node status doctor sandbox version worker",
    "queue list stats put take peek kick delete purge release-all move pause resume config",
    "token import get list refresh delete stats",
    "schedule put list delete",
    "lock run list show release",
)


@pytest.fixture
def node() -> Iterator[Any]:
    with recording_node.running() as node:
        yield node


@pytest.fixture
def run(node: Any, tmp_path: Path) -> Run:
    """Runs a verb against ``node``, in an empty folder."""

    def runner(*words: str, stdin: str | bytes = b"", url: bool = True) -> Result:
        environ = {"TIDEWARDEN_URL": node.url if url else "", "COLUMNS": "200", "TERM": "dumb"}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            return CliRunner().invoke(app, words, input=stdin, env=environ)

    return runner


def help_cases() -> list[list[str]]:
    cases: list[list[str]] = [[]]
    for line in VERBS:
        first, *rest = line.split()
        cases += [[first], [first, *rest[:0]], *([first, verb] for verb in rest)] if first != "up" else []
    return cases + [[verb] for verb in VERBS[0].split()]


@pytest.mark.parametrize("words", help_cases(), ids=" ".join)
def test_help_teaches_every_verb(run: Run, words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    if len(words) == 2 or (words and words[0] in VERBS[0].split()):
        assert "Example" in result.stdout
        assert "--json" in result.stdout
        assert "tidewarden" in result.stdout


def test_help_lists_every_verb_and_the_exit_codes(run: Run) -> None:
    out = run("--help").stdout
    assert all(verb in out for verb in (*VERBS[0].split(), "queue", "token", "schedule", "lock"))
    assert "3 no node can be reached" in " ".join(out.split())


def test_version_names_the_three(run: Run) -> None:
    assert f"tidewarden {tidewarden.__version__}" in run("version").stdout
    assert json.loads(run("version", "--json").stdout).keys() == {"tidewarden", "python", "valkey-server"}


def test_the_module_runs_as_the_command_does() -> None:
    out = subprocess.run([sys.executable, "-m", "tidewarden", "version"], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("tidewarden ")


def test_node_check_says_good_or_names_every_problem(run: Run, tmp_path: Path) -> None:
    assert "good. Node n0 at 127.0.0.1:7420" in run("node", "--check", "--set", "log.level=debug").stdout
    (tmp_path / "c.toml").write_text("[node]\nbase_prt = 1\n[raft]\npace = 0\n")
    result = run("node", "--config", "c.toml", "--check")
    assert result.exit_code == 4
    assert "the configuration has 2 problems" in result.stderr
    assert "c.toml:2: unknown setting node.base_prt; did you mean 'base_port'?" in result.stderr
    result = run("node", "--config", "c.toml", "--check", "--json")
    assert result.exit_code == 4
    assert len(json.loads(result.stdout)["problems"]) == 2
    assert json.loads(run("node", "--check", "--json").stdout)["ok"] is True


def test_node_refuses_a_wrong_configuration_without_check_too(run: Run) -> None:
    assert run("node", "--set", "node.name=a.b").exit_code == 4
    assert run("node", "--set", "nonsense").exit_code == 2
    assert run("node", "--config", "absent.toml").exit_code == 4


def test_node_hashes_a_secret_that_is_typed(run: Run) -> None:
    result = run("node", "--hash-secret", stdin="hunter2\n")
    assert check_secret("hunter2", result.stdout.strip().splitlines()[-1])


def test_status_shows_each_node_that_answers(run: Run, node: Any) -> None:
    node.answers = {"R.STATUS": STATUS}
    out = run("status").stdout
    assert "leader" in out
    assert "127.0.0.1" in out
    assert json.loads(run("status", "--json").stdout)["nodes"][0]["epoch"] == 7
    node.answers = {"R.STATUS": errors.Draining("going down")}
    assert run("status").exit_code == 1


def test_nobody_there_is_exit_code_3(run: Run, node: Any) -> None:
    for words in (("status",), ("queue", "list")):
        result = run(*words, "--url", "redis://admin:hunter2@127.0.0.1:1")
        assert result.exit_code == 3
        assert "hunter2" not in result.stderr
        assert "127.0.0.1:1" in result.stderr


def test_a_wrong_address_is_exit_code_2(run: Run) -> None:
    result = run("queue", "list", "--url", "http://x")
    assert result.exit_code == 2
    assert "allowed: redis://" in result.stderr


def test_a_refusal_is_exit_code_1_in_the_words_of_the_node(run: Run, node: Any) -> None:
    node.answers = {"Q.STATS": errors.NotFound("There is no queue 'x'."), "Q.LIST": errors.NoAuth("Say who you are.")}
    result = run("queue", "stats", "x")
    assert (result.exit_code, result.stderr) == (1, "tidewarden: refused: NOTFOUND There is no queue 'x'.\n")
    assert "not authenticated: Say who you are." in run("queue", "list").stderr


def test_a_line_that_breaks_says_that_it_may_have_happened(run: Run, node: Any) -> None:
    node.answers = {"Q.PUT": None}
    result = run("queue", "put", "q", "x")
    assert result.exit_code == 3
    assert "may or may not have happened" in result.stderr
    assert len(node.asked) == 1


def test_without_url_the_local_cluster_is_asked_with_its_secret(run: Run, node: Any, tmp_path: Path) -> None:
    data = tmp_path / "tidewarden-data"
    (data / "secrets").mkdir(parents=True)
    (data / "secrets" / "admin.secret").write_text("s%t:/\n")
    for number, port in ((0, 1), (1, node.server_address[1]), (10, 2)):
        (data / f"n{number}").mkdir()
        (data / f"n{number}" / "node.toml").write_text(f"[node]\nbase_port = {port}\n")
    (data / "n2").mkdir()
    (data / "n2" / "node.toml").write_text("damaged")
    found = addresses("", data)
    assert [address.rpartition(":")[2] for address in found] == ["1", str(node.server_address[1]), "2"]
    assert found[0] == "redis://admin:s%25t%3A%2F@127.0.0.1:1"
    node.answers = {"Q.LIST": ["mails"]}
    assert run("queue", "list", url=False).stdout == "mails\n"
    assert node.users == [[b"admin", b"s%t:/"]]
    assert addresses("", tmp_path / "nothing") == ["redis://127.0.0.1:7420"]
    assert addresses("redis://h", data) == ["redis://h"]


def test_put_passes_every_option_on(run: Run, node: Any) -> None:
    node.answers = {"Q.PUT": b"id-1"}
    words = "--id id-1 --delay-ms 5 --within-ms 9 --priority 0 --lease-ms 7 --attempts 3 --backoff-ms 0 --lane t-7 --if-exists fail"
    assert run("queue", "put", "mails", "é", *words.split()).stdout == "id-1\n"
    asked = "ID id-1 DELAY 5 WITHIN 9 PRIORITY 0 LEASE 7 ATTEMPTS 3 BACKOFF 0 LANE t-7 IFEXISTS fail"
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
    node.answers = {"Q.TAKE": [["q", "t1", 1, "a", 1, 5, 9], ["q", "t2", 2, "b", 1, 5, 9]], "Q.ACK": [1, 0]}
    assert "t2: the lease had ended" in run("queue", "take", "q", "--count", "2", "--ack").stderr


@pytest.mark.parametrize(
    ("words", "asked", "answer", "out"),
    [
        ("queue stats", "Q.STATS", {"mails": {"ready": 3}}, "mails:\n  ready  3\n"),
        ("queue stats q", "Q.STATS q", {"ready": 3, "paused": False}, "ready   3\npaused  no\n"),
        ("queue peek q t", "Q.PEEK q t", {"id": "t", "reason": None}, "id      t\nreason  -\n"),
        ("queue kick q --count 3 --reason no", "Q.KICK q COUNT 3 REASON no", 2, "2\n"),
        ("queue kick q --all --age-ms 9", "Q.KICK q ALL AGE 9", 3, "3\n"),
        ("queue link t q", "Q.LINK t q", 1, "1\n"),
        ("queue unlink t q", "Q.UNLINK t q", 0, "0\n"),
        ("queue list --topics", "Q.LIST TOPICS", {"t": ["q", "r"]}, "t  q, r\n"),
        ("queue stats q --shards", "Q.STATS q SHARDS", {"by_shard": [{"shard": 0}]}, "by_shard  shard=0\n"),
        ("queue kick q --id t", "Q.KICK q ID t", 1, "1\n"),
        ("queue purge q --yes", "Q.PURGE q", 3, "3\n"),
        ("queue purge q --state ready --yes", "Q.PURGE q STATE ready", 4, "4\n"),
        ("queue release-all q", "Q.RELEASEALL q", 5, "5\n"),
        ("queue move dead q --count 9", "Q.MOVE dead COUNT 9 TO q", 6, "6\n"),
        ("queue move dead q --all --reason x", "Q.MOVE dead ALL REASON x TO q", 6, "6\n"),
        ("queue delete q t --force", "Q.DELETE q t FORCE", 1, ""),
        ("queue pause q --ms 5", "Q.PAUSE q MS 5", "OK", "OK\n"),
        ("queue resume q", "Q.RESUME q", "OK", "OK\n"),
        ("queue config q", "Q.CONFIG q", {"lease_ms": 5}, "lease_ms  5\n"),
        ("schedule delete s", "S.DELETE s", 1, "OK\n"),
        (
            "schedule put s q p --every-ms 9",
            "S.PUT s EVERY 9 q p",
            1_700_000_000_000,
            "OK, next at 2023-11-14 22:13:20 UTC\n",
        ),
        ("schedule put s q p --at-ms 9 --catchup all", "S.PUT s AT 9 CATCHUP all q p", "OK", "OK\n"),
    ],
)
def test_verbs_ask_what_they_say(run: Run, node: Any, words: str, asked: str, answer: Any, out: str) -> None:
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
    words = ("--cron", "30 2 * * 1-5", "--tz", "Europe/Berlin", "--priority", "5", "--within-ms", "60")
    run("schedule", "put", "s", "q", "p", *words)
    expected = ["S.PUT", "s", "CRON", "30 2 * * 1-5", "TZ", "Europe/Berlin", "q", "p", "PRIORITY", "5", "WITHIN", "60"]
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


def test_doctor(run: Run, node: Any) -> None:
    """What it found, queue by queue, and whether anything is left."""
    whole = {"queue": "mail", "shards": 1, "tasks": 5, "problems": 0, "repaired": 0, "found": {}, "examples": []}
    kind = "task in two places"
    hurt = whole | {"queue": "a\x1b", "problems": 2, "found": {kind: 2}, "examples": [[kind, "x", "delayed buried"]]}
    node.answers = {"Q.CHECK": [whole]}
    assert (run("doctor").exit_code, node.asked) == (0, [["Q.CHECK", "*"]])
    node.answers = {"Q.CHECK": [whole, hurt]}
    result = run("doctor")
    assert result.exit_code == 1
    assert "task in two places: x delayed buried" in result.stdout
    assert "\x1b" not in result.stdout
    assert "2 problems are left; --repair" in result.stderr
    assert json.loads(run("doctor", "--json").stdout)["left"] == 2
    node.answers = {"Q.CHECK": hurt | {"repaired": 2}}
    assert run("doctor", "--repair", "--queue", "q").exit_code == 0
    assert node.asked[-1] == ["Q.CHECK", "q", "REPAIR"]


@pytest.mark.parametrize("words", ["queue delete q t", "schedule delete s", "token delete p/a"])
def test_deleting_nothing_is_exit_code_5(run: Run, node: Any, words: str) -> None:
    node.answers = {"Q.DELETE": 0, "S.DELETE": 0, "T.DELETE": 0}
    assert run(*words.split()).exit_code == 5


def test_a_page_of_tasks_ends_with_its_cursor(run: Run, node: Any) -> None:
    node.answers = {"Q.PEEK": [[{"id": "t1", "reason": "x"}, {"id": "t2"}], "cursor-7"]}
    result = run("queue", "peek", "q", "--state", "buried", "--count", "2", "--after", "c")
    assert node.asked == [["Q.PEEK", "q", "STATE", "buried", "COUNT", "2", "AFTER", "c"]]
    assert "t2" in result.stdout
    assert "more: --after cursor-7" in result.stdout


def test_queue_config_sets_then_shows(run: Run, node: Any) -> None:
    node.answers = {"Q.CONFIG": lambda request: "OK" if len(request) > 2 else {"lease_ms": 5}}
    assert run("queue", "config", "q", "lease_ms=5", "order=edf").stdout == "lease_ms  5\n"
    assert node.asked == [["Q.CONFIG", "q", "SET", "lease_ms", "5", "order", "edf"], ["Q.CONFIG", "q"]]


def test_schedules_are_listed(run: Run, node: Any) -> None:
    beat = {"name": "s", "queue": "q", "kind": "every", "every_ms": 9, "next_ms": 1_700_000_000_000}
    node.answers = {
        "S.LIST": [beat, {"name": "c", "queue": "q", "kind": "cron", "expr": "@daily", "zone": "Asia/Tokyo"}]
    }
    out = run("schedule", "list").stdout
    assert all(text in out for text in ("every 9 ms", "2023-11-14 22:13:20", "@daily", "Asia/Tokyo"))
    node.answers = {"S.LIST": []}
    assert run("schedule", "list").exit_code == 5
    assert run("schedule", "list", "--json").stdout == "[]\n"


def test_what_goes_to_a_terminal_is_printable() -> None:
    assert cell("a\x1b]0;x\x07b\nc") == "a\\x1b]0;x\\x07b\\nc"
    assert cell([1, None, {"a": True}]) == "1, -, a=yes"
    assert shown("redis://u:p@h:1/0") == "redis://h:1/0"
    assert shown("unix://:p@/run/s") == "unix:///run/s"


def test_the_sandbox_runs_until_it_is_stopped(tmp_path: Path, until: Callable[..., object]) -> None:
    argv = [sys.executable, "-m", "tidewarden", "sandbox", "--port", "0", "--accounts", "3", "--json"]
    with subprocess.Popen([*argv, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            with urllib.request.urlopen(f"{ready['url']}/seed?n=3") as answer:
                assert len(answer.read().splitlines()) == 4
            second = subprocess.run([*argv, "--data-dir", str(tmp_path)], capture_output=True, text=True)
            assert second.returncode == 4
            assert "another sandbox uses this folder" in second.stderr
            port = ready["url"].rpartition(":")[2]
            busy = [*argv[:5], port, "--data-dir", str(tmp_path / "other")]
            third = subprocess.run(busy, capture_output=True, text=True)
            assert third.returncode == 4
            assert f"port {port} cannot be used" in third.stderr
        finally:
            process.terminate()
        assert process.wait(20) == 0
