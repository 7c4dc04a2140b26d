"""Remembers whether this node is going down."""

from __future__ import annotations

from tidewarden.errors import Draining


class Drain:
    """Remembers whether this node is going down: from then on no request begins to wait here."""

    def __init__(self) -> None:
        self.started = False

    def check(self) -> None:
        """Check that the node stays. Raises: Draining: it is going down."""
        if self.started:
            raise Draining(
                "This node is going down and waits for nothing any more. Connect to another."
            )
