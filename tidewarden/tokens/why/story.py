"""
Renders the story of an account or a provider: answers, conclusions, what comes next, advice.

Times are unix milliseconds of the store's clock; in sentences they are UTC and, beside it, how far
away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidewarden.tokens.limits.client_record import ClientRecord

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class Answered:
    """Holds what was answered to one request."""

    at_ms: int
    outcome: str
    brief: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds something that was concluded, and from what."""

    code: str
    """For programs; docs/protocol.md names them all."""
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Next:
    """Says what happens next if nobody does anything."""

    code: str
    text: str
    at_ms: int = 0
    """0: at no known time."""


@dataclass(frozen=True, slots=True)
class Story:
    """Holds the story of an account, or of a provider as a whole."""

    name: str
    state: str
    since_ms: int
    now_ms: int
    summary: str
    asked: Sequence[Answered]
    """The latest at the end."""
    concluded: Sequence[Finding]
    next: Next
    advice: Sequence[str]

    def shown(self) -> dict[str, Any]:
        """For programs, as the doors answer it."""
        return {
            "name": self.name,
            "state": self.state,
            "since_ms": self.since_ms,
            "now_ms": self.now_ms,
            "summary": self.summary,
            "asked": [
                {"at_ms": one.at_ms, "outcome": one.outcome, "brief": one.brief}
                for one in self.asked
            ],
            "concluded": [
                {"code": one.code, "text": one.text, **one.figures} for one in self.concluded
            ],
            "next": {"code": self.next.code, "text": self.next.text, "at_ms": self.next.at_ms},
            "advice": list(self.advice),
        }


@dataclass(frozen=True, slots=True)
class ClientSeen:
    """Holds the record of a provider's client, and the clock that its times are of."""

    record: ClientRecord
    clock_ms: int
    lag_ms: int
    """How far unix time is ahead of it."""

    def unix(self, clock_ms: int) -> int:
        """A time of the record in unix milliseconds; 0 stays 0."""
        return clock_ms + self.lag_ms if clock_ms else 0

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self.clock_ms + self.lag_ms


def span(seconds: float) -> str:
    """A length of time in its two greatest units: ``2 d 4 h``, ``45 s``."""
    parts: list[str] = []
    left = max(0, round(seconds))
    for unit, size in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def when(unix_ms: int, now_ms: int) -> str:
    """A time as people read it: ``2026-11-22 14:03:05 UTC (in 2 min)``."""
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    apart_s = (unix_ms - now_ms) / 1000
    if abs(apart_s) < 1:
        return f"{moment} (now)"
    return f"{moment} (in {span(apart_s)})" if apart_s > 0 else f"{moment} ({span(-apart_s)} ago)"


def count(number: int, noun: str) -> str:
    """``1 account``, ``2,000 accounts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
