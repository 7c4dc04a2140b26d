"""
The table of a task's life, played against the scripts: states, counts, attempts and losses after
any sequence of verbs.
"""

from __future__ import annotations

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

IDS = [f"t{n}" for n in range(6)]
LOSSES_MAX = 3
HOLDERS = ["n0.1", "n1.1"]
SESSIONS = ["a" * 32, "b" * 32]

# The table of a task's life: in each state, what may happen to the task, and where that leads.
TRANSITIONS: dict[str, dict[str, str]] = {
    "delayed": {"due": "ready", "take": "leased", "expire": "buried", "delete": "done"},
    "ready": {"take": "leased", "expire": "buried", "delete": "done"},
    "leased": {
        "ack": "done",
        "touch": "leased",
        "release": "ready",
        "fail": "ready",
        "disconnect": "ready",
        "lease end": "ready",
        "bury": "buried",
        "delete": "done",
    },
    "buried": {"kick": "ready", "delete": "done"},
    # Of a lane, where others become ready: until its turn comes there.
    "waiting": {"turn": "ready", "take": "leased", "expire": "buried", "delete": "done"},
}

ids = st.sampled_from(IDS)
delays = st.sampled_from([0, 0, 50, 400])
leases_ms = st.sampled_from([100, 1000])
holders = st.sampled_from([*HOLDERS, *SESSIONS])


@dataclass
class Task:
    """What the model knows of a task; where it is judged by time, when that comes."""

    state: str = "ready"
    attempts: int = 0
    losses: int = 0
    attempts_max: int = 0
    backoff_ms: int = 0
    lease: int = 0
    holder: str = ""
    at: int = 0  # due, or the lease's end
    expires: int = 0  # by its TTL


class Life(RuleBasedStateMachine):
    """Verbs on a handful of tasks. ``desk`` is the shard they are played on."""

    desk: Any

    @initialize()
    def begin(self) -> None:
        self.desk.client.flushdb()
        self.desk.now = 1_700_000_000_000
        if self.desk.views:
            self.desk.set_view(1)
        self.desk.configure(dedup_ms=0, losses_max=LOSSES_MAX)
        self.tasks: dict[str, Task] = {}
        self.old: dict[str, int] = {}  # a lease of each id that is over
        self.highest = 0

    def move(self, name: str, event: str, *, at: int = 0) -> None:
        """``event`` happens to the task; with ``at`` it is delayed until then instead of ready."""
        task = self.tasks[name]
        goal = TRANSITIONS[task.state][event]
        if task.state == "leased" and goal != "leased":
            self.old[name] = task.lease
            task.lease, task.holder = 0, ""
        if goal == "done":
            del self.tasks[name]
            return
        task.state, task.at = (
            ("delayed", at) if goal == "ready" and at > self.desk.now else (goal, task.at)
        )

    def lose_attempt(self, name: str, event: str, delay_ms: int | None) -> None:
        """
        The end of a try that counts: buried at the limit, else later by delay or backoff, which the
        store draws.
        """
        task = self.tasks[name]
        if task.attempts_max and task.attempts >= task.attempts_max:
            self.move(name, "bury")
            return
        at = self.desk.now + (delay_ms or 0)
        if delay_ms is None and task.backoff_ms:
            at = self.desk.peek(name)["at_ms"]
            least = min(task.backoff_ms * 2 ** (task.attempts - 1), 3_600_000)
            assert least <= at - self.desk.now <= least * 5 / 4
        self.move(name, event, at=at)

    def time_passes(self) -> None:
        """What a take or a sweep does first."""
        for name, task in list(self.tasks.items()):
            if task.state in ("ready", "delayed") and 0 < task.expires <= self.desk.now:
                self.move(name, "expire")
            elif task.state == "delayed" and task.at <= self.desk.now:
                self.move(name, "due")
            elif task.state == "leased" and task.at <= self.desk.now:
                self.lose_attempt(name, "lease end", None)

    @rule(
        name=ids,
        delay_ms=delays,
        attempts=st.sampled_from([0, 1, 2]),
        backoff_ms=st.sampled_from([0, 100]),
        mode=st.sampled_from(["keep", "fail", "replace"]),
        options=st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 401, 1500])),
    )
    def put(
        self,
        name: str,
        delay_ms: int,
        attempts: int,
        backoff_ms: int,
        mode: str,
        options: tuple[int, int],
    ) -> None:
        priority, ttl_ms = options
        reply = self.desk.put(
            name, delay_ms=delay_ms, attempts=attempts, backoff_ms=backoff_ms, if_exists=mode, priority=priority, ttl_ms=ttl_ms,
        )  # fmt: skip
        old = self.tasks.get(name)
        if old is not None and mode != "replace":
            assert reply == (0 if mode == "keep" else b"EXISTS")
        elif old is not None and old.state == "leased":
            assert reply == b"NOTHELD"
        else:
            assert reply == 1
            at = self.desk.now + delay_ms
            expires = self.desk.now + ttl_ms if ttl_ms else 0
            self.tasks[name] = Task(
                "delayed" if delay_ms else "ready",
                0,
                0,
                attempts,
                backoff_ms,
                at=at,
                expires=expires,
            )

    def taken(self, row: Any, holder: str, lease_ms: int) -> None:
        task = self.tasks[row.id]
        self.move(row.id, "take")
        task.attempts += 1
        assert row.attempt == task.attempts
        assert row.lease > self.highest
        assert row.lease_end_ms == self.desk.now + lease_ms
        self.highest = task.lease = row.lease
        task.holder, task.at = holder, row.lease_end_ms

    def rows(self, holder: str, count: int = 1, **options: Any) -> list[Any]:
        """What a node, or a session through either of them, takes."""
        if holder in SESSIONS:
            return list(
                self.desk.take(
                    count, session=holder, holder=HOLDERS[len(self.tasks) % 2], **options
                )
            )
        return list(self.desk.take(count, holder=holder, **options))

    @rule(count=st.integers(1, 8), lease_ms=leases_ms, holder=holders)
    def take(self, count: int, lease_ms: int, holder: str) -> None:
        rows = self.rows(holder, count, lease_ms=lease_ms)
        self.time_passes()
        ready = [name for name, task in self.tasks.items() if task.state == "ready"]
        assert len(rows) == min(count, len(ready))
        assert {row.id for row in rows} <= set(ready)
        for row in rows:
            self.taken(row, holder, lease_ms)

    @rule(name=ids, lease_ms=leases_ms, holder=holders)
    def take_by_id(self, name: str, lease_ms: int, holder: str) -> None:
        rows = self.rows(holder, task_id=name, lease_ms=lease_ms)
        self.time_passes()
        there = name in self.tasks and "take" in TRANSITIONS[self.tasks[name].state]
        assert [row.id for row in rows] == ([name] if there else [])
        for row in rows:
            self.taken(row, holder, lease_ms)

    def lease(self, name: str, current: bool) -> tuple[int, bool]:
        """A lease number to use, and whether it is current."""
        task = self.tasks.get(name)
        held = task is not None and task.state == "leased"
        if current and held and task is not None:
            return task.lease, True
        return self.old.get(name, 7), False

    @rule(name=ids, current=st.sampled_from([True, True, False]))
    def ack(self, name: str, current: bool) -> None:
        lease, is_held = self.lease(name, current)
        assert self.desk.ack((name, lease)) == [int(is_held)]
        if is_held:
            self.move(name, "ack")

    @rule(
        name=ids, current=st.sampled_from([True, True, False]), lease_ms=st.sampled_from([0, 500])
    )
    def touch(self, name: str, current: bool, lease_ms: int) -> None:
        lease, is_held = self.lease(name, current)
        end = self.desk.touch((name, lease), lease_ms)
        assert bool(end) == is_held
        if is_held:
            self.move(name, "touch")
            self.tasks[name].at = end

    @rule(
        name=ids,
        current=st.sampled_from([True, True, False]),
        how=st.sampled_from(["release", "fail", "loss", "bury"]),
        delay_ms=st.sampled_from([-1, 0, 60]),
    )
    def end(self, name: str, current: bool, how: str, delay_ms: int) -> None:
        lease, is_held = self.lease(name, current)
        assert self.desk.end((name, lease), how, delay_ms) == int(is_held)
        if not is_held:
            return
        task = self.tasks[name]
        if how == "bury":
            self.move(name, "bury")
        elif how == "fail":
            self.lose_attempt(name, "fail", None if delay_ms < 0 else delay_ms)
        else:
            task.attempts -= 1
            task.losses += how == "loss"
            if task.losses >= LOSSES_MAX and how == "loss":
                self.move(name, "bury")
            else:
                event = {"loss": "disconnect", "release": "release"}[how]
                self.move(name, event, at=self.desk.now + max(delay_ms, 0))

    @rule(holder=st.sampled_from(HOLDERS))
    def disconnect(self, holder: str) -> None:
        """A consumer with everything this holder has goes, in one batch."""
        held = [(name, task) for name, task in self.tasks.items() if task.holder == holder]
        if not held:
            return
        args = [value for name, task in held for value in (name, task.lease, "loss", -1, "")]
        assert self.desk.run("queue.end", *args) == [1] * len(held)
        for name, task in held:
            self.lost(name, task)

    def lost(self, name: str, task: Task) -> None:
        task.attempts -= 1
        task.losses += 1
        self.move(name, "bury" if task.losses >= LOSSES_MAX else "disconnect")

    @rule(uuid=st.sampled_from(SESSIONS), most=st.integers(1, 4))
    def session_ends(self, uuid: str, most: int) -> None:
        """
        A session's grace is over: everything that it has goes, in pieces, also what has run out
        meanwhile and nobody has swept.
        """
        held = [(name, task) for name, task in self.tasks.items() if task.holder == uuid]
        more, ended = 1, 0
        while more:
            n, more = self.desk.run("queue.session_release", uuid, most)
            ended += n
        assert ended == len(held)
        for name, task in held:
            self.lost(name, task)

    @rule(node=st.sampled_from(HOLDERS))
    def release_all(self, node: str) -> None:
        """Every lease ends as a release, whoever holds it."""
        held = [(name, task) for name, task in self.tasks.items() if task.state == "leased"]
        assert self.desk.run("queue.release_all", 100, holder=node) == len(held)
        for name, task in held:
            task.attempts -= 1
            self.move(name, "release")

    @rule(count=st.integers(0, 4))
    def kick(self, count: int) -> None:
        buried = {name for name, task in self.tasks.items() if task.state == "buried"}
        moved, _ = self.desk.run("queue.kick", count, "", "", 0)
        assert moved == min(count, len(buried))
        kicked = [name for name in buried if self.desk.state(name) != "buried"]
        assert len(kicked) == moved
        for name in kicked:
            self.kicked(name)

    @rule(name=ids)
    def kick_by_id(self, name: str) -> None:
        moved, _ = self.desk.run("queue.kick", 1, name, "", 0)
        there = name in self.tasks and "kick" in TRANSITIONS[self.tasks[name].state]
        assert moved == int(there)
        if there:
            self.kicked(name)

    def kicked(self, name: str) -> None:
        self.move(name, "kick")
        self.tasks[name].attempts = self.tasks[name].losses = self.tasks[name].expires = 0

    @rule(name=ids, force=st.booleans())
    def delete(self, name: str, force: bool) -> None:
        reply = self.desk.run("queue.delete", name, 0, int(force))
        task = self.tasks.get(name)
        if task is None:
            assert reply == 0
        elif task.state == "leased" and not force:
            assert reply == b"NOTHELD"
        else:
            assert reply == 1
            self.move(name, "delete")

    @rule(name=ids, priority=st.integers(-1, 3), due=st.sampled_from([(0, 0), (1, 0), (1, 300)]))
    def update(self, name: str, priority: int, due: tuple[int, int]) -> None:
        reply = self.desk.run("queue.update", name, 0, "", *due, 0, 0, priority, 0)
        task = self.tasks.get(name)
        if task is None:
            assert reply == b"NOTFOUND"
        elif task.state == "leased":
            assert reply == b"NOTHELD"
        else:
            assert reply == 1
            if due[0] and task.state in ("ready", "delayed"):
                task.at = self.desk.now + due[1]
                task.state = "delayed" if due[1] else "ready"

    @rule()
    def sweep(self) -> None:
        self.desk.run("queue.sweep", 1, 100, holder="n9.1")
        self.time_passes()

    @rule(ms=st.sampled_from([1, 40, 60, 99, 500, 5000]))
    def advance_the_clock(self, ms: int) -> None:
        self.desk.now += ms

    @invariant()
    def every_task_is_where_the_table_says(self) -> None:
        if not hasattr(self, "tasks"):
            return
        found = {name: shown for name in IDS if (shown := self.desk.peek(name))}
        assert {name: shown["state"].decode() for name, shown in found.items()} == {
            name: task.state for name, task in self.tasks.items()
        }
        for name, shown in found.items():
            task = self.tasks[name]
            assert (shown["attempts"], shown["losses"]) == (task.attempts, task.losses), name
            if task.state in ("leased", "delayed"):
                assert (shown["at_ms"], shown["lease"]) == (task.at, task.lease), name
        counts = self.desk.counts()
        # scripts/lanes/test_model.py plays with lanes
        states = [state for state in STATES if state != "waiting"]
        assert counts == {
            state: sum(task.state == state for task in self.tasks.values()) for state in states
        }
        self.desk.audit()


def test_the_table_of_a_tasks_life_is_whole() -> None:
    assert tuple(TRANSITIONS) == STATES
    assert {state for row in TRANSITIONS.values() for state in row.values()} == {
        "ready",
        "leased",
        "buried",
        "done",
    }


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(False, id="whole"),
        pytest.param(True, id="in pieces", marks=pytest.mark.thorough),
    ],
)
def test_the_scripts_live_by_the_table(desk: Any, pieces: bool, scripts_in_pieces: Any) -> None:
    if pieces:
        desk.use(scripts_in_pieces)

    def machine() -> Life:
        Life.desk = desk
        return Life()

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 5,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
