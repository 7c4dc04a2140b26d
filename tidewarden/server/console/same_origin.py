"""
Tells requests of the console's pages from those that another site has a browser send.

A browser sends a login's cookie along with every request to this node. A change therefore needs a
header that no other site can send without being asked first, which we never allow, and must not
come from another origin.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from tidewarden.errors import Denied

HEADER = "Tidewarden-Console"
CHANGES_NOTHING = ("GET", "HEAD")


def check_same_origin(request: web.Request) -> None:
    """
    Check that a page of this node sends the request, unless it changes nothing.

    Raises: Denied.
    """
    if request.method in CHANGES_NOTHING:
        return
    if request.headers.get(HEADER) != "1":
        raise Denied(
            f"By a login of the console only its own pages may change anything: {HEADER}: 1 is"
            " missing. Programs send Authorization: Bearer user:secret."
        )
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None and origin is None:
        raise Denied("By a login of the console a change needs Origin or Sec-Fetch-Site.")
    if site not in (None, "same-origin"):
        raise Denied("Sec-Fetch-Site must be same-origin: another site sent this.")
    if origin is not None and _place(origin) != request.headers.get("Host", "").lower():
        raise Denied("Origin must be that of this node: another site sent this.")


def _place(origin: str) -> str | None:
    """Return host and port; the scheme may differ behind a proxy that ends TLS for a node."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return None
    return found.netloc.lower() if found.scheme in ("http", "https") else None
