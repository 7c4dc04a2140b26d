"""A defect of a pool of refreshers that is met once."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.tokens.refresh.pool import Pool


def break_once(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Have the first pool fail once, in "a take" or "beside a take" that is under way."""
    met: list[str] = []
    take, room = Pool._take, Pool._room

    async def broken_take(self: Any, wanted: int) -> Any:
        if not met and where == "a take":
            met.append(where)
            raise RuntimeError("a defect, once")
        return await take(self, wanted)

    def broken_room(self: Any) -> int:
        if not met and where == "beside a take" and self._takes:
            met.append(where)
            raise RuntimeError("a defect, once")
        return room(self)

    monkeypatch.setattr(Pool, "_take", broken_take)
    monkeypatch.setattr(Pool, "_room", broken_room)
