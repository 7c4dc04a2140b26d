"""
The one parser of addresses, as people write them: ``host:port`` of nodes and members, and URLs.

Plain functions.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NETWORKS_ALLOWED = "networks or addresses like '10.1.0.0/16' or '127.0.0.1'"
WILDCARDS = ("0.0.0.0", "::", "*", "")
"""To listen there is to listen at every address of a host."""
PORT_MAX = 65_531  # Four more follow a node's first.
ANY_PORT_MAX = 65_535
ADDRESS_CHARS_MAX = 300
HTTP = ("http", "https")
NOT_SHOWN = "an address that is not shown"
ALLOWED = (
    "allowed: 'host' or 'host:port' by which others reach this node, the port from 1 to 65,531"
)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def parse_address(text: str, port_max: int = PORT_MAX) -> tuple[str, int] | None:
    """
    Parse ``host:port`` or ``[host]:port`` into host, without brackets, and port.

    Returns: None: it has no host, or no port from 1 to ``port_max``.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or len(text) > ADDRESS_CHARS_MAX or not (port.isascii() and port.isdigit()):
        return None
    return (host, int(port)) if 1 <= int(port) <= port_max else None


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


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks that are written so. Raises: ValueError: one is none."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def is_within(address: Address | str, networks: Iterable[Network]) -> bool:
    """Tell whether an address, as a socket tells it or as text, is in one of the networks."""
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
    own = getattr(address, "ipv4_mapped", None) or address
    return any(own in network for network in networks)


def listened(host: str) -> str | list[str]:
    """
    Return the address to listen on.

    Asyncio takes ``::`` for IPv6 alone, whereas here it means every address of the host.
    """
    return ["0.0.0.0", "::"] if host == "::" else host


def joined(host: str, port: int | str) -> str:
    """Join ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_fault(text: str) -> str:
    """
    Return what is wrong with an address that others are to be told.

    It follows "found …"; empty: nothing is wrong, as with an empty address.
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


def client_network(address: str) -> str:
    """
    Return the network that counts as one client behind ``host:port``.

    It is an IPv4 address, or an IPv6 network of 64 bits, which is what one customer gets; other
    text stays as it is.
    """
    host = address.rpartition(":")[0] or address
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if ip.version == 4 or ip.is_loopback:
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))


def host_of_header(header: str) -> str:
    """
    Return the host of a Host or Origin header, without scheme and port.

    ``null`` stays as it is, which is no loopback address.
    """
    host = header.rpartition("://")[2].partition("/")[0]
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0]


def url_fault(url: str, schemes: tuple[str, ...] = HTTP, found: str = NOT_SHOWN) -> str:
    """
    Say what is wrong with a URL, as "found …; allowed: …", calling it ``found``; empty: nothing.
    """
    forms = " or ".join(f"{scheme}://" for scheme in schemes)
    fault = f"found {found}; allowed: an address that begins {forms}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{fault}, with a port from 1 to 65535"
    if parts.scheme not in schemes or any(character.isspace() for character in url):
        return fault
    if parts.scheme == "unix":
        return "" if parts.path.startswith("/") else f"{fault}, then the whole path of the socket"
    return "" if parts.hostname and port != 0 else f"{fault}, then a host"


def secret_url_fault(url: str) -> str:
    """Say what is wrong with an address to which secrets are sent; empty: nothing."""
    found = repr(url) if "@" not in url else "one with an @, which is not shown"
    if fault := url_fault(url, found=found):
        return fault
    if not url.isprintable():
        return "found a character in it that cannot be shown; allowed: an address without"
    if "#" in url or urlsplit(url).username is not None:
        return "found a user, a password or a #fragment in it; allowed: an address without"
    return ""


def plain_fault(url: str, *, allowed: bool) -> str:
    """
    Say why an ``http://`` address of another machine is refused where it is not ``allowed``.

    Empty: the address may be used.
    """
    parts = urlsplit(url)
    if allowed or parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return ""
    return (
        "found http:// to another machine, where secrets and tokens can be read on the way; "
        "allowed: https://, or plain_http = true beside it"
    )
