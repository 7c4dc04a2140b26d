"""Parses the addresses of nodes: ``redis://user:secret@host:port``, several separated by commas."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from tidewarden.errors import BadArg

from .local import DEFAULT_PORT, local_urls

VARIABLE = "TIDEWARDEN_URL"
FORM = (
    "redis://[USER:SECRET@]HOST:PORT, with a port from 1 to 65535, and in the secret %2F for / and"
    " the like"
)


@dataclass(frozen=True, slots=True)
class Address:
    """
    Holds the address of one node's RESP port, with the user and secret to authenticate with.

    ``str()`` and ``repr()`` are without the secret.
    """

    host: str
    port: int
    user: str = ""
    secret: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}"

    @property
    def login(self) -> tuple[str, ...]:
        """Return the words of AUTH; none: there is no secret."""
        if not self.secret:
            return ()
        return (self.user, self.secret) if self.user else (self.secret,)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; ``None``: no TLS."""
        return ssl.create_default_context(cafile=self.ca_file or None) if self.tls else None


def addresses(urls: str | Iterable[str] | None, environ: Mapping[str, str]) -> list[Address]:
    """
    Return the addresses of the nodes to use, in order.

    They are those of ``urls``, else of ``TIDEWARDEN_URL`` in ``environ``, else those of the local
    cluster whose data is in ``./tidewarden-data``, else 127.0.0.1:7420.

    Raises: BadArg: one of them is no address; says which, without its secret.
    """
    if urls is None:
        urls = environ.get(VARIABLE) or local_urls()
    texts = urls.split(",") if isinstance(urls, str) else urls
    found = [parse(text.strip()) for text in texts if text.strip()]
    if not found:
        raise BadArg(
            f"no node is given; allowed: redis://[USER:SECRET@]HOST:PORT, also in {VARIABLE}"
        )
    return found


def parse(url: str) -> Address:
    """
    Parse one address. ``rediss://`` is TLS; ``?ca=FILE`` names whom to trust then.

    Raises: BadArg.
    """
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        # Whose text may quote a secret: all of it up to a sign that should have been written %XX.
        raise BadArg(f"{shown!r} is no node's address; allowed: {FORM}") from None
    if (
        parts.scheme not in ("redis", "rediss")
        or not parts.hostname
        or parts.path not in ("", "/", "/0")
    ):
        raise BadArg(f"{shown!r} is no node's address; allowed: redis://[USER:SECRET@]HOST:PORT")
    return Address(
        parts.hostname,
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.scheme == "rediss",
        parse_qs(parts.query).get("ca", [""])[0],
    )
