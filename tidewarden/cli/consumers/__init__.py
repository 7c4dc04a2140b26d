"""Shows who takes and holds tasks."""

from .listing import consumers, holders, tell_unreachable

__all__ = ["consumers", "holders", "tell_unreachable"]
