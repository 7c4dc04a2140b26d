"""Puts the console's overview together, once a second however many look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidewarden import __version__
from tidewarden.clock import Clock, in_turns
from tidewarden.config.rights import AccountRights, Rights

from .alerts import CONDITIONS, Firing
from .answers import Alert, NodeLine, Overview, Problem, QueueSums, Severity
from .recorder import FigureRecorder, NodeView
from .timeline import heard_ms_of, state_of

AGE_S = 1.0
PROBLEMS_MAX = 50
LOOK = ("token:read", "token:write", "token:admin")
"""A user who has one of these to all accounts of a provider may see how many are in which state."""
ACTION = "tidewarden doctor says more, and so does this node's log."
ACTIONS = {one.warning: one.action for one in CONDITIONS if one.warning}
"""
The advice about a warning that has an alert, too; :data:`ACTION` is the advice about the others.
"""


class OverviewPage:
    """Makes overviews from a node's knowledge and its recorder's figures."""

    def __init__(
        self, cluster: str, node: NodeView, recorder: FigureRecorder, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._recorder = recorder
        self._clock = clock
        self._since: dict[str, int] = {}
        self._made_at = float("-inf")
        self._made: Overview | None = None

    async def of(self, rights: Rights) -> Overview:
        """Return the overview as a user with these rights may see it."""
        self._recorder.watched()
        seen = await self._recorder.choice.count(rights)
        now_s = self._clock.monotonic()
        if self._made is None or now_s - self._made_at >= AGE_S:
            self._made, self._made_at = self._make(), now_s
        alerts = alerts_of(self._recorder.alerts.firing, rights)
        return msgspec.structs.replace(
            self._made,
            healthy=not self._made.problems and not alerts,
            alerts=alerts,
            queues=await self._sums(rights, seen),
            tokens=self._accounts(rights.accounts(*LOOK)),
        )

    def _make(self) -> Overview:
        """Make the part of the overview that does not depend on the user who looks."""
        status, now_ms = self._node.status(), self._clock.unix_ms()
        return Overview(
            at_ms=now_ms,
            cluster=self._cluster,
            node=str(status["node"]),
            version=__version__,
            healthy=True,
            problems=self._problems(status, now_ms),
            nodes=[_line(name, status) for name in sorted(status["members"])],
            leader=str(status["leader"]),
            epoch=int(status["epoch"]),
            view=int(status["view"]),
            primary=str(status["primary"]),
            alerts=[],
            timeline=self._recorder.timeline.all(),
            queues=QueueSums(0, 0, 0, 0, 0, 0),
            tokens={},
        )

    def _problems(self, status: Mapping[str, Any], now_ms: int) -> list[Problem]:
        found: dict[str, tuple[Severity, str, str]] = {}
        if complaint := self._node.complaint():
            action = f"This node gets no traffic until that is over. {ACTION}"
            found["node"] = ("critical", complaint, action)
        for about, warning in self._node.warnings().items():
            action = ACTIONS.get(about, ACTION).format(node=status["node"])
            found[about] = ("warning", warning, action)
        for name in status["members"]:
            if state_of(name, status) == "silent":
                action = f"Look at the host of {name}, and at its log; start it again."
                found[f"node {name}"] = ("warning", f"{name} is not heard any more", action)
        self._since = {about: self._since.get(about, now_ms) for about in found}
        return [
            Problem(
                f"{what[:1].upper()}{what[1:]}.".replace("..", "."),
                self._since[about],
                severity,
                action,
            )
            for about, (severity, what, action) in list(found.items())[:PROBLEMS_MAX]
        ]

    async def _sums(self, rights: Rights, seen: int) -> QueueSums:
        recorder = self._recorder
        names = [name for name in recorder.queues if not name.startswith("_") and rights.see(name)]
        ready, delayed, leased, buried = (
            round(sum(recorder.queues[name].latest(figure, recorder.slot) for name in names))
            for figure in ("ready", "delayed", "leased", "buried")
        )
        buried_of = len(names)
        async for name, number in in_turns(list(recorder.others.items())):
            if rights.see(name) and name not in recorder.queues:
                buried, buried_of = buried + number, buried_of + 1
        return QueueSums(seen, ready, delayed, leased, buried, len(names), buried_of)

    def _accounts(self, seen: AccountRights) -> dict[str, int]:
        sums: dict[str, int] = {}
        for provider, states in self._recorder.states.items():
            if seen.allow(provider):
                for state, number in states.items():
                    sums[state] = sums.get(state, 0) + number
        return sums


def alerts_of(firing: list[Firing], rights: Rights) -> list[Alert]:
    """
    Return the alerts that a user may see.

    Those of queues and providers are seen by right alone, those that name users and webhooks by
    who administers everything.

    An alert tells how many of all accounts of a provider are in a state, so all must be the user's.
    """
    seen = rights.accounts(*LOOK)
    return [
        one.alert
        for one in firing
        if (not one.alert.queue or rights.see(one.alert.queue))
        and (not one.alert.provider or seen.allow(one.alert.provider))
        and (not one.of_files or rights.allow_every("admin"))
    ]


def _line(name: str, status: Mapping[str, Any]) -> NodeLine:
    member = status["members"][name]
    copy = member.get("store") or {}
    leads = name == status["leader"]
    voter = "follower" if member["votes"] else "learner"
    is_worker = not member["votes"] and name not in status["raft"].get("members", {name: 0})
    behind, own = copy.get("behind"), name == status["node"]
    return NodeLine(
        name=name,
        address=member["address"],
        role="leader" if leads else "worker" if is_worker else voter,
        state=state_of(name, status),
        epoch=int(status["epoch"]) if leads else 0,
        store=copy.get("role", ""),
        in_sync=name in str(status["in_sync"]).split() if "in_sync" in status else None,
        behind_bytes=None if behind is None else int(behind),
        heard_ms=None if own else heard_ms_of(member),
        why=copy.get("why", ""),
    )
