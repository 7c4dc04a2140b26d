"""
Holds what is sent for a provider that was put within its reach: by its address, and by its name's.

What a name resolves to is known when a connection is made, and may be another address each time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from tidewarden.config.egress import Reach
from tidewarden.config.provider import Provider

OUTSIDE = (
    "its name has an address that is not public, which a provider that was put may not reach;"
    " allowed: a public one, or what tokens.put_networks of the node's configuration file has"
)


class OutsideError(OSError):
    """Says that nothing may be sent to the address, and that nothing was sent."""


def check_reach(provider: Provider, url: str) -> None:
    """
    Check that the provider may have requests sent to ``url``.

    Raises: OutsideError: the provider was put, and ``url`` is beyond its reach.
    """
    if provider.reach is not None and (fault := provider.reach.url_fault(url)):
        raise OutsideError(fault)


def sockets_within(reach: Reach) -> Callable[[tuple[Any, ...]], socket.socket]:
    """Return a function that makes a socket for one resolved address; it raises OutsideError."""

    def make(resolved: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = resolved
        if not reach.permits(address[0]):
            raise OutsideError(OUTSIDE)
        return socket.socket(family, kind, protocol)

    return make


def outside_of(error: BaseException) -> str:
    """Return why the provider's reach forbade a connection; empty: another error ended it."""
    for found in (error, getattr(error, "os_error", None), error.__cause__):
        if isinstance(found, OutsideError):
            return str(found)
    cause = error.__cause__
    return outside_of(cause) if cause is not None else ""
