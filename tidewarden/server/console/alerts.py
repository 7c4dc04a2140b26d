"""
Declares the alerts, for a node and for Prometheus, a row for each.

A node works a condition out from what it has in memory. Prometheus knows all nodes; a node knows
itself and the nodes that it hears. The figures of queues, accounts and stores are those of the
whole cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .answers import Alert, Severity
from .history import STEP_S, History

ACCOUNT_STATES = ("late", "failing", "stopped", "dead", "lost_rotation")
CASES_MAX = 200
"""
The most cases of one alert: thousands of queues may go wrong at once, and no person reads that.
"""


@dataclass(frozen=True, slots=True)
class AlertFigures:
    """
    Holds the figures that conditions judge, of one moment.

    ``queues`` and ``accounts`` are histories by queue and by provider; ``standing`` says how each
    provider stands; ``silent`` names nodes and for how many seconds nobody has heard them;
    ``buried`` counts the buried tasks of queues without a history, where there are any.
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
    buried: Mapping[str, int]

    def number(self, name: str) -> float:
        """Return one of the node's own numbers; one that it does not have is 0."""
        found = self.stats.get(name, 0)
        return float(found) if isinstance(found, int | float) else 0.0

    def risen(self, name: str, seconds: int) -> float:
        """Return how much one of the node's own counters has counted lately."""
        ring = self.own.ring(name)
        return ring.risen(self.slot, seconds) if ring else 0.0


Labels = Mapping[str, str | float]
"""The subject of a case, by the names that the texts use."""
DETAILS = ("value", "growth", "standing")
"""The labels that tell a case from another."""


@dataclass(frozen=True, slots=True)
class Firing:
    """Holds an alert that fires, or may."""

    about: str
    """The key by which the alert is the same one later."""
    alert: Alert
    of_files: bool
    """Whether it names a user or a webhook, which the configuration alone tells."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Says when there are cases, to Prometheus and by a node's own figures."""

    expr: str
    cases: Callable[[AlertFigures], Iterable[Labels]]


@dataclass(frozen=True, slots=True)
class Condition:
    """
    Tells when an alert of a name fires: while there are cases for ``for_s`` seconds.

    ``summary`` and ``action`` may name ``{node}`` and the cases' labels. The rules for Prometheus,
    ``examples/prometheus/alerts.yml``, are made of these rows.
    """

    name: str
    severity: Severity
    for_s: int
    trigger: Trigger
    summary: str
    action: str
    warning: str = ""
    """The name in the node's own warnings; empty: they have none for it."""

    def of(self, seen: AlertFigures) -> Iterator[Firing]:
        """Return the cases in words."""
        for labels in self.trigger.cases(seen):
            names: dict[str, Any] = {"node": seen.node, "queue": "", "provider": ""} | dict(labels)
            about = [str(value) for name, value in labels.items() if name not in DETAILS]
            summary, action = self.summary.format(**names), self.action.format(**names)
            alert = Alert(
                self.name, self.severity, 0, summary, action, names["queue"], names["provider"]
            )
            yield Firing(" ".join(about), alert, bool({"user", "webhook"} & labels.keys()))


def _when(expr: str, holds: Callable[[AlertFigures], bool]) -> Trigger:
    return Trigger(expr, lambda seen: [{}] if holds(seen) else [])


def _above(name: str, *, each: bool = False) -> Trigger:
    """Make a trigger for a number of the node's that is not 0; ``each``: nodes may differ in it."""
    series = f"tidewarden_node_{name}"
    expr = series if each else f"max({series})"
    return _when(f"{expr} > 0", lambda seen: seen.number(name) > 0)


def _risen(
    name: str, minutes: int, least: int = 0, *, of: str = "node", each: bool = True
) -> Trigger:
    """Make a trigger for a counter that rose by more than ``least`` within so many minutes."""
    risen = f"increase(tidewarden_{of}_{name}[{minutes}m])"
    # The rings hold an hour less a step.
    seconds = min(60 * minutes, 3600 - STEP_S)
    return _when(
        f"{risen if each else f'max({risen})'} > {least}",
        lambda seen: seen.risen(name, seconds) > least,
    )


def _duties_late(seen: AlertFigures) -> Iterator[Labels]:
    late = seen.stats.get("leader_duty_late_seconds", {})
    for kind, seconds in late.items() if isinstance(late, Mapping) else ():
        if seconds > 30:
            yield {"kind": kind, "value": seconds}


def _buried(seen: AlertFigures) -> Iterator[Labels]:
    for queue, history in seen.queues.items():
        ring = history.ring("buried")
        if ring is not None and (buried := ring.latest(seen.slot, 900)) > 0:
            more = max(0.0, ring.growth(seen.slot, 900))
            # Where no figure is as old, all of them may have been buried since.
            then = seen.slot - 900 // STEP_S
            known = more or not all(map(math.isnan, ring.over(then - 6, then + 6)))
            growth = f", {more:.0f} more than 15 minutes ago" if known else ""
            yield {"queue": queue, "value": buried, "growth": growth}
    for queue, number in seen.buried.items():
        yield {"queue": queue, "value": number, "growth": ""}


def _accounts(seen: AlertFigures) -> Iterator[Labels]:
    for provider, history in seen.accounts.items():
        for state in ACCOUNT_STATES:
            ring = history.ring(state)
            if ring is not None and (more := ring.growth(seen.slot, 900)) > 0:
                yield {"provider": provider, "kind": state, "value": more}


def _providers(seen: AlertFigures) -> Iterator[Labels]:
    for provider, state in seen.standing.items():
        if state not in ("answers", ""):
            yield {"provider": provider, "standing": state}


def _each_risen(label: str, of: str, figure: str, minutes: int, least: int, series: str) -> Trigger:
    """
    Make a trigger for a user's, or webhook's, figure that rose by more than ``least``, likewise.
    """

    def cases(seen: AlertFigures) -> Iterator[Labels]:
        for name, history in getattr(seen, of).items():
            ring = history.ring(figure)
            if ring is not None and ring.risen(seen.slot, 60 * minutes) > least:
                yield {label: name}

    return Trigger(f"{series.format(f'[{minutes}m]')} > {least}", cases)


def _certificate(seen: AlertFigures) -> bool:
    ends_s = seen.number("certificate_expires_ms") / 1000
    return 0 < ends_s < seen.now_s + 7 * 86400


def _few_in_sync(seen: AlertFigures) -> bool:
    return "stores_voting" in seen.stats and (
        seen.number("stores_in_sync") * 2 <= seen.number("stores_voting")
    )


_WEBHOOKS = 'sum by (webhook) (increase(tidewarden_webhook_deliveries_total{{kind="failed"}}{}))'
_DENIED = "sum by (kind) (increase(tidewarden_resp_denied_total{}))"
CONDITIONS = (
    Condition(
        "TidewardenNodeDown",
        "warning",
        60,
        Trigger('up{job="tidewarden"} == 0', lambda seen: [{"node": name} for name in seen.silent]),
        "{node} is not heard any more. What its consumers held goes to others within seconds.",
        "Look at its host and its log, and start it again: tidewarden run on {node}.",
    ),
    Condition(
        "TidewardenStoreAway",
        "critical",
        10,
        _when("tidewarden_node_store_up == 0", lambda seen: seen.stats.get("store_up", 1) == 0),
        "{node} does not reach the store.",
        "/health/ready says why. Is the store's server up, and is its host reached?",
    ),
    Condition(
        "TidewardenStoreRefuses",
        "critical",
        10,
        _above("store_refuses", each=True),
        "The store answers {node} but accepts no writes.",
        "/health/ready gives its reason.",
    ),
    Condition(
        "TidewardenStoreFull",
        "critical",
        0,
        _above("store_full"),
        "The store's memory is full, and puts are refused.",
        "Take and acknowledge, or raise its maxmemory.",
        "store memory",
    ),
    Condition(
        "TidewardenStoreClockStepped",
        "warning",
        0,
        _risen("store_clock_steps_total", 15),
        "The store's clock was stepped within 15 minutes. Due times follow it.",
        "Set the clock of the store's host right.",
        "store clock",
    ),
    Condition(
        "TidewardenStoresBelowMajority",
        "critical",
        10,
        _when(
            "max(tidewarden_node_stores_in_sync) * 2 <= max(tidewarden_node_stores_voting)",
            _few_in_sync,
        ),
        "Too few stores are in sync: writes are answered NOQUORUM.",
        "tidewarden cluster status says why each is not; docs/replication.md says what to do when"
        " hosts are gone.",
    ),
    Condition(
        "TidewardenStoreNotInSync",
        "warning",
        300,
        _when(
            "max(tidewarden_node_stores_in_sync) < max(tidewarden_node_stores_voting)",
            lambda seen: seen.number("stores_in_sync") < seen.number("stores_voting"),
        ),
        "A store has not been in sync for five minutes.",
        "tidewarden cluster status says which, and why.",
        "stores in sync",
    ),
    Condition(
        "TidewardenStoreLoss",
        "critical",
        0,
        _above("store_loss"),
        "A last resort chose the primary, and acknowledged writes may be missing.",
        "tidewarden cluster confirm ends this.",
        "loss",
    ),
    Condition(
        "TidewardenStoreFailovers",
        "warning",
        0,
        _risen("store_failovers_total", 60, 3, each=False),
        "The primary has moved more than three times within an hour.",
        "The nodes' logs say why.",
    ),
    Condition(
        "TidewardenStoreProblems",
        "warning",
        300,
        _above("store_problems"),
        "Something about the replicated stores needs a look.",
        "tidewarden doctor says what.",
    ),
    Condition(
        "TidewardenNoLeader",
        "critical",
        15,
        _when("max by (job) (tidewarden_node_leader) == 0", lambda seen: not seen.leader),
        "There is no leader. Due tasks wait for somebody who asks, and schedules stand still.",
        "Are most members up, and do they reach each other?",
    ),
    Condition(
        "TidewardenLeaderStandsStill",
        "critical",
        0,
        Trigger("tidewarden_node_leader_duty_late_seconds > 30", _duties_late),
        "The leader's {kind} has made no progress for {value:.0f} s.",
        "The log of {node} says what it waits for.",
        "leader",
    ),
    Condition(
        "TidewardenDurabilityMissed",
        "warning",
        0,
        _risen("commit_missed_total", 5),
        "Answers of {node} missed their durability (NOQUORUM) within five minutes.",
        "A replica is away or slow: tidewarden cluster status.",
        "durability",
    ),
    Condition(
        "TidewardenTasksBuried",
        "warning",
        0,
        Trigger("max by (queue) (tidewarden_queue_buried) > 0", _buried),
        "{value:.0f} tasks of {queue} are buried{growth}.",
        "See why: tidewarden queue reasons {queue}. Then kick, move or delete them.",
    ),
    Condition(
        "TidewardenAccounts",
        "warning",
        0,
        Trigger(
            "max by (provider, kind) (delta(tidewarden_tokens_accounts{"
            f'kind=~"{"|".join(ACCOUNT_STATES)}"}}[15m])) > 0',
            _accounts,
        ),
        "{value:.0f} more accounts of {provider} are {kind} than 15 minutes ago.",
        "See which: tidewarden token list --state {kind}; token why says more.",
    ),
    Condition(
        "TidewardenProvider",
        "warning",
        60,
        Trigger(
            'max by (provider, kind) (tidewarden_tokens_standing{kind!="answers"}) == 1', _providers
        ),
        "{provider} is {standing}.",
        "tidewarden token why {provider} shows its answers and what to do.",
    ),
    Condition(
        "TidewardenAnswersUnreadable",
        "warning",
        0,
        _when("tidewarden_tokens_journal_unreadable > 0", lambda seen: seen.unreadable > 0),
        "{node} keeps answers of providers that could not be read.",
        "tidewarden token answers shows them.",
    ),
    Condition(
        "TidewardenWebhooks",
        "warning",
        0,
        _each_risen("webhook", "webhooks", "failed", 10, 0, _WEBHOOKS),
        "The webhook {webhook} is not delivered; it is tried again for half a day.",
        "Look at the receiver: its answers are in this node's log.",
    ),
    Condition(
        "TidewardenLogins",
        "warning",
        300,
        _risen("logins_refused_total", 5, 30, of="resp"),
        "Somebody tries secrets at {node}.",
        "Its log has the addresses.",
    ),
    Condition(
        "TidewardenDenied",
        "warning",
        300,
        _each_risen("user", "users", "denied", 5, 30, _DENIED),
        "The user {user} keeps sending requests that it has no right to.",
        "The log says which. Give it the right, or stop it.",
    ),
    Condition(
        "TidewardenCertificate",
        "warning",
        0,
        _when(
            "tidewarden_node_certificate_expires_seconds - time() < 7 * 86400"
            " and tidewarden_node_certificate_expires_seconds > 0",
            _certificate,
        ),
        "The certificate of {node} ends within a week.",
        "Replace it, then send SIGHUP.",
        "certificate",
    ),
)


class Alerts:
    """Remembers since when each condition has held; :meth:`judge` is called now and then."""

    def __init__(self, conditions: Iterable[Condition] = CONDITIONS) -> None:
        self._conditions = tuple(conditions)
        self._since: dict[tuple[str, str], int] = {}
        self.firing: list[Firing] = []

    def judge(self, seen: AlertFigures, now_ms: int) -> None:
        """Work out which alerts fire now: the worst first, of these the oldest."""
        since: dict[tuple[str, str], int] = {}
        firing: list[Firing] = []
        for condition in self._conditions:
            for one in islice(condition.of(seen), CASES_MAX):
                key = (condition.name, one.about)
                one.alert.since_ms = since[key] = self._since.get(key, now_ms)
                if now_ms - one.alert.since_ms >= condition.for_s * 1000:
                    firing.append(one)
        self._since = since
        self.firing = sorted(
            firing, key=lambda one: (one.alert.severity, one.alert.since_ms, one.alert.name)
        )
