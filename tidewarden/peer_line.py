"""
Asks other nodes over their HTTP ports; each side proves that it knows the cluster's secret.

Each message is a MAC by a key of the cluster's secret and a body; an answer's MAC covers the
question's body, so that none can be passed off for another.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

import aiohttp
import msgspec

from .bounded_connector import BoundedConnector
from .errors import NotFound

log = logging.getLogger("tidewarden.peers")

ASK_S = 2.0
BYTES_MAX = 1 << 20
"""Of an answer."""
MAC_BYTES = 32
HTTP_PORT = 1
"""Of a node, beside its base port."""
EVERY_NODE = "all"

Asked = TypeVar("Asked")


class PeerAway(Exception):
    """A node does not answer, and the message says why."""


class UnreachableNode(msgspec.Struct, frozen=True):
    """Is a node, or a process of one, that is not in an answer of the cluster."""

    node: str
    why: str


def silent_ones(nodes: Iterable[UnreachableNode]) -> str:
    """Say of each why it does not answer."""
    return "; ".join(f"{one.node}: {one.why}" for one in nodes)


def nodes_named(name: str, known: Collection[str]) -> Collection[str]:
    """Return the nodes that are meant: one, or all. Raises: NotFound: there is no such node."""
    if name == EVERY_NODE:
        return known
    if name not in known:
        names = ", ".join(sorted(known))
        raise NotFound(f"There is no node {name[:40]!r}; there are {names}, or all.")
    return {name}


@dataclass(frozen=True, slots=True)
class Mac:
    """Makes and checks MACs by a key of the cluster's secret."""

    key: bytes

    def of(self, *parts: bytes) -> bytes:
        """Return the MAC of the parts, none of which can borrow from its neighbour."""
        made = hmac.new(self.key, digestmod=sha256)
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        return made.digest()

    def open(self, raw: bytes, *before: bytes) -> bytes | None:
        """
        Return the body of a message whose MAC covers ``before`` and it; None: another key made it.
        """
        mac, body = raw[:MAC_BYTES], raw[MAC_BYTES:]
        return body if hmac.compare_digest(mac, self.of(*before, body)) else None

    def question(self, raw: bytes, kind: type[Asked]) -> Asked | None:
        """Read a message's question; None: it is of no node of this cluster, or another version."""
        body = self.open(raw)
        if body is None:
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.DecodeError:
            return None

    def reply_to(self, question: bytes, body: bytes) -> bytes:
        """Make the message that answers a message."""
        return self.of(b"reply", question[MAC_BYTES:], body) + body


def mac_for(cluster_secret: str, purpose: bytes) -> Mac:
    """Return the MACs of nodes that share this secret, for one kind of question."""
    return Mac(hmac.new(cluster_secret.encode(), purpose, sha256).digest())


class PeerLine:
    """
    Asks one kind of question.

    Args:
        path: at which the others answer it.
        mac: proves who asks and who answers.
        tls: whether their ports speak TLS.
    """

    def __init__(self, path: str, mac: Mac, *, tls: bool) -> None:
        self._path = path
        self._mac = mac
        self._scheme = "https" if tls else "http"
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, node: str, address: str, body: bytes) -> bytes:
        """
        Return the body that ``node`` answers, which listens at ``address`` (``host:base_port``).

        Raises: PeerAway.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(ASK_S):
                url = f"{self._scheme}://{host}:{int(port) + HTTP_PORT}{self._path}"
                raw = await self._post(url, self._mac.of(body) + body)
        except TimeoutError:
            raise PeerAway(f"it has not answered within {ASK_S:g} s") from None
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise PeerAway(str(error) or type(error).__name__) from None
        opened = self._mac.open(raw, b"reply", body)
        if opened is None:
            log.warning("what answered for %s does not know the cluster's secret", node)
            raise PeerAway("what answered does not know the cluster's secret")
        return opened

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, url: str, message: bytes) -> bytes:
        if self._session is None:
            # The MAC says who answers; a node's certificate need not be one that this host trusts.
            connector = BoundedConnector(ssl=False, limit=16)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        async with self._session.post(url, data=message, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
            try:
                # `read` would be content with a piece
                return await response.content.readexactly(BYTES_MAX + 1)
            except asyncio.IncompleteReadError as error:
                return error.partial
