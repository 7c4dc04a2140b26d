"""What the console's data routes answer, as types."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tidewarden.server.http.task_fields import StaleMs

from .timeline import Happening

Severity = Literal["critical", "warning"]


def _said(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


class Problem(msgspec.Struct):
    """Says what is wrong, since when, and what to do."""

    what: str
    since_ms: int
    severity: Severity
    action: str


class Alert(msgspec.Struct):
    """Tells of an alert of the alert rules whose condition holds."""

    name: Annotated[str, _said("as in examples/prometheus/alerts.yml")]
    severity: Severity
    since_ms: Annotated[int, _said("since when the condition has held")]
    summary: str
    action: str
    queue: Annotated[str, _said("the queue it is about; empty: none")] = ""
    provider: Annotated[str, _said("the provider it is about; empty: none")] = ""


class NodeLine(msgspec.Struct):
    """Describes a node as it seems from the one that answers."""

    name: str
    address: str
    role: Annotated[str, _said("leader, follower, learner (does not vote) or worker")]
    state: Annotated[str, _said("up, silent, unmet, or unknown: only the store could tell")]
    epoch: Annotated[int, _said("under which it leads; 0: it does not")]
    store: Annotated[str, _said("primary, member, learner or away; empty: it has none")]
    in_sync: Annotated[bool | None, _said("null: there is one store alone")]
    behind_bytes: Annotated[int | None, _said("null: unknown")]
    heard_ms: Annotated[int | None, _said("how long ago it was heard; null: never, or it answers")]
    why: Annotated[str, _said("what is wrong with its store; empty: nothing")]


class QueueSums(msgspec.Struct):
    """Counts queues and tasks that the asker may see, the system's own left out."""

    queues: int
    ready: int
    delayed: int
    leased: int
    buried: int
    counted: Annotated[int, _said("of how many queues the tasks are: of many the busiest")]
    buried_of: Annotated[int, _said("of how many those that are buried: in the end of all")] = 0


class Overview(msgspec.Struct):
    """Says whether the cluster is healthy, what is wrong, since when, and what can be done."""

    at_ms: int
    cluster: str
    node: Annotated[str, _said("which answers")]
    version: str
    healthy: bool
    problems: list[Problem]
    nodes: list[NodeLine]
    leader: Annotated[str, _said("empty: nobody")]
    epoch: int
    view: int
    primary: Annotated[
        str, _said("whose store takes the writes; embedded or external: there is one store")
    ]
    alerts: list[Alert]
    timeline: Annotated[list[Happening], _said("the last 200, the latest first")]
    queues: QueueSums
    tokens: Annotated[dict[str, int], _said("accounts by state, of providers the asker may see")]


class AlertList(msgspec.Struct):
    """Lists the alerts that fire: the worst first, of these the oldest."""

    at_ms: int
    alerts: list[Alert]


class HistoryAnswer(msgspec.Struct):
    """Returns figures of the last hour, a number each step, the latest last; null: unknown."""

    step_ms: int
    from_ms: Annotated[int, _said("the beginning of the first step")]
    series: Annotated[
        dict[str, list[float | None]],
        _said(
            "puts takes acks fails expired refreshes requests: how many within the step; ready"
            " delayed leased buried waiting: tasks; oldest_ready_ms: for how long the most urgent"
            " ready task has been due; connections waiting_takes requests: of this node"
        ),
    ]


class Forecast(msgspec.Struct):
    """Counts the accounts whose refreshes fall due in the next hours, a number each step."""

    step_ms: int
    from_ms: int
    providers: dict[str, list[int]]
    left_out: Annotated[int, _said("providers that are not among them: there are many")] = 0
    stale_ms: StaleMs | UnsetType = UNSET
