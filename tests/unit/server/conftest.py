"""Doors that let a sender of wrong secrets wait for a moment only."""

from __future__ import annotations

import pytest

from tidewarden.server.access import users


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret costs its sender a quarter of a second; tests send many."""
    monkeypatch.setattr(users, "FAILURE_DELAY_S", 0.01)
