"""Registrations of nodes on a real store, in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.cluster.registration import Registration

MakeNodes = Callable[..., Awaitable[tuple[Registration, list[str]]]]


@pytest.fixture
async def nodes(node: Any) -> MakeNodes:
    """``await nodes("n0")`` gives a node's registration and the holders it announced."""

    async def make(name: str = "n0") -> tuple[Registration, list[str]]:
        n = await node(name)
        holders: list[str] = []
        return Registration("tw", name, n.link, n.scripts, ManualClock(), holders.append), holders

    return make
