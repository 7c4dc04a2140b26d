"""The schedules, for the doors: what was asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidewarden.errors import NotFound
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

    async def run(self, name: str, key: str = "") -> str:
        self.calls.append(("run", name, key))
        return f"{name}:run:{key or 1}"

    async def get(self, name: str, count: int = 5) -> dict[str, Any]:
        self.calls.append(("get", name, count))
        if name != "nightly":
            raise NotFound(f"there is no schedule {name!r}")
        return {"name": name, "next_ms": 5, "next": [5, 10][:count]}

    async def outlook(
        self, within_ms: int = 86_400_000, seen: Callable[[str], bool] = bool
    ) -> dict[str, Any]:
        self.calls.append(("outlook", within_ms))
        ticks = [{"name": name, "queue": "q", "at_ms": 5} for name in ("daily", "nightly")]
        rates = [{"name": "pulse", "queue": "q", "next_ms": 5, "per_day": 86_400}]
        return {
            "from_ms": 1,
            "until_ms": 1 + within_ms,
            "ticks": [one for one in ticks if seen(one["name"])],
            "rates": [one for one in rates if seen(one["name"])],
            "resting": 0,
            "more": False,
        }

    async def resume(self, name: str) -> int:
        self.calls.append(("resume", name))
        return 7
