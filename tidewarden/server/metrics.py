"""
Prometheus text from the ``stats()`` of every part.

A number becomes a gauge ``tidewarden_<part>_<name>``, or a counter when its name ends in ``_total`` (``count_puts`` is
shown as ``puts_total``); a nested mapping of numbers becomes one series with its keys as the label ``kind``. Anything
else is left out: text belongs in ``/v1/status``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidewarden.tokens.policy import STATES

Sample = tuple[str, dict[str, str], Mapping[str, Any]]
"""A part's name, the labels of all its series, its stats."""

Family = CounterMetricFamily | GaugeMetricFamily
Families = dict[str, Family]
TOKEN_NUMBERS = {
    "in_flight": "in_flight",
    "late": "late_total",
    "levelled": "levelled_total",
    "quarantines": "quarantines_total",
    "refreshers": "refreshers",
    "held": "held",
    "rate": "rate_limit",
}
"""Of each provider: the name among the counts, and in the series."""
TOKEN_COUNTERS = ("spares", "lost_rotations", "replayed", "adopted", "orphans", "orphans_dropped", "events_lost")
HELP = {
    "tidewarden_tokens_accounts": "Accounts by state, of the whole cluster",
    "tidewarden_tokens_standing": "1 for how the provider stands: answers, silent, erring, limiting or refusing",
    "tidewarden_tokens_refreshes_total": "Refreshes of this node by the class of their outcome",
    "tidewarden_tokens_late_total": "Refreshes of this node that came after the old token had expired",
    "tidewarden_tokens_in_flight": "Refreshes under way on this node",
    "tidewarden_tokens_held": "1: this node knows that its requests to the provider are held back",
    "tidewarden_tokens_rate_limit": "Requests a second, of all nodes, that the provider seems to bear",
    "tidewarden_tokens_intents_stored": "Refreshes that are under way, or of which nobody knows what became",
    "tidewarden_tokens_spares_stored": "Pairs and previous tokens that are kept aside",
    "tidewarden_tokens_journal_pending": "Answers in this node's journal that are not stored yet",
    "tidewarden_tokens_journal_unreadable": "Answers in this node's journal that could not be read (token answers shows them)",
    "tidewarden_tokens_lost_rotations_total": "Accounts whose new refresh token was lost with its answer",
    "tidewarden_webhook_deliveries_total": "Deliveries of this node by webhook and outcome",
}
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


class Snapshot:
    """A collector of the stats of one moment."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterable[Metric]:
        """One family a name, as prometheus-client asks for them."""
        families: Families = {}
        for part, labels, stats in self._samples:
            for name, value in stats.items():
                series = _series(value)
                if series:
                    family = _family(families, part, name, (*labels, *(("kind",) if "" not in series else ())))
                    for kind, number in series.items():
                        family.add_metric([*labels.values(), *((kind,) if kind else ())], number)
        return families.values()


def render(samples: Iterable[Sample]) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Snapshot(samples))
    return generate_latest(registry)


def of_tokens(stats: Mapping[str, Mapping[str, Any]], counts: Mapping[str, Any]) -> list[Sample]:
    """The tokens' figures by provider: accounts by state, and what this node has done."""
    samples: list[Sample] = []
    for name, found in stats.items():
        accounts = {state: found[state] for state in STATES if state in found}
        stored = {f"{what}_stored": found[what] for what in ("intents", "spares") if what in found}
        stands = {"standing": {found["state"]: 1}} if "state" in found else {}
        samples.append(("tokens", {"provider": name}, {"accounts": accounts, **stored, **stands}))
    for (provider, outcome), number in counts.get("refreshes", {}).items():
        samples.append(("tokens", {"provider": provider}, {"refreshes_total": {outcome: number}}))
    for name, shown in TOKEN_NUMBERS.items():
        samples += [("tokens", {"provider": key}, {shown: number}) for key, number in counts.get(name, {}).items()]
    for (provider, outcome), number in counts.get("revocations", {}).items():
        samples.append(("tokens", {"provider": provider}, {"revocations_total": {outcome: number}}))
    for (provider, kind), number in counts.get("events", {}).items():
        samples.append(("tokens", {"provider": provider}, {"events_total": {kind: number}}))
    for (name, outcome), number in counts.get("webhooks", {}).items():
        samples.append(("webhook", {"webhook": name}, {"deliveries_total": {outcome: number}}))
    samples.append(("tokens", {}, {f"{name}_total": counts.get(name, 0) for name in TOKEN_COUNTERS}))
    journal = {name: counts.get(name, 0) for name in ("journal_pending", "journal_unreadable")}
    samples.append(("tokens", {}, journal))
    return samples


def _series(value: object) -> dict[str, float]:
    """Numbers by kind; a plain number has the kind ``""``."""
    if isinstance(value, int | float):
        return {"": float(value)}
    if isinstance(value, Mapping):
        return {str(kind): float(number) for kind, number in value.items() if isinstance(number, int | float) and kind}
    return {}


def _family(families: Families, part: str, name: str, labels: tuple[str, ...]) -> Family:
    if name.startswith("count_"):
        name = name.removeprefix("count_") + "_total"
    full = _UNFIT.sub("_", f"tidewarden_{part}_{name}".lower())
    family = families.get(full)
    if family is None:
        what = HELP.get(full, f"{name} of {part}".replace("_", " "))
        made = CounterMetricFamily if full.endswith("_total") else GaugeMetricFamily
        family = families[full] = made(full, what, labels=labels)
    return family
