"""``tidewarden top``: what it asks, what it prints, and how it leaves a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console
from support.doors import recording_node
from support.doors.command_line import Run, node, run

from tidewarden.cli.top.view import lines_for, rate, render, size
from tidewarden.errors import Denied

assert run
assert node


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "user": "shop-of-a-rather-long-name",
        "verb": "Q.RELEASEALL",
        "kind": "queue",
        "name": f"mails.{number}." + "x" * 150,
        "requests": 987_654_321,
        "errors": 600,
        "bytes_in": 10**12,
        "bytes_out": 12_000,
        "us": 5 * 10**8,
        "requests_per_s": 3.0,
        **more,
    }


def answer(*rows: dict[str, Any], by: str = "request") -> dict[str, Any]:
    sums = {"requests": 5, "bytes_in": 600, "bytes_out": 70, "errors": 0, "us": 80}
    return {
        "by": by,
        "over": "minute",
        "sort": "requests",
        "seconds": 60.0,
        "nodes": ["n0", "n1"],
        "unreachable": [{"node": "n2", "why": "it has not answered within 2 s"}],
        "total": sums,
        "unlisted_max": sums,
        "rows": list(rows),
    }


def drawn(report: dict[str, Any], columns: int = 80, rows: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, height=rows, force_terminal=False)
    console.print(render(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in str(text).splitlines()]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (60, 10)])
def test_the_screen_fits_whatever_the_names(columns: int, rows: int) -> None:
    lines = drawn(answer(*(row(number) for number in range(lines_for(rows)))), columns, rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert "n2 is away" in lines[1] or columns < 80
    assert lines[-1].startswith("sort: r b e t")


def test_what_may_have_been_more_is_marked() -> None:
    sums = {"requests": 7, "bytes_in": 0, "bytes_out": 0, "errors": 0, "us": 0}
    (line,) = [one for one in drawn(answer(row(1, error=sums))) if "mails" in one]
    assert line.split()[3:6] == ["16.5M+", "16.7", "GB"]


def test_figures_are_short() -> None:
    assert [rate(one) for one in (0, 0.004, 1.25, 99.9, 1234.5, 2e5, 3e6)] == [
        *("0", "0.00", "1.2", "99.9", "1,234", "200k", "3.0M"),
    ]
    assert [size(one) for one in (0, 999, 1500, 2.5e6, 7.77e11)] == [
        *("0 B", "999 B", "1.5 kB", "2.5 MB", "777 GB"),
    ]


def test_once_prints_a_table(node: Any, run: Run) -> None:
    node.answers["R.TRAFFIC"] = answer(row(1, name="mails"), row(2, name="\x1b[2J"))
    found = run("top", "--by", "request", "--once", "--top", "7", "--node", "n1")
    assert found.exit_code == 0, found.output
    assert "mails" in found.output
    assert "n2 is away" in found.output
    assert "\x1b[2J" not in found.output
    words = "R.TRAFFIC BY request SORT requests OVER minute NODE n1 TOP 7"
    assert node.asked == [words.split()]


def test_json_is_the_answer(node: Any, run: Run) -> None:
    node.answers["R.TRAFFIC"] = answer(row(1), by="queue")
    found = run("top", "--json", "--by", "queue", "--sort", "bytes", "--over", "start")
    assert json.loads(found.output) == answer(row(1), by="queue")
    assert node.asked[0][1:7] == ["BY", "queue", "SORT", "bytes", "OVER", "start"]


def test_its_exit_codes(node: Any, run: Run) -> None:
    assert run("top", "--by", "shoe").exit_code == 2
    assert run("top", "--sort", "size").exit_code == 2
    node.answers["R.TRAFFIC"] = Denied("R.TRAFFIC needs the right admin")
    assert run("top", "--once").exit_code == 1
    node.answers["R.TRAFFIC"] = answer()
    assert run("top", "--once").exit_code == 5


def own_terminal() -> None:
    """Let Ctrl-C at the terminal reach the process."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """``tidewarden top`` in a terminal of 80 columns and 24 rows."""

    def __init__(self, url: str) -> None:
        self._main, self.side = pty.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.side)
        argv = [sys.executable, "-m", "tidewarden", "top", "--url", url, "--every", "30"]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(
            argv, stdin=self.side, stdout=self.side, stderr=self.side, env=env,
            preexec_fn=own_terminal,
        )  # fmt: skip
        self.shown = ""

    def press(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def until(self, condition: Callable[[], Any]) -> None:
        limit = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < limit, self.shown
            if select.select([self._main], [], [], 0.05)[0]:
                self.shown += os.read(self._main, 65536).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self.side)


@contextlib.contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    made = Terminal(url)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.thorough
@pytest.mark.parametrize("leave", [b"q", b"\x03", signal.SIGTERM])
def test_keys_change_what_is_shown_and_the_terminal_is_left_as_it_was(
    node: Any, leave: bytes | signal.Signals
) -> None:
    node.answers["R.TRAFFIC"] = answer(row(1, name="mails"))
    with terminal(node.url) as screen:
        screen.until(lambda: "mails" in screen.shown)
        assert "\x1b[?1049h" in screen.shown
        for key, word in ((b"b", "bytes"), (b"e", "errors"), (b"t", "time"), (b"s", "start")):
            screen.press(key)
            screen.until(lambda word=word: word in node.asked[-1])
        assert node.asked[-1][1:] == [
            "BY",
            "request",
            "SORT",
            "time",
            "OVER",
            "start",
            "NODE",
            "all",
            "TOP",
            "18",
        ]
        if isinstance(leave, bytes):
            screen.press(leave)
        else:
            screen.process.send_signal(leave)
        screen.until(lambda: screen.process.poll() is not None)
        screen.until(lambda: "\x1b[?1049l" in screen.shown)
        assert screen.process.returncode == (0 if isinstance(leave, bytes) else 128 + leave)
        assert termios.tcgetattr(screen.side) == screen.before


@pytest.mark.thorough
def test_it_goes_on_with_another_node_and_while_there_is_none(node: Any) -> None:
    node.answers["R.TRAFFIC"] = answer(row(1, name="mails"))
    with recording_node.running() as other:
        other.answers["R.TRAFFIC"] = answer(row(2, name="bills"))
        with terminal(f"{node.url},{other.url}") as screen:
            screen.until(lambda: "mails" in screen.shown)
            node.answers["R.TRAFFIC"] = None  # it hangs up
            screen.press(b"b")
            screen.until(lambda: "bills" in screen.shown)
            other.answers["R.TRAFFIC"] = None
            screen.press(b"r")
            screen.until(lambda: "No node answers." in screen.shown)
            screen.shown = ""
            node.answers["R.TRAFFIC"] = answer(row(1, name="again"))
            screen.press(b"t")
            screen.until(lambda: "again" in screen.shown)
            screen.press(b"q")
            screen.until(lambda: screen.process.poll() is not None)
            assert screen.process.returncode == 0
