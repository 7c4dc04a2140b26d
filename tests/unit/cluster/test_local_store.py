"""What a node asks of its own store, and for how long it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidewarden.cluster.replication import local_store
from tidewarden.cluster.replication.local_store import LOOK_S, ORDER_S, LocalStore
from tidewarden.config.settings import Store
from tidewarden.errors import StoreDown


@pytest.mark.parametrize(("pace", "slow"), [(0.2, 1.0), (1.0, 1.0), (4.0, 4.0)])
async def test_a_slow_machines_store_has_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pace: float, slow: float
) -> None:
    limits: list[float] = []

    class SilentLink:
        def __init__(self, *_: Any) -> None:
            """As a link to a store that answers nothing."""

        async def ask(self, *_: Any, limit_s: float) -> list[Any]:
            limits.append(limit_s)
            raise StoreDown(f"no answer within {limit_s:g} s")

    monkeypatch.setattr(local_store, "ControlLink", SilentLink)
    socket = tmp_path / "socket"
    store = LocalStore(tmp_path, socket, "c", "secret", Store(), pace, b"", lambda: None)
    for ask in (store.look, store.demote, store.detach, store.let_in):
        with pytest.raises(StoreDown):
            await ask()
    assert limits == [LOOK_S * slow, *[ORDER_S * slow] * 3]
