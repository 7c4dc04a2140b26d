"""
Makes the cookie of a login to the console: who logged in, and until when.

No node keeps it. It carries a MAC under a key that follows from the cluster's secret, so it is
valid at each node, and the MAC covers the user's hash, so that another secret ends it. A logout
ends it by its id (:mod:`.ended_logins`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass

from tidewarden.clock import Clock
from tidewarden.errors import NoAuth
from tidewarden.server.access.users import Users

LOGIN_S = 12 * 3600
COOKIE_CHARS_MAX = 1000
ID_BYTES = 12
_LABEL = b"tidewarden console login 2"
ENDED = "The login to the console has ended. Log in again."


def login_key(cluster_secret: str) -> bytes:
    """Return the key of the logins of a cluster, which follows from its secret."""
    return hmac.digest(cluster_secret.encode(), _LABEL, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Login:
    """Holds one login: whose it is, its id, and when it ends, unix seconds."""

    user: str
    id: str
    ends_s: int


class LoginCookies:
    """Makes and checks the values of login cookies; ``key`` is that of :func:`login_key`."""

    def __init__(self, key: bytes, users: Users, clock: Clock) -> None:
        self._key = key
        self._users = users
        self._clock = clock
        self._name = f"tidewarden-{hmac.digest(key, b'name', hashlib.sha256).hex()[:8]}"

    def name(self, *, secure: bool) -> str:
        """
        Return the name of the cookie, by whether the connection is by TLS.

        It follows from the key: to a browser the ports of a host are one site, where consoles of
        two clusters would end each other's logins. ``__Host-``: browsers take it from this very
        host by TLS alone.
        """
        return f"__Host-{self._name}" if secure else self._name

    def issue(self, user: str) -> str:
        """Return the value for a user who has just shown the secret."""
        name = _text(user.encode("utf-8", "surrogatepass"))
        made = Login(user, _text(os.urandom(ID_BYTES)), self._clock.unix_ms() // 1000 + LOGIN_S)
        return f"{name}.{made.id}.{made.ends_s}.{self._mac(made)}"

    def login_of(self, value: str) -> Login:
        """
        Return the login that a cookie stands for.

        Raises: NoAuth: it is none of ours, it has ended, or the user has another secret now.
        """
        if len(value) > COOKIE_CHARS_MAX or not value.isascii():
            raise NoAuth(ENDED)
        name, login_id, ends, mac = ([*value.split(".", 3), "", "", ""])[:4]
        try:
            user = _bytes(name).decode("utf-8", "surrogatepass")
        except (binascii.Error, UnicodeDecodeError):
            raise NoAuth(ENDED) from None
        if not ends.isdigit() or not self._users.has(user):
            raise NoAuth(ENDED)
        login = Login(user, login_id, int(ends))
        right = hmac.compare_digest(mac, self._mac(login))
        if not right or login.ends_s <= self._clock.unix_ms() // 1000:
            raise NoAuth(ENDED)
        return login

    def _mac(self, login: Login) -> str:
        parts = (
            login.user.encode("utf-8", "surrogatepass"),
            login.id.encode(),
            b"%d" % login.ends_s,
            self._users.secret_hash(login.user).encode(),
        )
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            made.update(b"%d:%b" % (len(part), part))
        return _text(made.digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
