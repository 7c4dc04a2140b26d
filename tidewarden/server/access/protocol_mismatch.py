"""Counts peers that do not speak a door's protocol, and logs one now and then."""

from __future__ import annotations

import logging

from tidewarden.clock import Clock
from tidewarden.log import OncePer

log = logging.getLogger("tidewarden.server")

SAID_S = 10.0


class ProtocolMismatch:
    """Of one door: at most one line of log in :data:`SAID_S` seconds, whatever comes."""

    def __init__(self, door: str, clock: Clock) -> None:
        """``door``: its name for people."""
        self._door = door
        self._logged = OncePer(clock, SAID_S)
        self.total = 0

    def met(self, peer: str, fault: str) -> None:
        """
        ``peer``, ``host:port``, was sent away; ``fault`` says what it did, beginning with "it".
        """
        self.total += 1
        if self._logged.passes():
            log.warning(
                "sent away from the %s door: %s",
                self._door,
                fault,
                extra={"peer": peer, "so_far": self.total},
            )
