"""
``tidewarden lock``: a command runs while a lock is held; what becomes of it when the lock is lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support.cluster.processes import until
from support.doors import recording_node
from support.doors.command_line import app
from typer.testing import CliRunner, Result

from tidewarden import errors

FENCE = 2**37
UUID = "9f6a2c1e-5b7d-4c55-8a9e-0d6c3a1f2b44"
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def node() -> Iterator[Any]:
    with recording_node.running() as node:
        node.answers = {"SESSION": UUID, "L.ACQUIRE": FENCE, "L.RENEW": "OK", "L.RELEASE": "OK"}
        yield node


def run(node: Any, *words: str) -> Result:
    return CliRunner().invoke(
        app, ["lock", *words], env={"TIDEWARDEN_URL": node.url, "COLUMNS": "200", "TERM": "dumb"}
    )


def verbs(node: Any) -> list[str]:
    return [request[0] for request in node.asked]


def test_a_command_runs_under_the_lock_and_its_exit_code_is_ours(node: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        f"import os; open({str(out)!r}, 'w').write(os.environ['TIDEWARDEN_LOCK'] +"
        " os.environ['TIDEWARDEN_FENCE']); exit(7)"
    )
    result = run(node, "run", "a", "--json", "--", sys.executable, "-c", script)
    assert result.exit_code == 7
    assert out.read_text() == f"a{FENCE}"
    # It is renewed at once, and again where the command takes its time to start.
    assert [verb for verb, _ in groupby(verbs(node))] == [
        "SESSION",
        "L.ACQUIRE",
        "SESSION",
        "L.RENEW",
        "L.RELEASE",
    ]
    assert node.asked[0] == ["SESSION", "GRACE", "5000"]
    assert node.asked[1][:5] == ["L.ACQUIRE", "a", "30000", "WAIT", "3600000"]
    assert node.asked[2] == ["SESSION", UUID]
    assert node.asked[-1] == ["L.RELEASE", "a", str(FENCE)]
    assert [json.loads(line)["event"] for line in result.stderr.splitlines()] == [
        "acquired",
        "released",
    ]


def test_a_lock_that_is_not_free_runs_nothing(node: Any, tmp_path: Path) -> None:
    for answer, code, said in (
        (errors.Full("many wait"), 1, "refused: FULL many wait"),
        (recording_node.NIL, 5, "the lock 'a' was not free in time"),
    ):
        node.answers["L.ACQUIRE"] = answer
        result = run(node, "run", "a", "--wait-ms", "0", "--", "touch", str(tmp_path / "x"))
        assert result.exit_code == code
        assert said in result.stderr
    assert not (tmp_path / "x").exists()
    assert "WAIT" not in node.asked[1]


def test_a_command_that_is_not_there(node: Any) -> None:
    result = run(node, "run", "a", "--", "/no/such/program")
    assert result.exit_code == 127
    assert "'/no/such/program' cannot be run" in result.stderr
    assert verbs(node)[-1] == "L.RELEASE"
    assert run(node, "run", "a", "--", "/").exit_code == 126


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is renewed ten times a second, however long the lease is: so that one outlasts what a starved
    machine stands still.
    """
    monkeypatch.setattr("tidewarden.cli.lock.RENEW_S", 0.1)


@pytest.mark.usefixtures("often")
def test_it_is_renewed_and_the_command_ended_when_it_is_lost(node: Any) -> None:
    renewed: list[object] = []

    def renew(_: object) -> Any:
        renewed.append(_)
        if len(renewed) == 2:
            return errors.StoreDown("for a moment")
        return (
            errors.NotHeld("the lock a is not held under the fence 5") if len(renewed) > 3 else "OK"
        )

    node.answers["L.RENEW"] = renew
    result = run(node, "run", "a", "--json", "--", *SLEEP)
    assert result.exit_code == 1
    assert "was lost while the command ran: NOTHELD the lock a is not held" in result.stderr
    assert "L.RELEASE" not in verbs(node)


@pytest.mark.usefixtures("often")
def test_a_broken_connection_is_made_again(node: Any, tmp_path: Path) -> None:
    def renew(_: object) -> str | None:
        count = verbs(node).count("L.RENEW")
        if count == 3:
            (tmp_path / "enough").touch()
        return None if count == 2 else "OK"

    node.answers["L.RENEW"] = renew
    script = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'enough')!r}): time.sleep(0.02)"
    )
    result = run(node, "run", "a", "--", sys.executable, "-c", script)
    assert result.exit_code == 0, result.stderr
    assert verbs(node)[:7] == [
        "SESSION",
        "L.ACQUIRE",
        "SESSION",
        "L.RENEW",
        "L.RENEW",
        "SESSION",
        "L.RENEW",
    ]
    assert verbs(node)[-1] == "L.RELEASE"


@pytest.mark.usefixtures("often")
def test_without_a_connection_the_command_ends_before_the_lease_does(node: Any) -> None:
    node.answers["L.RENEW"] = lambda request: "OK" if verbs(node).count("L.RENEW") == 1 else None
    result = run(node, "run", "a", "--lease-ms", "3000", "--", *SLEEP)
    assert result.exit_code == 1
    assert "was lost while the command ran: the connection broke" in result.stderr


def test_a_session_that_ended_meanwhile_ends_the_command(node: Any) -> None:
    node.answers["L.RENEW"] = lambda request: "OK" if verbs(node).count("L.RENEW") == 1 else None
    node.answers["SESSION"] = lambda request: (
        UUID if verbs(node).count("SESSION") < 3 else errors.NotFound("it has ended")
    )
    result = run(node, "run", "a", "--", *SLEEP)
    assert result.exit_code == 1
    assert "NOTFOUND it has ended" in result.stderr


def test_a_node_that_is_silent_ends_the_command_before_the_lease_ends(node: Any) -> None:
    silent = threading.Event()

    def renew(_: object) -> str:
        if verbs(node).count("L.RENEW") > 1:
            silent.wait(20)
        return "OK"

    node.answers["L.RENEW"] = renew
    try:
        result = run(node, "run", "a", "--lease-ms", "900", "--", *SLEEP)
    finally:
        silent.set()
    assert result.exit_code == 1
    assert "was lost while the command ran" in result.stderr


def test_sigterm_reaches_the_command_and_the_lock_is_released(node: Any) -> None:
    argv = [sys.executable, "-m", "tidewarden", "lock", "run", "a", "--url", node.url, "--", *SLEEP]
    with subprocess.Popen(
        argv,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        until(lambda: verbs(node).count("L.RENEW") > 1, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert verbs(node)[-1] == "L.RELEASE"


def test_list_show_and_release(node: Any) -> None:
    lock = {
        "name": "a",
        "fence": FENCE,
        "node": "n0",
        "lease_end_ms": 1_700_000_000_000,
        "keyed": False,
    }
    pages = iter([[[lock], "0:x"], [[lock | {"name": "b"}], ""]])
    node.answers |= {"L.LIST": lambda _: next(pages), "L.PEEK": lock}
    out = run(node, "list").stdout
    assert all(text in out for text in ("a", "b", str(FENCE), "2023-11-14 22:13:20"))
    assert node.asked[1][-2:] == ["AFTER", "0:x"]
    node.answers["L.LIST"] = [[], ""]
    assert run(node, "list").exit_code == 5
    assert run(node, "list", "--json").stdout == "[]\n"
    assert json.loads(run(node, "show", "a", "--json").stdout) == lock
    assert str(FENCE) in run(node, "show", "a").stdout
    assert run(node, "release", "a", str(FENCE)).stdout == "OK\n"
    assert run(node, "release", "a", str(FENCE), "--json").stdout == '{"ok": true}\n'
    node.answers["L.RELEASE"] = errors.NotHeld("not held")
    assert run(node, "release", "a", "5").exit_code == 1
    assert run(node, "release", "a", "x").exit_code == 2
