"""
Tells to which addresses a browser may be sent once a person has consented. Plain functions.

An address is allowed by one of ``connect.return_to``: scheme, host and port have to be the same,
and the path the same, or below the written one where that ends in a slash. The query is free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from .addresses import HTTP, is_loopback

CHARS_MAX = 1000
ALLOWED = (
    "addresses like 'https://app.example.com/connected'; one that ends in a slash stands for all"
    " below it"
)
RESULT_NAMES = ("result", "account", "error")
"""The parameters that tell the application how it ended; its own address may have none of them."""
DEFAULT_PORTS = {"http": 80, "https": 443}
ODD_SIGNS = '\\ " < > ^ ` { | }'
# Browsers take a backslash for a slash, and leave out blanks and line breaks.
_ODD = re.compile(r"[^\x21-\x7e]|[\\\"<>^`{|}]")
# A slash or a dot; what is encoded more than once is for servers that decode twice.
_SLASH = re.compile(r"%(25)*(2f|5c)|%(25)+2e", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")


def fault_of(address: str) -> str:
    """Say why no browser is sent to ``address``, whatever is allowed; empty: it may be."""
    if not 0 < len(address) <= CHARS_MAX or _ODD.search(address):
        return f"is no address of 1 to {CHARS_MAX} printable characters, none of {ODD_SIGNS}"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return "is no address"
    if port == 0 or parts.scheme not in HTTP or not _HOST.fullmatch(parts.hostname or ""):
        return "begins with no https:// and host, or has the port 0"
    if "@" in parts.netloc or "#" in address:
        return "has a user, a password or a #fragment"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return "is http:// on another machine, where it can be read and changed on the way"
    # Behind a semicolon are parameters of a step, which some servers take off first.
    if _SLASH.search(parts.path) or any(
        unquote(step.partition(";")[0]) in (".", "..") for step in parts.path.split("/")
    ):
        return "has a step . or .., or an encoded slash, in its path"
    taken = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if names := [name for name in RESULT_NAMES if name in taken]:
        return f"has the parameter {names[0]}, by which the result is told"
    return ""


def is_allowed(address: str, allowed: Iterable[str]) -> bool:
    """Tell whether a browser may be sent to ``address``."""
    if fault_of(address):
        return False
    asked = urlsplit(address)
    return any(_allows(urlsplit(written), asked) for written in allowed)


def with_result(address: str, result: Mapping[str, str]) -> str:
    """Return ``address`` with ``result`` behind what its query has."""
    return f"{address}{'&' if '?' in address else '?'}{urlencode(result)}"


def _allows(written: SplitResult, asked: SplitResult) -> bool:
    if _origin(written) != _origin(asked):
        return False
    path, above = asked.path or "/", written.path or "/"
    return path == above or (above.endswith("/") and path.startswith(above))


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port
