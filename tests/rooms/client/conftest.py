"""Nodes for the SDK, and what a program has of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors.client_harness import Site, site

from tidewarden.client import AsyncClient, AsyncQueue


@pytest.fixture
async def here(request: pytest.FixtureRequest, node: Any) -> AsyncIterator[Site]:
    """One node, or as many as the module's ``NODES`` says."""
    async with site(node, getattr(request.module, "NODES", 1)) as made:
        yield made


@pytest.fixture
async def client(here: Site) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(here.urls, spread=False) as made:
        yield made


@pytest.fixture
async def queue(client: AsyncClient) -> AsyncQueue:
    return client.queue("mail")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Leases are touched, and locks renewed, after a sixtieth, so that one may be long enough for a
    machine that stands still at times.
    """
    monkeypatch.setattr("tidewarden.client.lease_keeper.SHARE", 60)
