"""
Lanes played against a small model: who may run, in which order within a lane, nothing lost,
whatever happens in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tidewarden.queue.task import STATES

IDS = [f"t{n}" for n in range(12)]
LANES = ["a", "b", "ab", None]
ids = st.sampled_from(IDS)


@dataclass
class Task:
    """``queued`` stands for ready and waiting: which of them follows from its lane."""

    lane: str | None
    priority: int
    due: int
    order: int
    state: str
    at: int = 0  # when it is due or its lease ends
    lease: int = 0
    expires: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        return self.priority, self.due, self.order


class Lanes(RuleBasedStateMachine):
    """Verbs on a dozen tasks of three lanes and none. ``desk`` is the shard they are played on."""

    desk: Any

    @initialize(
        limit=st.integers(0, 3),
        rate=st.sampled_from([0, 0, 0, 10_000, 3_000]),
        burst=st.integers(1, 3),
    )
    def begin(self, limit: int, rate: int, burst: int) -> None:
        self.desk.client.flushdb()
        self.desk.now = 1_700_000_000_000
        if self.desk.views:
            self.desk.set_view(1)
        self.desk.configure(dedup_ms=0, losses_max=0)
        self.tasks: dict[str, Task] = {}
        self.full_at: dict[str, float] = {}  # when the bucket of a lane will be full again
        self.order = 0
        self.configured(limit, rate, burst)

    def configured(self, limit: int, rate: int, burst: int) -> None:
        self.limit, self.burst, self.pace = limit, burst, 1_000_000 / rate if rate else 0.0
        self.desk.configure(lane_limit=limit, lane_rate=rate, lane_burst=burst)
        for part in ("heads", "waiting"):
            cursor: Any = b""
            while cursor := self.desk.run("queue.lanes", part, cursor, 2):
                pass
        for lane, at in self.full_at.items():
            self.full_at[lane] = min(at, self.desk.now + burst * self.pace)

    def of(self, lane: str | None, state: str) -> list[str]:
        """Ids in order."""
        found = [
            name for name, task in self.tasks.items() if (task.lane, task.state) == (lane, state)
        ]
        return sorted(found, key=lambda name: self.tasks[name].place)

    def room(self, lane: str) -> int:
        """How many of a lane may be taken now."""
        left = self.limit - len(self.of(lane, "leased")) if self.limit else 1000
        if self.pace:
            ahead = max(0.0, self.full_at.get(lane, 0.0) - 0.001 - self.desk.now)
            left = min(left, self.burst - math.ceil(ahead / self.pace - 1e-9))
        return max(0, left)

    def time_passes(self) -> None:
        """What a take or a sweep does first."""
        for task in self.tasks.values():
            if task.state in ("queued", "delayed") and 0 < task.expires <= self.desk.now:
                task.state = "buried"
            elif task.state in ("delayed", "leased") and task.at <= self.desk.now:
                task.state = "queued"

    @rule(
        name=ids, lane=st.sampled_from(LANES), delay_ms=st.sampled_from([0, 0, 0, 60]), priority=st.sampled_from([5, 5, 5, 4]),
        ttl_ms=st.sampled_from([0, 0, 0, 130]), mode=st.sampled_from(["keep", "replace"]),
    )  # fmt: skip
    def put(
        self, name: str, lane: str | None, delay_ms: int, priority: int, ttl_ms: int, mode: str
    ) -> None:
        reply = self.desk.put(
            name, lane=lane, delay_ms=delay_ms, priority=priority, ttl_ms=ttl_ms, if_exists=mode
        )
        old = self.tasks.get(name)
        if old is not None and mode == "keep":
            assert reply == 0
        elif old is not None and old.state == "leased":
            assert reply == b"NOTHELD"
        else:
            assert reply == 1
            self.order += 1
            at = self.desk.now + delay_ms
            expires = self.desk.now + ttl_ms if ttl_ms else 0
            state = "delayed" if delay_ms else "queued"
            self.tasks[name] = Task(lane, priority, at, self.order, state, at, expires=expires)

    @rule(lane=st.sampled_from(LANES))
    def put_what_is_missing(self, lane: str | None) -> None:
        """A crowd of one lane, in one script."""
        names = [name for name in IDS if name not in self.tasks]
        if names:
            assert self.desk.put_all(
                *((name, b"", {"lane": lane, "priority": 5}) for name in names)
            ) == [1] * len(names)
        for name in names:
            self.order += 1
            self.tasks[name] = Task(lane, 5, self.desk.now, self.order, "queued", self.desk.now)

    def taken(self, row: Any, lease_ms: int) -> None:
        task = self.tasks[row.id]
        task.state, task.at, task.lease = "leased", self.desk.now + lease_ms, row.lease
        if task.lane:
            self.full_at[task.lane] = (
                max(self.desk.now, self.full_at.get(task.lane, 0.0)) + self.pace
            )

    @rule(count=st.integers(1, 8), lease_ms=st.sampled_from([100, 1000]))
    def take(self, count: int, lease_ms: int) -> None:
        self.sweep()  # which ends leases
        self.sweep()  # and this one buries those whose TTL has passed meanwhile
        rows = self.desk.take(count, lease_ms=lease_ms)
        may: dict[str | None, list[str]] = {None: self.of(None, "queued")}
        for lane in ("a", "b", "ab"):
            may[lane] = self.of(lane, "queued")[: self.room(lane)]
        assert len(rows) == min(count, sum(map(len, may.values())))
        highest = sorted(self.tasks[name].priority for names in may.values() for name in names)[
            : len(rows)
        ]
        assert [self.tasks[row.id].priority for row in rows] == highest, "priorities are strict"
        for lane, names in may.items():
            of_lane = [row.id for row in rows if self.tasks[row.id].lane == lane]
            if lane is not None:
                assert of_lane == names[: len(of_lane)], (
                    "within a lane by priority, due time and the order of the puts"
                )
        for row in rows:
            self.taken(row, lease_ms)

    @rule(name=ids)
    def take_by_id(self, name: str) -> None:
        self.sweep()
        self.sweep()
        rows = self.desk.take(task_id=name, lease_ms=500)
        task = self.tasks.get(name)
        may = (
            task is not None
            and task.state in ("queued", "delayed")
            and (task.lane is None or self.room(task.lane) > 0)
        )
        assert [row.id for row in rows] == ([name] if may else [])
        for row in rows:
            self.taken(row, 500)

    def held(self, name: str) -> tuple[str, int] | None:
        task = self.tasks.get(name)
        return (name, task.lease) if task is not None and task.state == "leased" else None

    @rule(name=ids)
    def ack(self, name: str) -> None:
        row = self.held(name)
        if row:
            assert self.desk.ack(row) == [1]
            del self.tasks[name]

    @rule()
    def ack_all(self) -> None:
        rows = [row for name in list(self.tasks) if (row := self.held(name))]
        if rows:
            assert self.desk.ack(*rows) == [1] * len(rows)
        for name, _ in rows:
            del self.tasks[name]

    @rule(
        name=ids,
        how=st.sampled_from(["release", "fail", "loss", "bury"]),
        delay_ms=st.sampled_from([0, 0, 70]),
    )
    def end(self, name: str, how: str, delay_ms: int) -> None:
        row = self.held(name)
        if not row:
            return
        assert self.desk.end(row, how, delay_ms) == 1
        task = self.tasks[name]
        task.state = "buried" if how == "bury" else "delayed" if delay_ms else "queued"
        task.at = self.desk.now + delay_ms

    @rule(name=ids)
    def kick(self, name: str) -> None:
        moved, _ = self.desk.run("queue.kick", 1, name, "", 0)
        task = self.tasks.get(name)
        assert moved == (task is not None and task.state == "buried")
        if moved and task is not None:
            task.state, task.expires = "queued", 0

    @rule(name=ids)
    def delete(self, name: str) -> None:
        assert self.desk.run("queue.delete", name, 0, 1) == int(name in self.tasks)
        self.tasks.pop(name, None)

    @rule(
        name=ids,
        priority=st.sampled_from([-1, 4, 6]),
        due=st.sampled_from([(0, 0), (1, 0), (1, 300)]),
    )
    def update(self, name: str, priority: int, due: tuple[int, int]) -> None:
        task = self.tasks.get(name)
        lease = task.lease if task is not None and task.state == "leased" else 0
        reply = self.desk.run("queue.update", name, 0, "", *due, 0, 0, priority, lease)
        assert reply == (1 if task is not None else b"NOTFOUND")
        if task is None:
            return
        task.priority = priority if priority >= 0 else task.priority
        if due[0]:
            task.due = self.desk.now + due[1]
            if task.state in ("queued", "delayed"):
                task.at, task.state = task.due, "delayed" if due[1] else "queued"

    @rule(state=st.sampled_from(STATES))
    def purge(self, state: str) -> None:
        names = [name for name in self.tasks if self.desk.state(name) == state]
        assert self.desk.run("queue.purge", state, 1000) == len(names)
        for name in names:
            del self.tasks[name]

    @rule()
    def sweep(self) -> None:
        self.desk.run("queue.sweep", 1, 100, holder="n9.1")
        self.time_passes()

    @rule(
        limit=st.integers(0, 3), rate=st.sampled_from([0, 0, 5_000, 3_000]), burst=st.integers(1, 3)
    )
    def configure(self, limit: int, rate: int, burst: int) -> None:
        self.configured(limit, rate, burst)

    @rule(ms=st.sampled_from([1, 40, 60, 99, 500]))
    def advance_the_clock(self, ms: int) -> None:
        self.desk.now += ms

    @invariant()
    def every_task_is_where_its_lane_says(self) -> None:
        if not hasattr(self, "tasks"):
            return
        found = {name: state for name in IDS if (state := self.desk.state(name))}
        assert {
            name: "queued" if state in ("ready", "waiting") else state
            for name, state in found.items()
        } == {name: task.state for name, task in self.tasks.items()}
        for lane in ("a", "b", "ab"):
            heads = [name for name in self.of(lane, "queued") if found[name] == "ready"]
            assert heads in ([], self.of(lane, "queued")[:1]), "the first of a lane, and no other"
            if heads and self.limit:
                assert len(self.of(lane, "leased")) < self.limit
        self.desk.audit()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "desk", ["embedded", pytest.param("own", marks=pytest.mark.soak)], indirect=True
)
def test_lanes_do_what_the_model_says(desk: Any) -> None:
    def machine() -> Lanes:
        Lanes.desk = desk
        return Lanes()

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 3,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
