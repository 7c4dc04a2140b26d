"""How far a long transfer is: lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidewarden.cli.token import progress as module
from tidewarden.cli.token.progress import ProgressLine


def test_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressLine("importing", 200) as pace:
        pace.note("1 stored", 1, 50)
        assert capsys.readouterr().err == ""  # it is too early
        monkeypatch.setattr(module, "SAY_S", 0.0)
        pace.note("3 stored", 3, 50)
    with ProgressLine("exporting") as pace:
        pace.note("3 written", 3)
    shown = capsys.readouterr()
    assert [re.sub(r"[\d,]+/s", "N/s", line) for line in shown.err.splitlines()] == [
        "3 stored, N/s (50 %)",
        "3 written, N/s",
    ]
    assert shown.out == ""


def test_a_bar_on_a_terminal_and_nothing_is_left_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal(**settings: Any) -> Any:
        return made(force_terminal=True, width=100, **settings)

    made = module.Console
    monkeypatch.setattr(module, "Console", terminal)
    monkeypatch.setattr(module, "SAY_S", 0.0)
    with ProgressLine("importing", 200) as pace:
        pace.note("1 stored", 1, 50)
    shown = capsys.readouterr().err
    assert "1 stored, " in shown
    assert "25%" in shown
