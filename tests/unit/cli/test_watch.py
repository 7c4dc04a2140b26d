"""Watching a cluster: the rate of refreshes. The rest is in live/up/test_up.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidewarden.cli.watch import RefreshRate, program


def test_a_rate_needs_two_looks_and_forgets_old_ones() -> None:
    rate = RefreshRate()
    assert rate.per_s() is None
    rate.add(10.0, 100)
    assert rate.per_s() is None
    rate.add(12.0, 140)
    assert rate.per_s() == 20.0
    for look in range(6):
        rate.add(14.0 + 2 * look, 140)
    assert rate.per_s() == 0.0
    assert rate.total == 140


def test_a_counter_that_began_anew_is_no_negative_rate() -> None:
    rate = RefreshRate()
    rate.add(10.0, 100)
    rate.add(12.0, 3)
    assert rate.per_s() is None


def test_the_command_line_is_called_as_it_can_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "my bin" / "tidewarden"
    there.parent.mkdir()
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(there), "up"])
    assert program() == f"'{there}'"
    monkeypatch.setenv("PATH", str(there.parent))
    assert program() == "tidewarden"
    monkeypatch.setattr(sys, "argv", ["/x/tidewarden/__main__.py", "up"])
    assert program() == "python -m tidewarden"
