"""Counts peers that do not speak a door's protocol, and logs one now and then."""

from __future__ import annotations

import logging

from tidewarden.clock import Clock
from tidewarden.log import OncePer

log = logging.getLogger("tidewarden.server")

SAID_S = 10.0


class ProtocolMismatch:
    """
    Logs peers of one door that speak another protocol, one line in :data:`SAID_S` seconds at most.
    """

    def __init__(self, door: str, clock: Clock) -> None:
        """Call the door ``door`` in the log."""
        self._door = door
        self._logged = OncePer(clock, SAID_S)
        self.total = 0

    def met(self, peer: str, fault: str) -> None:
        """
        Note that ``peer``, ``host:port``, was sent away.

        ``fault`` says what it did, beginning with "it".
        """
        self.total += 1
        if self._logged.passes():
            log.warning(
                "sent away from the %s door: %s",
                self._door,
                fault,
                extra={"peer": peer, "so_far": self.total},
            )
