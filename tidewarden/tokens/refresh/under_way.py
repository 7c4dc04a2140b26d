"""Notes which accounts this node asks a provider about, or writes back, at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Notes accounts by queue and name."""

    asking: set[tuple[str, str]] = field(default_factory=set)
    """A request of this node is, or may be, under way for them."""
    storing: set[tuple[str, str]] = field(default_factory=set)
    """Their answers are on their way into the store."""
