"""
Chooses the forward proxy of a provider: one that is set, or the environment's.

Plain functions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

ENVIRONMENT = "environment"
PROXY_ALLOWED = (
    f"http://HOST:PORT, USER:PASSWORD@ before the host where it wants them, or {ENVIRONMENT!r}"
)


def proxy_of(setting: str, url: str, environ: Mapping[str, str]) -> str:
    """
    The proxy on the way to ``url``; empty: none.

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


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "") or environ.get(name.upper(), "")


def _is_spared(host: str, port: int, environ: Mapping[str, str]) -> bool:
    """
    Whether ``no_proxy`` names the host: itself, a domain that it is in, a network, or everything.
    """
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
