"""What the scripts of accounts are tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness
from support.tokens.ledger_bench import Bench


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    """A ledger on a real store, by a clock that stands."""
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        yield Bench(side.queues)
