"""
How a member is built, in the thread that will tick it: its folder taken and looked over, its port
and its password.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.errors import ConfigError

from . import folder, pysync
from .state import Times
from .voter import Voter


def build(
    config: Config,
    secret: str,
    seeds: Mapping[str, str],
    clock: Clock,
    taken: Callable[[int], None],
) -> Voter:
    """
    The member that ``config`` describes; ``seeds``: Raft addresses by name.

    ``taken`` is told the descriptor that keeps the folder locked, before anything else can fail.
    Raises: ConfigError: the folder, its files, the host or the port.
    """
    if not __debug__:
        raise ConfigError(
            ["python -O: found; allowed: without, for PySyncObj's replay protection is assertions"]
        )
    node, times = config.node, Times.at(config.raft.pace)
    path = Path(node.data_dir)
    taken(folder.take(path))
    folder.check(path)
    try:
        socket.getaddrinfo(node.host, node.raft_port)
    except OSError as error:
        raise ConfigError(
            [f"node.host: found {node.host!r}, {error.strerror}; allowed: a local address"]
        ) from None
    conf = pysync.configure(
        path, f"{node.host}:{node.raft_port}", link_password(secret, config.cluster.name), times
    )
    try:
        return Voter(node.name, seeds, conf, times, clock, node.role == "joining")
    except OSError as error:
        found = (
            f"{node.base_port}, and {node.host}:{node.raft_port} (Raft, + 2) cannot be listened on"
        )
        why = error.strerror or str(error)
        raise ConfigError(
            [f"node.base_port: found {found}: {why}; allowed: a base of free ports"]
        ) from error


def link_password(secret: str, cluster: str) -> str:
    """
    The link's password: stretched, for the library's own salt is in its source, the same for
    everybody.
    """
    salt = f"tidewarden raft {cluster}".encode()
    return hashlib.scrypt(secret.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32).hex()
