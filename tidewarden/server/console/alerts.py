"""
The alerts of ``examples/prometheus/alerts.yml``, as one node sees them without Prometheus.

A condition of each name stands here, worked out from what the node has in memory. What Prometheus
knows of all nodes, a node knows of itself and of those it hears; the figures of queues, accounts
and stores are those of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .history import History

Severity = Literal["critical", "warning"]
ACCOUNT_STATES = ("late", "failing", "stopped", "dead", "lost_rotation")
CASES_MAX = 200
"""Of all alerts together: thousands of queues may go wrong at once, and nobody reads that."""


@dataclass(frozen=True, slots=True)
class AlertFigures:
    """
    Holds what conditions look at, at one moment.

    ``queues`` and ``accounts`` are histories by queue and by provider; ``standing`` says how each
    provider stands; ``silent`` names nodes and for how many seconds nobody has heard them.
    """

    node: str
    slot: int
    now_s: float
    stats: Mapping[str, Any]
    own: History
    users: Mapping[str, History]
    webhooks: Mapping[str, History]
    queues: Mapping[str, History]
    accounts: Mapping[str, History]
    standing: Mapping[str, str]
    unreadable: int
    leader: str
    silent: Mapping[str, float]

    def number(self, name: str) -> float:
        """Return one of the node's own numbers; one that it does not have is 0."""
        found = self.stats.get(name, 0)
        return float(found) if isinstance(found, int | float) else 0.0

    def risen(self, name: str, seconds: int) -> float:
        """Return how much one of the node's own counters has counted lately."""
        ring = self.own.ring(name)
        return ring.risen(self.slot, seconds) if ring else 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """Says what an alert is about: which queue, provider, node or user; and what to do."""

    about: str
    summary: str
    action: str
    queue: str = ""
    provider: str = ""
    of_files: bool = False
    """Whether it names what the configuration alone tells: a user, a webhook."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Tells when an alert of a name fires: while there are cases for ``for_s`` seconds."""

    name: str
    severity: Severity
    for_s: int
    cases: Callable[[AlertFigures], Iterable[Case]]


def _when(
    holds: Callable[[AlertFigures], bool], summary: str, action: str
) -> Callable[[AlertFigures], Iterator[Case]]:
    def cases(seen: AlertFigures) -> Iterator[Case]:
        if holds(seen):
            yield Case("", summary.format(node=seen.node), action)

    return cases


def _nodes_down(seen: AlertFigures) -> Iterator[Case]:
    for name in seen.silent:
        yield Case(
            name,
            f"{name} is not heard any more. What its consumers held goes to others within seconds.",
            f"Look at its host and its log, and start it again: tidewarden run on {name}.",
        )


def _duties_late(seen: AlertFigures) -> Iterator[Case]:
    late = seen.stats.get("leader_duty_late_seconds", {})
    for kind, seconds in late.items() if isinstance(late, Mapping) else ():
        if seconds > 30:
            yield Case(
                kind,
                f"The leader's {kind} has made no progress for {seconds:.0f} s.",
                f"The log of {seen.node} says what it waits for.",
            )


def _buried(seen: AlertFigures) -> Iterator[Case]:
    for queue, history in seen.queues.items():
        ring = history.ring("buried")
        if ring is not None and (buried := ring.latest(seen.slot, 900)) > 0:
            more = max(0.0, ring.growth(seen.slot, 900))
            yield Case(
                queue,
                f"{buried:.0f} tasks of {queue} are buried, {more:.0f} more than 15 minutes ago.",
                f"See why: tidewarden queue peek {queue} --state buried. Then kick or delete them.",
                queue=queue,
            )


def _accounts(seen: AlertFigures) -> Iterator[Case]:
    for provider, history in seen.accounts.items():
        for state in ACCOUNT_STATES:
            ring = history.ring(state)
            if ring is not None and (more := ring.growth(seen.slot, 900)) > 0:
                yield Case(
                    f"{provider} {state}",
                    f"{more:.0f} more accounts of {provider} are {state} than 15 minutes ago.",
                    f"See which: tidewarden token list --state {state}; token why says more.",
                    provider=provider,
                )


def _providers(seen: AlertFigures) -> Iterator[Case]:
    for provider, state in seen.standing.items():
        if state not in ("answers", ""):
            yield Case(
                provider,
                f"{provider} is {state}.",
                f"tidewarden token why {provider} shows its answers and what to do.",
                provider=provider,
            )


def _webhooks(seen: AlertFigures) -> Iterator[Case]:
    for name, history in seen.webhooks.items():
        ring = history.ring("failed")
        if ring is not None and ring.risen(seen.slot, 600) > 0:
            yield Case(
                name,
                f"The webhook {name} is not delivered; it is tried again for half a day.",
                "Look at the receiver: its answers are in this node's log.",
                of_files=True,
            )


def _denied(seen: AlertFigures) -> Iterator[Case]:
    for name, history in seen.users.items():
        ring = history.ring("denied")
        if ring is not None and ring.risen(seen.slot, 300) > 30:
            yield Case(
                name,
                f"The user {name} keeps sending requests that it has no right to.",
                "The log says which. Give it the right, or stop it.",
                of_files=True,
            )


def _certificate(seen: AlertFigures) -> bool:
    ends_s = seen.number("certificate_expires_ms") / 1000
    return 0 < ends_s < seen.now_s + 7 * 86400


def _few_in_sync(seen: AlertFigures) -> bool:
    return "stores_voting" in seen.stats and (
        seen.number("stores_in_sync") * 2 <= seen.number("stores_voting")
    )


def _one_not_in_sync(seen: AlertFigures) -> bool:
    return seen.number("stores_in_sync") < seen.number("stores_voting")


CONDITIONS = (
    Condition("TidewardenNodeDown", "warning", 60, _nodes_down),
    Condition(
        "TidewardenStoreAway",
        "critical",
        10,
        _when(
            lambda seen: seen.stats.get("store_up", 1) == 0,
            "{node} does not reach the store.",
            "/health/ready says why. Is the store's server up, and is its host reached?",
        ),
    ),
    Condition(
        "TidewardenStoreRefuses",
        "critical",
        10,
        _when(
            lambda seen: seen.number("store_refuses") == 1,
            "The store answers {node} but accepts no writes.",
            "/health/ready gives its reason.",
        ),
    ),
    Condition(
        "TidewardenStoreFull",
        "critical",
        0,
        _when(
            lambda seen: seen.number("store_full") == 1,
            "The store's memory is full, and puts are refused.",
            "Take and acknowledge, or raise its maxmemory.",
        ),
    ),
    Condition(
        "TidewardenStoreClockStepped",
        "warning",
        0,
        _when(
            lambda seen: seen.risen("store_clock_steps_total", 900) > 0,
            "The store's clock was stepped within 15 minutes. Due times follow it.",
            "Set the clock of the store's host right.",
        ),
    ),
    Condition(
        "TidewardenStoresBelowMajority",
        "critical",
        10,
        _when(
            _few_in_sync,
            "Too few stores are in sync: writes are answered NOQUORUM.",
            "tidewarden cluster status says why each is not; docs/replication.md says what to do"
            " when hosts are gone.",
        ),
    ),
    Condition(
        "TidewardenStoreNotInSync",
        "warning",
        300,
        _when(
            _one_not_in_sync,
            "A store has not been in sync for five minutes.",
            "tidewarden cluster status says which, and why.",
        ),
    ),
    Condition(
        "TidewardenStoreLoss",
        "critical",
        0,
        _when(
            lambda seen: seen.number("store_loss") == 1,
            "A last resort chose the primary, and acknowledged writes may be missing.",
            "tidewarden cluster confirm ends this.",
        ),
    ),
    Condition(
        "TidewardenStoreFailovers",
        "warning",
        0,
        _when(
            lambda seen: seen.risen("store_failovers_total", 3590) > 3,
            "The primary has moved more than three times within an hour.",
            "The nodes' logs say why.",
        ),
    ),
    Condition(
        "TidewardenStoreProblems",
        "warning",
        300,
        _when(
            lambda seen: seen.number("store_problems") > 0,
            "Something about the replicated stores needs a look.",
            "tidewarden doctor says what.",
        ),
    ),
    Condition(
        "TidewardenNoLeader",
        "critical",
        15,
        _when(
            lambda seen: not seen.leader,
            "There is no leader. Due tasks wait for somebody who asks, and schedules stand still.",
            "Are most members up, and do they reach each other?",
        ),
    ),
    Condition("TidewardenLeaderStandsStill", "critical", 0, _duties_late),
    Condition(
        "TidewardenDurabilityMissed",
        "warning",
        0,
        _when(
            lambda seen: seen.risen("commit_missed_total", 300) > 0,
            "Answers of {node} missed their durability (NOQUORUM) within five minutes.",
            "A replica is away or slow: tidewarden cluster status.",
        ),
    ),
    Condition("TidewardenTasksBuried", "warning", 0, _buried),
    Condition("TidewardenAccounts", "warning", 0, _accounts),
    Condition("TidewardenProvider", "warning", 60, _providers),
    Condition(
        "TidewardenAnswersUnreadable",
        "warning",
        0,
        _when(
            lambda seen: seen.unreadable > 0,
            "{node} keeps answers of providers that could not be read.",
            "tidewarden token answers shows them.",
        ),
    ),
    Condition("TidewardenWebhooks", "warning", 0, _webhooks),
    Condition(
        "TidewardenLogins",
        "warning",
        300,
        _when(
            lambda seen: seen.risen("logins_refused_total", 300) > 30,
            "Somebody tries secrets at {node}.",
            "Its log has the addresses.",
        ),
    ),
    Condition("TidewardenDenied", "warning", 300, _denied),
    Condition(
        "TidewardenCertificate",
        "warning",
        0,
        _when(
            _certificate,
            "The certificate of {node} ends within a week.",
            "Replace it, then send SIGHUP.",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Firing:
    """Tells of an alert that fires, since when its condition has held, and what to do."""

    name: str
    severity: Severity
    since_ms: int
    case: Case


class Alerts:
    """Remembers since when each condition has held; :meth:`judge` now and then."""

    def __init__(self, conditions: Iterable[Condition] = CONDITIONS) -> None:
        self._conditions = tuple(conditions)
        self._since: dict[tuple[str, str], int] = {}
        self.firing: list[Firing] = []

    def judge(self, seen: AlertFigures, now_ms: int) -> None:
        """Work out what fires now: the worst first, of these the oldest."""
        since: dict[tuple[str, str], int] = {}
        firing: list[Firing] = []
        for condition in self._conditions:
            for case in condition.cases(seen):
                if len(since) >= CASES_MAX:
                    break
                key = (condition.name, case.about)
                began_ms = since[key] = self._since.get(key, now_ms)
                if now_ms - began_ms >= condition.for_s * 1000:
                    firing.append(Firing(condition.name, condition.severity, began_ms, case))
        self._since = since
        self.firing = sorted(firing, key=lambda one: (one.severity, one.since_ms, one.name))
