"""Notes each request that a door has answered: its duration, its user and its verb."""

from __future__ import annotations

from typing import Any

from tidewarden.histograms import REQUESTS, WAITS, Family, Histogram, told_of

from .traffic.recorder import Recorder

UNKNOWN = "(unknown)"
"""The verb of a request that has none of ours."""


class AnsweredRequests:
    """
    Notes what a door answered, in one place for all its requests.

    Args:
        door: its name in figures: resp, http or beanstalkd.
        traffic: is told of each request; None: nobody.
    """

    __slots__ = ("_door", "_times", "_times_of", "_waits", "_waits_of", "traffic")

    def __init__(self, door: str, traffic: Recorder | None = None) -> None:
        self.traffic = traffic
        self._door = door
        self._times = Family(REQUESTS)
        self._waits = Family(WAITS)
        self._times_of: dict[str, Histogram] = {}
        self._waits_of: dict[str, Histogram] = {}

    def note(
        self,
        user: str | None,
        verb: str,
        name: bytes,
        peer: str,
        bytes_in: int,
        bytes_out: int,
        failed: str,
        seconds: float,
        waits: bool = False,
    ) -> None:
        """
        Note a request that was answered.

        Args:
            user: who sent it; None: nobody in particular.
            verb: from the table of verbs, or a path; :data:`UNKNOWN`: there is none.
            name: of the queue, topic, lock, schedule, provider or account that it is for; empty:
                none. It is as the peer wrote it, of any length.
            peer: the host that it came from.
            bytes_in: of its arguments, without the protocol's own; may be 0 where
                :attr:`traffic` is None.
            bytes_out: of its answer; 0: none was sent.
            failed: the word of the error that was answered, or empty.
            seconds: from its turn until its answer was ready.
            waits: it might wait for as long as its caller said.
        """
        by_verb = self._waits_of if waits else self._times_of
        (by_verb.get(verb) or self._meet(verb, waits)).observe(seconds)
        if self.traffic is not None:
            self.traffic.note(user, verb, name, peer, bytes_in, bytes_out, failed, seconds)

    def _meet(self, verb: str, waits: bool) -> Histogram:
        family, by_verb = (self._waits, self._waits_of) if waits else (self._times, self._times_of)
        made = by_verb[verb] = family.of(self._door, verb)
        return made

    def stats(self) -> dict[str, Any]:
        """Return the histograms, as a part's stats have them."""
        return told_of(self._times, self._waits)
