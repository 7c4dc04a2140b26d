"""What the door asks of the cluster, written down."""

from __future__ import annotations

from typing import Any


class RecordingSteering:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def transfer(self, node: str | None) -> str:
        self.calls.append(("transfer", node))
        return node or "n1"

    async def join(self, name: str, address: str) -> int:
        self.calls.append(("join", name, address))
        return 4

    async def leave(self, name: str) -> int:
        self.calls.append(("leave", name))
        return 5
