"""
Where a node is reached, as people write it: a host, and a port if it is not the usual one. Pure.
"""

from __future__ import annotations

import ipaddress
import re

WILDCARDS = ("0.0.0.0", "::", "*", "")
"""To listen there is to listen at every address of a host."""
PORT_MAX = 65_531  # Four more follow a node's first.
ALLOWED = (
    "allowed: 'host' or 'host:port' by which others reach this node, the port from 1 to 65,531"
)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def split_host(text: str, port: int) -> tuple[str, str]:
    """
    Split ``host``, ``host:port`` or ``[host]:port`` into host and port.

    The host comes without brackets; a host alone gets ``port``. Neither is checked.
    """
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") if rest else str(port)
    if text.count(":") != 1:
        return text, str(port)
    host, _, own = text.partition(":")
    return host, own


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listened(host: str) -> str | list[str]:
    """
    Return the address to listen on.

    Asyncio takes ``::`` for IPv6 alone, whereas here it means every address of the host.
    """
    return ["0.0.0.0", "::"] if host == "::" else host


def joined(host: str, port: int | str) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_fault(text: str) -> str:
    """
    What is wrong with an address that others are to be told, as it follows "found …"; empty:
    nothing, as of an empty one.
    """
    if not text:
        return ""
    host, port = split_host(text, 1)
    if host in WILDCARDS:
        return f", which names no host; {ALLOWED}"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            return f", which begins with no host's name or address; {ALLOWED}"
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= PORT_MAX:
        return f", which has the port {port[:20]!r}; {ALLOWED}"
    return ""


def host_of_header(header: str) -> str:
    """
    The host of a Host or Origin header, without scheme and port.

    ``null`` stays as it is, which is no loopback address.
    """
    host = header.rpartition("://")[2].partition("/")[0]
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0]
