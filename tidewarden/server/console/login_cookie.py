"""
The cookie of a login to the console: who logged in, and until when.

No node keeps it. It carries a MAC under a key that follows from the cluster's secret, so it is
valid at each node, and the user's hash is part of what the MAC is over, so that another secret ends
it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from tidewarden.clock import Clock
from tidewarden.errors import NoAuth
from tidewarden.server.access.users import Users

COOKIE = "tidewarden"
LOGIN_S = 12 * 3600
COOKIE_CHARS_MAX = 1000
_LABEL = b"tidewarden console login 1"
_ENDED = "The login to the console has ended. Log in again."


def login_key(cluster_secret: str) -> bytes:
    """Return the key of the logins of a cluster, which follows from its secret."""
    return hmac.digest(cluster_secret.encode(), _LABEL, hashlib.sha256)


class LoginCookies:
    """Makes and checks the values of login cookies; ``key`` is that of :func:`login_key`."""

    def __init__(self, key: bytes, users: Users, clock: Clock) -> None:
        self._key = key
        self._users = users
        self._clock = clock

    def issue(self, user: str) -> str:
        """Return the value for a user who has just shown the secret."""
        name = _text(user.encode("utf-8", "surrogatepass"))
        ends_s = self._clock.unix_ms() // 1000 + LOGIN_S
        return f"{name}.{ends_s}.{self._mac(user, ends_s)}"

    def user_of(self, value: str) -> str:
        """
        Return the user who logged in.

        Raises: NoAuth: it is none of ours, it has ended, or the user has another secret now.
        """
        if len(value) > COOKIE_CHARS_MAX or not value.isascii():
            raise NoAuth(_ENDED)
        name, _, rest = value.partition(".")
        ends, _, mac = rest.partition(".")
        try:
            user = _bytes(name).decode("utf-8", "surrogatepass")
        except (binascii.Error, UnicodeDecodeError):
            raise NoAuth(_ENDED) from None
        if not ends.isdigit() or not self._users.has(user):
            raise NoAuth(_ENDED)
        right = hmac.compare_digest(mac, self._mac(user, int(ends)))
        if not right or int(ends) <= self._clock.unix_ms() // 1000:
            raise NoAuth(_ENDED)
        return user

    def _mac(self, user: str, ends_s: int) -> str:
        parts = (
            user.encode("utf-8", "surrogatepass"),
            b"%d" % ends_s,
            self._users.secret_hash(user).encode(),
        )
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            made.update(b"%d:%b" % (len(part), part))
        return _text(made.digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
