"""Tells all nodes while this node asks a provider nothing because its journal is not written."""

from __future__ import annotations

from tidewarden.clock import Clock
from tidewarden.tokens.limits import judgement
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.limits.client_record import ClientRecord, Silence
from tidewarden.tokens.limits.judgement import ClientEvent, Told

TELL_S = 5.0
"""How often the store hears of trouble that goes on."""


class JournalTrouble:
    """Tells of one provider's client on this node."""

    def __init__(self, node: str, limits: ClientLimits, clock: Clock) -> None:
        """``node``: this one's name."""
        self._node = node
        self._limits = limits
        self._clock = clock
        self._told_s = float("-inf")
        self._noted = False
        """Whether the store has heard of it, or may have."""

    async def look(self, fault: str) -> None:
        """
        Tell what is to be told now.

        ``fault``: for which the provider is not asked; empty: it is asked. Raises what the store
        raises: it is told later then.
        """
        now_s = self._clock.monotonic()
        if fault and now_s - self._told_s >= TELL_S:
            self._noted = True
            brief = f"the journal of {self._node} is not writable: {fault}"
            await self._limits.change(lambda record, clock_ms: self._begun(record, clock_ms, brief))
            self._told_s = now_s
        elif not fault and self._noted:
            await self._limits.change(self._over)
            self._noted, self._told_s = False, float("-inf")

    def _begun(self, record: ClientRecord, clock_ms: int, brief: str) -> list[ClientEvent]:
        silence = Silence(clock_ms, clock_ms, 0, "journal", brief)
        return judgement.fold(record, Told(self._node, silence=silence, silent=True), clock_ms)

    def _over(self, record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
        return judgement.fold(record, Told(self._node, answered=True), clock_ms)
