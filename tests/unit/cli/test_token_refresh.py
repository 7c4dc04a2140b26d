"""``tidewarden token refresh``: accounts asked for again, at a pace."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.doors.command_line import Run, node, run
from support.manual_clock import ManualClock

from tidewarden import errors
from tidewarden.cli.token.refresh import RefreshWish, ask

__all__ = ["node", "run"]  # fixtures


def entry(account: str, message: str = "HTTP 503") -> dict[str, Any]:
    return {"account": account, "provider": account.partition("/")[0], "message": message}


def refreshed(node: Any) -> list[str]:
    return [request[1] for request in node.asked if request[0] == "T.REFRESH"]


class Line:
    """A node's line that counts."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def batch(self, commands: list[tuple[str, str]]) -> list[str]:
        self.sent += [name for _, name in commands]
        return ["OK"] * len(commands)


async def test_no_more_are_asked_for_in_a_second_than_was_said() -> None:
    clock, line, asked, names = ManualClock(), Line(), RefreshWish(), [f"p/{n}" for n in range(100)]
    notes: list[int] = []
    going = asyncio.create_task(
        ask(line, names, 20, clock, asked, lambda: notes.append(asked.count))
    )  # type: ignore[arg-type]
    for second in range(5):
        for _ in range(50):
            await asyncio.sleep(0)  # Whatever may be sent by now is.
        assert len(line.sent) <= 20 * second + 2, "a turn ahead at most"
        assert len(line.sent) >= 20 * second
        for _ in range(10):
            await clock.advance(0.1)
    await going
    assert line.sent == names
    assert (notes[0], notes[-1], asked.counts()) == (
        2,
        100,
        {"queued": 100, "absent": 0, "refused": 0},
    )


async def test_a_slow_pace_asks_for_one_at_a_time() -> None:
    clock, line = ManualClock(), Line()
    going = asyncio.create_task(ask(line, ["p/a", "p/b"], 1, clock, RefreshWish(), lambda: None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await clock.advance(0.9)
    assert line.sent == ["p/a"]
    await clock.advance(0.2)
    await going
    assert line.sent == ["p/a", "p/b"]


def test_all_in_a_state_are_asked_for_from_every_page(run: Run, node: Any) -> None:
    listed = iter([[[entry("p/b")], "c1"], [[], "c2"], [[entry("p/a"), entry("p/b")], ""]])
    node.answers = {
        "T.LIST": lambda request: next(listed),
        "T.REFRESH": lambda request: (
            errors.NotFound("there is no account p/b") if request[1] == b"p/b" else "OK"
        ),
    }
    result = run("token", "refresh", "--state", "stopped", "--provider", "p")
    assert (result.exit_code, result.stdout) == (0, "1 queued, 1 absent\n")
    assert node.asked[0][:5] == ["T.LIST", "PROVIDER", "p", "STATE", "stopped"]
    assert refreshed(node) == ["p/a", "p/b"], "once each, although one came on two pages"


def test_what_the_node_refuses_is_named_and_ends_with_1(run: Run, node: Any) -> None:
    node.answers = {
        "T.REFRESH": lambda request: (
            errors.NotFound("there is no provider 'x'") if b"x/" in request[1] else "OK"
        )
    }
    result = run("token", "refresh", "p/a", "x/b")
    assert (result.exit_code, result.stdout) == (1, "1 queued, 1 refused\n")
    assert "refused: x/b: NOTFOUND there is no provider 'x'" in result.stderr
    assert json.loads(run("token", "refresh", "p/a", "x/b", "--json").stdout) == {
        "queued": 1,
        "absent": 0,
        "refused": 1,
    }


def test_an_account_that_was_named_and_is_not_there_ends_with_5(run: Run, node: Any) -> None:
    node.answers = {"T.REFRESH": errors.NotFound("there is no account p/a")}
    assert run("token", "refresh", "p/a").exit_code == 5


def test_a_dry_run_says_what_would_be_asked_and_asks_nothing(run: Run, node: Any) -> None:
    node.answers = {"T.LIST": [[entry("p/a"), entry("p/b"), entry("p/c", "HTTP 400 odd")], ""]}
    result = run(
        "token",
        "refresh",
        "--state",
        "stopped",
        "--provider",
        "p",
        "--dry-run",
        "--per-second",
        "1",
    )
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "p stopped 2 HTTP 503" in lines
    assert "p stopped 1 HTTP 400 odd" in lines
    assert lines[-1] == "3 accounts would be asked for, 1 a second: 3 s. Nothing was done."
    found = json.loads(run("token", "refresh", "--state", "stopped", "--dry-run", "--json").stdout)
    assert (found["would_ask"], found["accounts"]) == (3, ["p/a", "p/b", "p/c"])
    assert refreshed(node) == []


def test_a_state_in_which_nobody_is(run: Run, node: Any) -> None:
    node.answers = {"T.LIST": [[], ""]}
    result = run("token", "refresh", "--state", "stopped", "--provider", "p")
    assert (result.exit_code, result.stdout) == (0, "No account is so: nobody was asked for.\n")


@pytest.mark.parametrize("words", ["p/a --state dead", "p/a --provider p", ""])
def test_either_names_or_a_state(run: Run, node: Any, words: str) -> None:
    assert run("token", "refresh", *words.split()).exit_code == 2
    assert not node.asked


@pytest.mark.thorough
def test_what_was_asked_for_is_told_when_the_line_breaks(run: Run, node: Any) -> None:
    node.answers = {"T.REFRESH": lambda request: None if request[1] == b"p/b" else "OK"}
    result = run("token", "refresh", "p/a", "p/b", "--per-second", "1")
    assert result.exit_code == 3
    assert "asked for before this: 1 of 2" in result.stderr
