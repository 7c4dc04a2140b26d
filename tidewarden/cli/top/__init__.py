"""Shows who sends most, live on a terminal."""

from .command import top

__all__ = ["top"]
