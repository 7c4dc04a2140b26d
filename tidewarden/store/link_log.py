"""Logs the losses and returns of several connections to one store as one event."""

from __future__ import annotations

import logging

log = logging.getLogger("tidewarden.store")

COMPLAINTS_MAX = 10
"""The most different complaints that are logged until the store is back."""


class LinkLog:
    """
    Says once that connections to the store were lost, and once that all of them are back.

    A process has a dozen connections to its store, and a store that goes is one event.
    """

    def __init__(self) -> None:
        self._away: set[object] = set()
        self._said: set[str] = set()

    def lost(self, link: object, called: str, at: str) -> None:
        """Note that a connection was lost."""
        if not self._away:
            log.warning("the connection to the %s at %s was lost", called, at)
        self._away.add(link)

    def left(self, link: object, called: str, at: str, why: str) -> None:
        """Note that this end cuts a connection and logs why itself."""
        if not self._away:
            log.warning("leaving the %s at %s: %s", called, at, why)
        self._away.add(link)

    def refused(self, link: object, why: str) -> None:
        """Note that an attempt to connect failed; each reason is said once."""
        self._away.add(link)
        if why not in self._said and len(self._said) < COMPLAINTS_MAX:
            self._said.add(why)
            log.warning("%s; trying again", why)

    def back(self, link: object, called: str, at: str) -> None:
        """Note that a connection was made; log nothing of one that was never away."""
        if link in self._away:
            self.forget(link)
            if not self._away:
                log.info("connected to the %s again, at %s", called, at)

    def forget(self, link: object) -> None:
        """Note that a connection is not wanted any more."""
        self._away.discard(link)
        if not self._away:
            self._said.clear()
