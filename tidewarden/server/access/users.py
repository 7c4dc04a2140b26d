"""
Authenticates users at both doors, and knows their rights.

Secrets are checked slowly on purpose and never in the loop's thread.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import User, check_secret
from tidewarden.config.rights import Rights
from tidewarden.config.secret import quick_hash
from tidewarden.cpu_budget import CpuBudget
from tidewarden.errors import Denied, WrongPass
from tidewarden.log import OncePer

from .login_throttle import LoginThrottle, ThrottledHost

log = logging.getLogger("tidewarden.server")

FAILURE_DELAY_S = 0.25
"""
The delay after a host's first wrong secret; each further one costs twice as much, up to five
seconds. No other host waits.
"""
CHECKS_AT_ONCE = 2
STRETCHING_SHARE = 0.02
"""
The share of a core for stretching passwords that turn out to be wrong; right ones cost as much and
are not counted.
"""
STRETCHING_BURST_S = 2.0
STRETCH_S = 0.06  # what one takes, about
DENIALS_SAID_S = 1.0  # a user's refusals are logged at most so often
DEFAULT_NAME = "default"


def is_slow(secret_hash: str) -> bool:
    """Return whether a secret is checked slowly by this hash; empty: there is none."""
    return bool(secret_hash) and not quick_hash(secret_hash)


def _unheard(user: str, peer: str, message: str) -> None:
    """Ignore a denial, because no part listens."""


class Users:
    """
    Knows the configured users.

    A secret that was right once is remembered as an HMAC under a key of this process, so that the
    slow hash is paid once a user and not once a connection.

    Args:
        users: from the configuration.
        loopback: whether only this machine can reach the door. There, and with no users, everybody
            is let in as ``default``; what needs a *named* user stays closed.
        clock: for the delay after a wrong secret.

    ``denied_total`` counts refusals by user.
    """

    def __init__(self, users: Sequence[User], clock: Clock, *, loopback: bool) -> None:
        self._clock = clock
        self._loopback = loopback
        self._key = os.urandom(32)
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="tidewarden-auth")
        self.on_denied: Callable[[str, str, str], None] = _unheard
        """Hears of the user, the peer and the message of each refusal."""
        self._denials_said: dict[str, OncePer] = {}
        self._penalties = LoginThrottle(clock)
        self._stretching = CpuBudget(STRETCHING_SHARE, STRETCHING_BURST_S)
        self.failures_total = 0
        self.denied_total: Counter[str] = Counter()
        # whom they called themselves, and who they are
        self._right: dict[bytes, tuple[str, str]] = {}
        self._take(users)

    def reload(self, users: Sequence[User]) -> tuple[frozenset[str], frozenset[str]]:
        """
        Go on with these users, from now on.

        Returns: the names of those who are gone or have another secret, and of those whose rights
        have changed.
        """
        hashes, rights = self._hashes, self._written
        self._take(users)
        self._right = {
            mark: (name, user)
            for mark, (name, user) in self._right.items()
            if self._hashes.get(user) == hashes[user] and self._named(name) == user
        }
        gone = {
            name for name, secret_hash in hashes.items() if self._hashes.get(name) != secret_hash
        }
        changed = {
            name for name, written in self._written.items() if rights.get(name, written) != written
        } - gone
        return frozenset(gone), frozenset(changed)

    def _take(self, users: Sequence[User]) -> None:
        self._hashes = {user.name: user.secret_hash for user in users}
        self._written = {user.name: user.rights for user in users}
        self._rights = {user.name: Rights(user.rights) for user in users}
        self.open = self._loopback and not users

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the rights of each user, as they are written."""
        return dict(self._written)

    def has(self, name: str) -> bool:
        """Return whether there is a user of this name."""
        return name in self._hashes

    def rights(self, name: str) -> Rights:
        """Return a user's rights. Raises: WrongPass: there is no such user (any more)."""
        found = self._rights.get(name)
        if found is None:
            raise WrongPass("No such user, or another secret.")
        return found

    def written(self, name: str) -> tuple[str, ...]:
        """Return a user's rights as the configuration has them; without a user, none."""
        return tuple(self._written.get(name, ()))

    def secret_hash(self, name: str) -> str:
        """Return the configured form of a user's secret; empty: there is no such user."""
        return self._hashes.get(name, "")

    def deny(self, user: str, peer: str, error: Denied) -> None:
        """Count a request of ``user`` that was refused with ``error``, and log it now and then."""
        self.denied_total[user] += 1
        self.on_denied(user, peer, str(error))
        logged = self._denials_said.get(user)
        if logged is None:
            logged = self._denials_said[user] = OncePer(self._clock, DENIALS_SAID_S)
        if logged.passes():
            total = self.denied_total[user]
            log.warning(
                "request denied",
                extra={"user": user, "peer": peer, "reason": str(error), "denials": total},
            )

    def known(self, name: str, secret: str) -> str | None:
        """Return the user's name if this pair was right before; costs microseconds."""
        found = self._right.get(self._mark(name, secret))
        return found[1] if found is not None else None

    async def authenticate(self, name: str, secret: str, peer: str) -> str:
        """
        Return the user whose secret this is.

        Args:
            name: the user's; empty or ``default``: the one called so, or the only one there is.
            secret: in clear text.
            peer: the caller's ``host:port``, for the log and for what its failures cost.

        Raises: WrongPass: no such user, or another secret, after a delay of a quarter of a second
        to five that grows with the host's failures; or too many such answers to that host are held
        back already.
        """
        found = self.known(name, secret) or self._quickly(name, secret)
        if found is not None:
            return found
        host = self._penalties.of(peer)
        async with host.turn:
            found = self.known(name, secret)  # another of its connections may just have shown it
            if found is None and not host.crowded:
                found = await self._check(name, secret, host)
        if found is not None:
            return found
        self.failures_total += 1
        if host.logged.passes():
            failures = {"failures_of_host": host.failures + 1, "failures": self.failures_total}
            log.warning(
                "login refused", extra={"user": self._named(name)[:64], "peer": peer, **failures}
            )
        if host.crowded:
            raise WrongPass(
                "Too many logins from this address have failed. Try again in some seconds."
            )
        host.held_back += 1
        try:
            delays = host.fail(self._clock.monotonic(), self._mark(name, secret))
            await sleep(self._clock, delays * FAILURE_DELAY_S)
        finally:
            host.held_back -= 1
        raise WrongPass("No such user, or another secret.")

    def _quickly(self, name: str, secret: str) -> str | None:
        """
        Return the user whose secret this is, if it is a generated one, which microseconds tell.

        It cannot be guessed, so it is checked whatever others behind the same address (a proxy's,
        say) have done.
        """
        user = self._named(name)
        secret_hash = self._hashes.get(user, "")
        if not (quick_hash(secret_hash) and check_secret(secret, secret_hash)):
            return None
        self._right[self._mark(name, secret)] = name, user
        return user

    async def _check(self, name: str, secret: str, host: ThrottledHost) -> str | None:
        """
        Return the user whose secret this is, by its hash.

        Half of what may be spent on that is for hosts that have not failed.
        """
        user = self._named(name)
        # Whoever has no slow hash, or is no user, costs as much as who has one: who is a user
        # cannot be read off the time.
        own = self._hashes.get(user, "")
        secret_hash = next((one for one in (own, *self._hashes.values()) if is_slow(one)), None)
        if secret_hash is None:  # a quick one has been looked at
            return None
        kept_s = STRETCHING_BURST_S / 2 if host.failures else 0.0
        while wait_s := self._stretching.wait_s(self._clock.monotonic(), kept_s):
            await sleep(self._clock, wait_s)
        self._stretching.spend(STRETCH_S, self._clock.monotonic())
        right = await asyncio.get_running_loop().run_in_executor(
            self._threads, check_secret, secret, secret_hash
        )
        if right:
            self._stretching.give_back(STRETCH_S)
        if right and self._hashes.get(user) == secret_hash:
            self._right[self._mark(name, secret)] = name, user
            return user
        return None

    def _named(self, name: str) -> str:
        """
        Return the user that a login names.

        Stock clients call themselves ``default`` when they were given a password alone.
        """
        if (
            name in ("", DEFAULT_NAME)
            and DEFAULT_NAME not in self._hashes
            and len(self._hashes) == 1
        ):
            return next(iter(self._hashes))
        return name or DEFAULT_NAME

    def _mark(self, name: str, secret: str) -> bytes:
        text = f"{len(name)}:{name}{secret}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, "sha256")
