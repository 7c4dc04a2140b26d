"""The command line: what each verb asks of a node, what it prints, and its exit codes."""

from __future__ import annotations

import json
import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest
import typer
from support.doors.command_line import Run, app, node, run

import tidewarden
from tidewarden import errors
from tidewarden.cli.connection import Broken, addresses, dial, shown
from tidewarden.cli.options import DATA_DIR
from tidewarden.cli.output import cell
from tidewarden.config.load import check_secret

__all__ = ["node", "run"]  # fixtures
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
    "up node status doctor sandbox version worker consumers",
    "queue list stats reasons put take peek kick delete purge drop drop-topic release-all holders move pause resume config",
    "token import get list refresh delete stats",
    "schedule put list show next delete pause resume run",
    "lock run list show release",
    "consumer end end-session",
    "cluster status transfer join leave backup restore",
)


class HttpAlone(socketserver.StreamRequestHandler):
    """An HTTP server's answer to whoever takes it for a Redis one."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def help_cases() -> list[list[str]]:
    cases: list[list[str]] = [[]]
    for line in VERBS:
        first, *rest = line.split()
        cases += (
            [[first], [first, *rest[:0]], *([first, verb] for verb in rest)]
            if first != "up"
            else []
        )
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
    assert json.loads(run("version", "--json").stdout).keys() == {
        "tidewarden",
        "python",
        "valkey-server",
    }


def test_help_is_broken_where_the_terminal_ends() -> None:
    texts = [
        command.help
        for group in app.registered_groups
        for command in group.typer_instance.registered_commands
    ]
    assert all(texts)
    assert not [text for text in texts for paragraph in text.split("\n\n") if "\n" in paragraph]


def test_version_is_an_option_too(run: Run) -> None:
    assert run("--version").stdout == run("version").stdout


def test_node_check_says_good_or_names_every_problem(run: Run, tmp_path: Path) -> None:
    assert (
        "good. Node n0 at 127.0.0.1:7420"
        in run("node", "--check", "--set", "log.level=debug").stdout
    )
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


def test_node_hashes_a_secret_that_is_given(run: Run) -> None:
    result = run("node", "--hash-secret", stdin="hunter2\n")
    assert check_secret("hunter2", result.stdout.removesuffix("\n"))
    assert "found nothing on standard input" in run("node", "--hash-secret", stdin="").output


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


@pytest.mark.parametrize("words", [("queue", "list"), ("status",)])
def test_a_wrong_address_is_exit_code_2(run: Run, words: list[str], tmp_path: Path) -> None:
    for url in ("http://x", "redis://me:hush/x@h", "redis://me:hush#@h", "redis://me:[hush]@h"):
        result = run(*words, "--url", url)
        assert result.exit_code == 2
        assert "allowed: redis://" in result.stderr
        assert "hush" not in result.stderr
    result = run(*words, "--data-dir", str(tmp_path / "mistyped"), url=False)
    assert result.exit_code == 2
    assert f"{tmp_path}/mistyped: found no data of `tidewarden up` there" in result.stderr


def test_an_option_of_an_address_that_cannot_be_used_is_exit_code_2(run: Run) -> None:
    for option, said in (("db=3", "there is no option 'db'"), ("ca=absent", "ca=absent: No such")):
        result = run("status", "--url", f"rediss://me:hush@127.0.0.1?{option}")
        assert result.exit_code == 2
        assert said in result.stderr
        assert "hush" not in result.stderr


def test_an_answer_that_does_not_come_in_time_breaks_the_line(node: Any) -> None:
    late = threading.Event()
    node.answers = {"R.STATUS": lambda _: late.wait(30) and None}
    line = dial(node.url, 0.1)
    with pytest.raises(Broken, match=r"no answer within 0\.1 s"):
        line.call("R.STATUS")
    with pytest.raises(Broken):
        line.call("Q.LIST")
    late.set()


@pytest.mark.parametrize("words", [("queue", "list"), ("status",)])
def test_the_http_port_for_that_of_redis_clients_is_no_trace(run: Run, words: list[str]) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HttpAlone) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = run(*words, "--url", f"redis://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert result.exit_code == 3
    assert "not a node's port for Redis clients (its HTTP port is the next one)" in result.stderr


def test_who_names_no_user_is_told_how(run: Run, node: Any) -> None:
    node.answers = {name: errors.NoAuth("Say who you are.") for name in ("Q.LIST", "R.STATUS")}
    for words in (("queue", "list"), ("status",)):
        result = run(*words)
        assert result.exit_code == 1
        assert "--url redis://USER:SECRET@HOST:PORT; or the data folder" in result.stderr


def test_a_refusal_is_exit_code_1_in_the_words_of_the_node(run: Run, node: Any) -> None:
    node.answers = {
        "Q.STATS": errors.NotFound("There is no queue 'x'."),
        "Q.LIST": errors.NoAuth("Say who you are."),
    }
    result = run("queue", "stats", "x")
    assert (result.exit_code, result.stderr) == (
        1,
        "tidewarden: refused: NOTFOUND There is no queue 'x'.\n",
    )
    assert "not authenticated: Say who you are." in run("queue", "list").stderr


def test_a_line_that_breaks_says_that_it_may_have_happened(run: Run, node: Any) -> None:
    node.answers = {"Q.PUT": None}
    result = run("queue", "put", "q", "x")
    assert result.exit_code == 3
    assert "may or may not have happened" in result.stderr
    assert len(node.asked) == 1


def test_without_url_the_local_cluster_is_asked_with_its_secret(
    run: Run, node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "tidewarden-data"
    (data / "secrets").mkdir(parents=True)
    (data / "secrets" / "admin.secret").write_text("s%t:/\n")
    for number, port in ((0, 1), (1, node.server_address[1]), (10, 2)):
        (data / f"n{number}").mkdir()
        (data / f"n{number}" / "node.toml").write_text(f"[node]\nbase_port = {port}\n")
    (data / "n2").mkdir()
    (data / "n2" / "node.toml").write_text("damaged")
    found = addresses("", data)
    assert [address.rpartition(":")[2] for address in found] == [
        "1",
        str(node.server_address[1]),
        "2",
    ]
    assert found[0] == "redis://admin:s%25t%3A%2F@127.0.0.1:1"
    node.answers = {"Q.LIST": ["mails"]}
    assert run("queue", "list", url=False).stdout == "mails\n"
    assert node.users == [[b"admin", b"s%t:/"]]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert addresses("", Path(DATA_DIR)) == ["redis://127.0.0.1:7420"]
    assert addresses("redis://h", data) == ["redis://h"]


def test_doctor(run: Run, node: Any) -> None:
    """What it found, queue by queue, and whether anything is left."""
    whole = {
        "queue": "mail",
        "shards": 1,
        "tasks": 5,
        "buried": 0,
        "problems": 0,
        "repaired": 0,
        "found": {},
        "examples": [],
    }
    kind = "task in two places"
    hurt = whole | {
        "queue": "a\x1b",
        "problems": 2,
        "found": {kind: 2},
        "examples": [[kind, "x", "delayed buried"]],
    }
    node.answers = {"Q.CHECK": [whole], "R.STATUS": {"node": "n0"}, "T.STATS": {}}
    asked = [["R.STATUS"], ["T.STATS"], ["Q.CHECK", "*"]]
    assert (run("doctor").exit_code, node.asked) == (0, asked)
    node.answers |= {"Q.CHECK": [whole | {"buried": 700}, {**whole, "queue": "older"}]}
    del node.answers["Q.CHECK"][1]["buried"]
    result = run("doctor")
    assert (
        result.exit_code,
        "700 tasks are buried: `tidewarden queue reasons" in result.stdout,
    ) == (
        0,
        True,
    )
    node.answers |= {"Q.CHECK": [whole, hurt]}
    result = run("doctor")
    assert result.exit_code == 1
    assert "task in two places: x delayed buried" in result.stdout
    assert "\x1b" not in result.stdout
    assert "2 problems are left; --repair" in result.stderr
    assert json.loads(run("doctor", "--json").stdout)["left"] == 2
    node.answers |= {"Q.CHECK": hurt | {"repaired": 2}}
    assert run("doctor", "--repair", "--queue", "q").exit_code == 0
    assert node.asked[-1] == ["Q.CHECK", "q", "REPAIR"]
    said = "only n0 and n1 have been in sync"
    node.answers |= {"Q.CHECK": [whole], "R.STATUS": {"node": "n0", "store_problems": [said]}}
    result = run("doctor")
    assert (result.exit_code, f"stores: {said}" in result.stdout) == (1, True)
    assert json.loads(run("doctor", "--json").stdout)["stores"] == [said]
    said = "the journal of n0 is not writable: /data/tokens.journal: Permission denied"
    waits = {"error": "journal", "message": said}
    stats = {"shop": waits, "bank": waits, "well": {"error": "", "message": ""}}
    node.answers |= {"R.STATUS": {"node": "n0"}, "T.STATS": stats}
    result = run("doctor")
    assert (result.exit_code, f"{said}; bank, shop wait for it" in result.stdout) == (1, True)


def test_what_goes_to_a_terminal_is_printable() -> None:
    assert cell("a\x1b]0;x\x07b\nc") == "a\\x1b]0;x\\x07b\\nc"
    assert cell([1, None, {"a": True}]) == "1, -, a=yes"
    assert shown("redis://u:p@h:1/0") == "redis://h:1/0"
    assert shown("unix://:p@/run/s") == "unix:///run/s"


def test_no_help_text_loses_its_brackets(run: Run) -> None:
    """Nor has it a sign before them: nobody who draws the help takes [providers.NAME] for markup."""
    waiting: list[Any] = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for text in (
            command.help,
            *(getattr(parameter, "help", None) for parameter in command.params),
        ):
            assert "\\[" not in (text or ""), command.name
    assert "([audit])" in run("audit", "--help").stdout
