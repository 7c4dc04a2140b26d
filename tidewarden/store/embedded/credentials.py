"""Makes the passwords by which a replicated store knows its users, all of the cluster's secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

DAEMON = "daemon"
REPLICA = "replica"
READER = "reader"


def store_password(cluster_secret: str) -> str:
    """Return the store's password, which every holder of the cluster secret can compute."""
    return _password(cluster_secret, b"tidewarden store password 1")


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """
    Holds the passwords of the four users of a replicated store.

    Every holder of the cluster's secret makes the same; none of them tells the others or the
    secret.
    """

    client: str = field(repr=False)
    """
    The password of ``default``, as which clients log in; the store knows that user while it is
    open.
    """
    daemon: str = field(repr=False)
    """
    The password of ``daemon``, as which the store's own node decides its role; it may do
    everything.
    """
    replica: str = field(repr=False)
    """
    The password of ``replica``, as which a store asks another for its data; it may do nothing else.
    """
    reader: str = field(repr=False)
    """The password of ``reader``, which may read, also while the store is no primary."""

    @classmethod
    def of(cls, cluster_secret: str) -> StoreCredentials:
        """Make the passwords of a cluster's secret."""
        return cls(
            client=store_password(cluster_secret),
            daemon=_password(cluster_secret, b"tidewarden store daemon 1"),
            replica=_password(cluster_secret, b"tidewarden store replica 1"),
            reader=_password(cluster_secret, b"tidewarden store reader 1"),
        )

    def acl_lines(self) -> list[str]:
        """
        Return the users as a server's settings file has them: the passwords as hashes.

        ``default`` is off: nobody logs in as a client before the store was promoted and opened.
        """
        reads = "~* &* +@read +@connection -client +client|setname +client|setinfo +client|id"
        runs = "+fcall_ro +eval_ro +evalsha_ro +script|load +script|exists +function|list"
        return [
            f"default reset off #{_hashed(self.client)} ~* &* +@all",
            f"{DAEMON} reset on #{_hashed(self.daemon)} ~* &* +@all",
            f"{REPLICA} reset on #{_hashed(self.replica)} +psync +replconf +ping",
            f"{READER} reset on #{_hashed(self.reader)} {reads} {runs} +info +role +time",
        ]


def _password(cluster_secret: str, label: bytes) -> str:
    digest = hmac.new(cluster_secret.encode(), label, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _hashed(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
