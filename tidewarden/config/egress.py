"""
Says which way the requests of a provider leave a node: by which proxy, and how far they may reach.

A user who puts a provider while nodes run names addresses, headers and a proxy, and is shown much
of what is answered. So its requests reach no more of the node's own network than the node's file
allows. The address that a name turned out to have is asked about at each connection, not the name.

Plain functions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .addresses import Address, Network, is_within, networks_of

if TYPE_CHECKING:
    from .provider import Provider

ENVIRONMENT = "environment"
PROXY_ALLOWED = (
    f"http://HOST:PORT, USER:PASSWORD@ before the host where it wants them, or {ENVIRONMENT!r}"
)
PROXY, HEADERS = "proxy", "headers"
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b:1::/48",
        "5f00::/16",
        "fec0::/10",
    )
)
"""Public by their numbers, at least to some Python; the first is a machine's own host at Azure."""
_IPV4_BEHIND = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::ffff:0:0:0/96")))
_HOP_HEADERS = frozenset(
    (
        "host",
        "cookie",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "expect",
        "via",
        "forwarded",
        "x-real-ip",
        "x-original-url",
        "x-rewrite-url",
        "metadata",
        "metadata-flavor",
        "x-aws-ec2-metadata-token",
        "x-aws-ec2-metadata-token-ttl-seconds",
        "x-google-metadata-request",
        "x-vault-request",
        "x-consul-token",
        "x-nomad-token",
    )
)
_HOP_PREFIXES = ("proxy-", "x-forwarded-", "x-http-method", "x-method-override")


@dataclass(frozen=True, slots=True)
class Reach:
    """
    Holds what providers that were put may reach here.

    Args:
        networks: that they may reach besides public addresses, and by ``http://``, too.
        allowed: :data:`PROXY`, and :data:`HEADERS` that say which host or hop a request is for.
    """

    networks: tuple[Network, ...] = ()
    allowed: frozenset[str] = frozenset()

    def permits(self, address: str) -> bool:
        """Tell whether a connection to ``address``, without its port, may be made."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if self._names(found):
            return True
        return all(_is_public(one) for one in (found, *_embedded(found)))

    def url_fault(self, url: str) -> str:
        """Say why nothing may be sent to ``url``, whatever its name resolves to; empty: it may."""
        parts = urlsplit(url)
        address = _address_of(parts.hostname or "")
        if address is not None and not self.permits(str(address)):
            return (
                "found an address that is not public, which a provider that was put may not reach;"
                " allowed: https:// to a public address, or what tokens.put_networks of the node's"
                " configuration file has"
            )
        if parts.scheme != "https" and (address is None or not self._names(address)):
            return (
                "found http://, which a provider that was put may not use; allowed: https://, or"
                " http:// to an address that tokens.put_networks of the node's configuration file"
                " has"
            )
        return ""

    def faults(self, provider: Provider) -> Iterator[tuple[str, str]]:
        """List what a provider's settings want that it may not, as (setting, fault)."""
        for key in ("token_url", "issuer", "revocation_url", "par_url", "device_url"):
            url = getattr(provider, key)
            # A value in the host's place is looked at when it is known.
            if url and "{" not in (urlsplit(url).netloc) and (fault := self.url_fault(url)):
                yield key, fault
        if provider.proxy and PROXY not in self.allowed:
            yield (
                "proxy",
                "found one, which a provider that was put may not have; allowed: none, unless"
                f" tokens.put_allowed of the node's configuration file has {PROXY!r}",
            )
        if HEADERS not in self.allowed:
            for name in filter(_is_of_hops, provider.headers):
                yield (
                    f"headers {name}",
                    "says which host or hop a request is for; allowed: other headers, unless"
                    f" tokens.put_allowed of the node's configuration file has {HEADERS!r}",
                )

    def _names(self, address: Address) -> bool:
        return is_within(address, self.networks)


def reach_of(networks: Iterable[str], allowed: Iterable[str]) -> Reach:
    """Return the reach that settings say. Raises: ValueError: one is no network."""
    return Reach(networks_of(networks), frozenset(allowed))


def proxy_of(setting: str, url: str, environ: Mapping[str, str]) -> str:
    """
    Return the proxy on the way to ``url``; empty: none.

    Of the environment, ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy`` are looked
    at, in either case, as curl does.
    """
    if setting != ENVIRONMENT:
        return setting
    parts = urlsplit(url)
    if _is_spared(
        parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443), environ
    ):
        return ""
    found = _variable(environ, f"{parts.scheme}_proxy") or _variable(environ, "all_proxy")
    return found if "://" in found or not found else f"http://{found}"


def proxy_fault(proxy: str) -> str:
    """Say what is wrong with a proxy's address, without quoting its password; empty: nothing."""
    fault = f"found no address of a proxy; allowed: {PROXY_ALLOWED}"
    try:
        parts = urlsplit(proxy)
        port = parts.port
    except ValueError:
        return fault
    said = unquote((parts.username or "") + (parts.password or ""))
    odd = any(char.isspace() for char in proxy) or not (said.isascii() and proxy.isprintable())
    whole = parts.path in ("", "/") and not parts.query and not parts.fragment
    if (
        parts.scheme != "http"
        or not parts.hostname
        or port == 0
        or odd
        or not whole
        or parts.username == ""
    ):
        return fault
    return ""


def _address_of(host: str) -> Address | None:
    if host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith(".localhost"):
        return ipaddress.ip_address("127.0.0.1")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_public(address: Address) -> bool:
    special = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def _embedded(address: Address) -> Iterator[Address]:
    """Yield the IPv4 addresses to which gateways lead what is sent to an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if (
        any(address in network for network in _IPV4_BEHIND) or int(address) >> 32 == 0
    ):  # the latter: ::a.b.c.d, of old
        yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def _is_of_hops(name: str) -> bool:
    low = name.lower()
    return low in _HOP_HEADERS or low.startswith(_HOP_PREFIXES)


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "") or environ.get(name.upper(), "")


def _is_spared(host: str, port: int, environ: Mapping[str, str]) -> bool:
    """Return whether ``no_proxy`` names the host, its domain, its network, or everything."""
    for entry in _variable(environ, "no_proxy").lower().replace(" ", ",").split(","):
        if entry == "*" or (entry and _names(entry, host.lower(), port)):
            return True
    return False


def _names(entry: str, host: str, port: int) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:  # One of the two is a name.
        name, colon, number = entry.rpartition(":")
        if colon and number.isdecimal():
            if int(number) != port:
                return False
            entry = name
        entry = entry.strip("[]").lstrip(".")
        return host == entry or host.endswith(f".{entry}")
