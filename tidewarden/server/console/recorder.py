"""
Records the figures of the last hour, the events of the cluster, and the alerts that fire.

It runs in the first process of each node, whether a user looks or not, because an operator who
comes at three in the morning asks what has happened before. So it reads the node's memory, and of
the store a few counters each ten seconds: of a bounded number of queues, one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidewarden.clock import Clock, rest
from tidewarden.errors import Error, Internal, NotFound
from tidewarden.log import OncePer
from tidewarden.queue import Queues
from tidewarden.tokens import Tokens
from tidewarden.tokens.policy.account_state import STATES

from .alerts import AlertFigures, Alerts
from .history import STEP_S, History, slot_of
from .queue_choice import QueueChoice
from .timeline import Timeline

log = logging.getLogger("tidewarden.server")

LOOK_S = 1.0
STORE_S = 5.0
"""
How long reading the store may take; figures that have not come by then are missing in the history.
"""
NAMES_S = 60.0
TOKENS_S = 60.0
"""The accounts by state are counted so often while no user looks …"""
TOKENS_WATCHED_S = 10.0
"""… and so often while one does."""
WATCHED_S = 30.0
WATCHED_STEP_S = 2.0
OTHERS_MAX, OTHERS_WATCHED_MAX = 50, 200
"""
Of more queues than have a history the buried tasks are counted, in turn: of so many each step, and
of so many while somebody looks.
"""
PROVIDERS_MAX = 100
"""The accounts of more providers than these are counted only while a user looks."""
NAMES_MAX = 200
"""The most users and webhooks that have recorded figures."""

GAUGES = ("ready", "delayed", "leased", "buried", "waiting", "oldest_ready_ms")
COUNTERS = ("puts", "takes", "acks", "fails", "expired", "refreshes")
OF_COUNTER = {
    "puts": "count_put",
    "takes": "count_taken",
    "acks": "count_acked",
    "fails": "count_fail",
    "expired": "count_expired",
    "refreshes": "count_accounts refreshed",
}
"""The figures of the history, and the counter of ``Q.STATS`` that each comes from."""
OWN_GAUGES = ("connections", "waiting_takes")
OWN_COUNTERS = ("requests",)
KEPT_OF_NODE = (
    "store_clock_steps_total",
    "store_failovers_total",
    "commit_missed_total",
)


class NodeView(Protocol):
    """Shows what a node knows of itself and of its cluster."""

    def status(self) -> Mapping[str, Any]: ...
    def stats(self) -> Mapping[str, Any]: ...
    def complaint(self) -> str: ...
    def warnings(self) -> Mapping[str, str]: ...


class FigureRecorder:
    """
    Records until :meth:`run` is cancelled.

    ``doors`` returns the figures of the RESP port, of all processes of the node.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        node: NodeView,
        doors: Callable[[], Mapping[str, Any]],
        queues: Queues,
        tokens: Tokens | None,
    ) -> None:
        self._name = name
        self._clock = clock
        self.node = node
        self._doors = doors
        self._queues = queues
        self._tokens = tokens
        self.timeline = Timeline(name, clock)
        self.alerts = Alerts()
        self.choice = QueueChoice()
        self.own = History()
        self.total = History()
        self.queues: dict[str, History] = {}
        self.others: dict[str, int] = {}
        """Buried tasks of queues without a history, as they were last counted."""
        self.accounts: dict[str, History] = {}
        self.states: dict[str, dict[str, int]] = {}
        """Accounts by state, by provider, as they were last counted."""
        self._standing: dict[str, str] = {}
        self._users: dict[str, History] = {}
        self._webhooks: dict[str, History] = {}
        self.slot = slot_of(clock.unix_ms()) - 1  # the first turn records at once
        self._names_at = self._tokens_at = float("-inf")
        self._watched_at = self._recorded_at = float("-inf")
        self._defects = OncePer(clock, 60.0)

    def watched(self) -> None:
        """Note that a user looks."""
        self._watched_at = self._clock.monotonic()

    def _is_watched(self, now_s: float) -> bool:
        return now_s - self._watched_at < WATCHED_S

    async def run(self) -> None:
        """Record for ever. A defect here is logged, and does not end the node."""
        while True:
            try:
                await self.turn()
            except Exception:
                if self._defects.passes():
                    log.exception("the console's figures were not recorded")
            await rest(self._clock, LOOK_S)

    async def turn(self) -> None:
        """
        Look at the cluster, and, if another step has begun, at everything else.

        While a user looks, a step's figures are renewed every few seconds.
        """
        status = self.node.status()
        self.timeline.look(status)
        now_ms = self._clock.unix_ms()
        slot, now_s = slot_of(now_ms), self._clock.monotonic()
        is_old = self._is_watched(now_s) and now_s - self._recorded_at >= WATCHED_STEP_S
        if slot == self.slot and not is_old:
            return
        self.slot, self._recorded_at = slot, now_s
        stats, doors = self.node.stats(), self._doors()
        self._record_node(slot, stats, doors)
        await self._read_store(slot)
        self.alerts.judge(self._figures(slot, now_ms, status, stats), now_ms)

    def _record_node(self, slot: int, stats: Mapping[str, Any], doors: Mapping[str, Any]) -> None:
        self.own.put(slot, {name: stats[name] for name in KEPT_OF_NODE if name in stats})
        self.own.put(
            slot,
            {
                "connections": doors["connections"],
                "waiting_takes": stats["waiting_takes"],
                "requests": sum(doors["requests_total"].values()),
                "logins_refused_total": doors["logins_refused_total"],
            },
        )
        for user, number in doors["denied_total"].items():
            _counted(self._users, user, slot, {"denied": number})
        if self._tokens is None:
            return
        failed: dict[str, float] = {}
        for (name, outcome), number in self._tokens.deliveries.items():
            if outcome == "failed":
                failed[name] = failed.get(name, 0) + number
        for name, number in failed.items():
            _counted(self._webhooks, name, slot, {"failed": number})

    # --- what the store knows

    async def _read_store(self, slot: int) -> None:
        try:
            async with asyncio.timeout(STORE_S):
                await self._read_queues(slot)
                await self._read_accounts(slot)
        except (Error, TimeoutError) as error:
            log.debug("the console's history has a gap: %s", error)

    async def _read_queues(self, slot: int) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._names_at >= (STEP_S / 2 if self._is_watched(now_s) else NAMES_S):
            names = await self._queues.admin.names()
            self.choice.names(names)
            for name in self.others.keys() - set(names):
                del self.others[name]
            self._names_at = now_s
        chosen = self.choice.chosen(now_s)
        for name in self.queues.keys() - chosen:
            buried = self.queues.pop(name).latest("buried", slot)
            if self.choice.is_other(name):
                self.others[name] = round(buried)
        sums = dict.fromkeys((*GAUGES[:-1], *COUNTERS), 0.0) | {"oldest_ready_ms": 0.0}
        for name in chosen:
            figures = await self._of_queue(name, slot)
            for key, number in figures.items():
                if name.startswith("_") and key != "refreshes":
                    continue  # the system's own work is no work of users
                if key == "oldest_ready_ms":
                    sums[key] = max(sums[key], number)
                else:
                    sums[key] += number
        self.total.put(slot, sums)
        await self._count_others(now_s)

    async def _count_others(self, now_s: float) -> None:
        """Count the buried tasks of some more queues: "healthy" is not said beside hundreds."""
        for name in self.queues.keys() & self.others.keys():
            del self.others[name]
        for name in self.choice.others(
            OTHERS_WATCHED_MAX if self._is_watched(now_s) else OTHERS_MAX
        ):
            try:
                stats = await self._queues.admin.stats(name, marks=True)
            except (NotFound, Internal):
                stats = {}
            if "buried" in stats:
                self.others[name] = int(stats["buried"])
            else:
                self.others.pop(name, None)

    async def _of_queue(self, name: str, slot: int) -> dict[str, float]:
        try:
            stats = await self._queues.admin.stats(name, marks=True)
        except (NotFound, Internal):  # it has gone, or its settings cannot be read
            return {}
        if "ready" not in stats:  # it is a topic now
            return {}
        oldest_ms = stats["oldest_ready_deadline_ms"]
        figures = {key: float(stats[key]) for key in GAUGES[:-1]}
        figures["oldest_ready_ms"] = (
            float(max(0, self._clock.unix_ms() - oldest_ms)) if oldest_ms >= 0 else 0.0
        )
        for key, counter in OF_COUNTER.items():
            if counter in stats or key != "refreshes":
                figures[key] = float(stats.get(counter, 0))
        history = self.queues.get(name)
        if history is None:
            history = self.queues[name] = History()
        history.put(slot, figures)
        self.choice.saw(name, figures["puts"] + figures["takes"] + figures.get("refreshes", 0))
        return figures

    async def _read_accounts(self, slot: int) -> None:
        tokens, now_s = self._tokens, self._clock.monotonic()
        if tokens is None:
            return
        watched = self._is_watched(now_s)
        if not watched and len(tokens.providers()) > PROVIDERS_MAX:
            return
        if now_s - self._tokens_at < (TOKENS_WATCHED_S if watched else TOKENS_S) - STEP_S / 2:
            return
        found = await tokens.latest_stats(STORE_S)
        if found is None:
            return
        self._tokens_at = now_s
        self.states, self._standing = {}, {}
        for name in self.accounts.keys() - found[0].keys():
            del self.accounts[name]  # which makes room for another
        for name, stats in found[0].items():
            states = {str(state): int(stats[state]) for state in STATES if state in stats}
            self.states[name] = states
            self._standing[name] = str(stats.get("state", ""))
            _named(self.accounts, name, slot, states)

    def _figures(
        self, slot: int, now_ms: int, status: Mapping[str, Any], stats: Mapping[str, Any]
    ) -> AlertFigures:
        silent = {
            name: (now_ms - since_ms) / 1000
            for name in status["members"]
            if (since_ms := self.timeline.silent_since_ms(name))
        }
        unreadable = 0 if self._tokens is None else self._tokens.unreadable
        return AlertFigures(
            node=self._name,
            slot=slot,
            now_s=now_ms / 1000,
            stats=stats,
            own=self.own,
            users=self._users,
            webhooks=self._webhooks,
            queues=self.queues,
            accounts=self.accounts,
            standing=self._standing,
            unreadable=unreadable,
            leader=str(status["leader"]),
            silent=silent,
            buried={name: number for name, number in self.others.items() if number},
        )


def _named(
    histories: dict[str, History], name: str, slot: int, figures: Mapping[str, float]
) -> None:
    """Note figures of a subject with a name."""
    history = histories.get(name)
    if history is None:
        if len(histories) >= NAMES_MAX:
            return
        history = histories[name] = History()
    history.put(slot, figures)


def _counted(
    histories: dict[str, History], name: str, slot: int, figures: Mapping[str, float]
) -> None:
    """Note counters, which count as 0 before they were first seen."""
    if name not in histories:
        _named(histories, name, slot - 1, dict.fromkeys(figures, 0.0))
    _named(histories, name, slot, figures)
