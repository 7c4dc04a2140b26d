"""The schedules, for the doors: what was asked of them."""

from __future__ import annotations

from typing import Any

from tidewarden.queue.task import TaskSpec


class RecordingSchedules:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def put(self, name: str, spec: Any, queue: str, task: TaskSpec) -> int:
        self.calls.append(("put", name, spec, queue, task))
        return 2**41

    async def list(self) -> list[dict[str, Any]]:
        return [{"name": "nightly", "next_ms": 5}]

    async def delete(self, name: str) -> bool:
        self.calls.append(("delete", name))
        return name == "nightly"

    async def pause(self, name: str) -> None:
        self.calls.append(("pause", name))

    async def run(self, name: str) -> str:
        self.calls.append(("run", name))
        return f"{name}:run:1"

    async def resume(self, name: str) -> int:
        self.calls.append(("resume", name))
        return 7
