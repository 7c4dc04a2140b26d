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

    async def switchover(self, node: str | None) -> str:
        self.calls.append(("switchover", node))
        return node or "n1"

    async def choice(self, node: str | None) -> dict[str, Any]:
        self.calls.append(("choice", node))
        return {"node": node or "n1", "loss": "likely"}

    async def recover(self, node: str | None, begin_empty: bool) -> dict[str, Any]:
        self.calls.append(("recover", node, begin_empty))
        return {"node": node or "n1", "loss": "likely"}

    async def confirm(self) -> str:
        self.calls.append(("confirm",))
        return "possible"

    async def discarded(self) -> list[dict[str, Any]]:
        self.calls.append(("discarded",))
        return [{"path": "/d/store/discarded/1", "bytes": 7}]

    async def leave(self, name: str) -> int:
        self.calls.append(("leave", name))
        return 5
