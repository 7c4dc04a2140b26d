"""Who may enter: names and secrets checked for both doors, slowly on purpose and never in the loop's thread."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tidewarden.clock import Clock, sleep
from tidewarden.config import User, check_secret
from tidewarden.errors import WrongPass

log = logging.getLogger("tidewarden.server")

FAILURE_DELAY_S = 0.25
"""What a wrong secret costs the one who sent it; nobody else waits."""
CHECKS_AT_ONCE = 2
DEFAULT_USER = "default"


class Users:
    """
    The configured users.

    A secret that was right once is remembered as an HMAC under a key of this process, so that the slow hash is paid
    once a user and not once a connection.

    Args:
        users: from the configuration.
        loopback: whether only this machine can reach the door. There, and with no users, everybody is let in as
            ``default``; what needs a *named* user stays closed.
        clock: for the delay after a wrong secret.
    """

    def __init__(self, users: Sequence[User], clock: Clock, *, loopback: bool) -> None:
        self._hashes = {user.name: user.secret_hash for user in users}
        self._clock = clock
        self._key = os.urandom(32)
        self._right: dict[bytes, str] = {}
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="tidewarden-auth")
        self.open = loopback and not users
        self.failures_total = 0

    def has(self, name: str) -> bool:
        """Whether there is a user of this name."""
        return name in self._hashes

    def known(self, name: str, secret: str) -> str | None:
        """The user's name if this pair was right before; costs microseconds."""
        return self._right.get(self._mark(name, secret))

    async def authenticate(self, name: str, secret: str, peer: str) -> str:
        """
        The user whose secret this is.

        Args:
            name: the user's; empty or ``default``: the one called so, or the only one there is.
            secret: in clear text.
            peer: the caller's address, for the log.

        Raises: WrongPass: no such user, or another secret; after a quarter of a second.
        """
        found = self.known(name, secret)
        if found is not None:
            return found
        user = self._named(name)
        # An unknown name costs as much as a known one: who is a user cannot be read off the time.
        secret_hash = self._hashes.get(user) or next(iter(self._hashes.values()), None)
        loop = asyncio.get_running_loop()
        right = secret_hash is not None and await loop.run_in_executor(self._threads, check_secret, secret, secret_hash)
        if right and user in self._hashes:
            self._right[self._mark(name, secret)] = user
            return user
        self.failures_total += 1
        log.warning("login refused", extra={"user": user[:64], "peer": peer, "failures": self.failures_total})
        await sleep(self._clock, FAILURE_DELAY_S)
        raise WrongPass("No such user, or another secret.")

    def _named(self, name: str) -> str:
        """Stock clients call themselves ``default`` when they were given a password alone."""
        if name in ("", DEFAULT_USER) and DEFAULT_USER not in self._hashes and len(self._hashes) == 1:
            return next(iter(self._hashes))
        return name or DEFAULT_USER

    def _mark(self, name: str, secret: str) -> bytes:
        text = f"{len(name)}:{name}{secret}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, "sha256")
