"""
Sends one POST on aiohttp's connector, below its client.

The connector makes and keeps the connections, aiohttp's protocol parses the answers. A request is
one write here, and its answer is read where it is parsed. What the client above these layers does
for each (objects for the request, its headers and its answer, cookies, redirects, traces, timers)
cost more than all of that together (docs/performance.md). They are pinned to a minor version for
it, and ``live/tokens/provider/test_token_endpoint`` shows what they do on a network that behaves
badly.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from aiohttp.streams import EofStream
from yarl import URL

from tidewarden.bounded_connector import BoundedHandler
from tidewarden.clock import Clock

from .content_encoding import decoded
from .token_response import HttpAnswer

BODY_BYTES_MAX = 65_536
HEADER_BYTES_MAX = 65_536  # Of one header: an answer past it is lost, with the refresh token in it.
TOLD = ("content-type", "date", "retry-after")  # The headers that anything is decided by.
# How long the body is, each request says by itself.
FRAMING = ("Content-Length", "Transfer-Encoding")
# Beginnings of requests that are kept: one for each secret of the client, and each endpoint.
HEADS_MAX = 64
_UNFIT = re.compile(r"[\x00\r\n]")


class LateError(aiohttp.ClientError):
    """Says that a connection was made, but the time to send anything is over."""


@dataclass(slots=True)
class RequestProgress:
    """
    Tracks how far one request is, and what of its answer has come.

    ``secrets``: what no error text may quote of it. ``coding``: what its
    Content-Encoding is said to be. ``body``: as it comes.
    """

    secrets: tuple[str, ...] = ()
    sent: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    coding: str = ""
    body: bytes = b""

    def answer(self, cut: str = "") -> HttpAnswer:
        """
        Return the answer as far as it came, its Content-Encoding undone.

        ``cut``: why that may not be all of it; empty: it is.
        """
        body, fault = decoded(self.body, self.coding, BODY_BYTES_MAX)
        raw = self.body if fault else b""
        return HttpAnswer(self.status, self.headers, body, cut or fault, self.secrets, raw)


class HttpPost:
    """
    Sends POSTs by the connections of one connector.

    ``timeout`` is for connecting; the caller times the whole request.
    """

    def __init__(
        self,
        connector: aiohttp.TCPConnector,
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str],
        clock: Clock,
        proxy: str = "",
    ) -> None:
        """Send ``headers`` with every request, through ``proxy`` unless it is empty."""
        self._connector = connector
        self._timeout = timeout
        self._headers = {name.title(): value for name, value in headers.items()}
        self._clock = clock
        self._proxy = URL(proxy) if proxy else None
        self._requests: dict[str, aiohttp.ClientRequest] = {}
        self._heads: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}

    def head(self, url: str, proof: Mapping[str, str], *, keep: bool = True) -> bytes:
        """
        Return the beginning of requests to ``url`` with the headers ``proof``.

        It ends before the length of the body.

        ``keep``: others will begin so, too.

        Raises: aiohttp.InvalidURL; ValueError: a header does not fit into a line.
        """
        key = (url, tuple(proof.items()))
        head = self._heads.get(key)
        if head is None:
            where = (self._requests.get(url) or self._request(url)).url
            headers = {"Host": where.host_port_subcomponent or "", **self._headers}
            headers |= {name.title(): value for name, value in proof.items()}
            target = where.raw_path_qs
            if self._proxy is not None and where.scheme == "http":  # No tunnel: the proxy reads it.
                target = str(where)
                headers |= _authorization(self._proxy)
            lines = [f"POST {target} HTTP/1.1"]
            lines += (f"{name}: {value}" for name, value in headers.items() if name not in FRAMING)
            if any(_UNFIT.search(line) for line in lines):
                raise ValueError("a header holds a line break")
            head = "".join(f"{line}\r\n" for line in lines).encode()
            if keep and len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            if keep:
                self._heads[key] = head
        return head

    async def post(
        self, url: str, head: bytes, body: bytes, coming: RequestProgress, send_by: float = math.inf
    ) -> HttpAnswer:
        """
        Send ``body`` after what :meth:`head` gave, and read the answer.

        Of a body that is too long only the beginning is read.

        Nothing leaves after ``send_by`` (monotonic seconds of the clock): a process that was paused
        while it connected (SIGSTOP, a host that slept) would send at once when it wakes, perhaps
        after another node has used the refresh token.

        Raises: aiohttp.ClientError: of connecting, or LateError: nothing was sent; any other:
        nobody knows.
        """
        connection = await self._connect(url)
        try:
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            if self._clock.monotonic() > send_by:
                connection.release()
                raise LateError
            if transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(
                read_until_eof=True,
                auto_decompress=False,  # which would lose what it cannot undo
                max_line_size=HEADER_BYTES_MAX,
                max_field_size=HEADER_BYTES_MAX,
            )
            coming.sent = True
            transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
            try:
                answer = await self._read(protocol, coming)
            except (HttpProcessingError, EofStream, RuntimeError):
                # which are no errors of the client's to aiohttp
                raise aiohttp.ClientPayloadError from None
            if not answer.cut:
                connection.release()
            return answer
        finally:
            connection.close()  # does nothing once it is released

    async def _read(self, protocol: ResponseHandler, coming: RequestProgress) -> HttpAnswer:
        """Read the answer that comes next."""
        message, payload = await protocol.read()
        while 100 <= message.code < 200 and message.code != 101:
            message, payload = await protocol.read()
        coming.headers = {
            name: value for name in TOLD if (value := message.headers.get(name)) is not None
        }
        coming.coding = ", ".join(message.headers.getall("content-encoding", ()))
        coming.status = message.code
        while chunk := await payload.readany():
            coming.body += chunk
            if len(coming.body) > BODY_BYTES_MAX:
                coming.body = coming.body[:BODY_BYTES_MAX]
                return coming.answer(f"its body has more than {BODY_BYTES_MAX} bytes")
        broken = isinstance(protocol, BoundedHandler) and protocol.broken
        return coming.answer("its body broke off" if broken else "")

    async def _connect(self, url: str) -> aiohttp.connector.Connection:
        """Return a connection on which nothing is under way. Raises: aiohttp.ClientError."""
        request = self._requests.get(url)
        if request is None:
            request = self._request(url)
        while True:
            try:
                connection = await self._connector.connect(request, [], self._timeout)
            except TimeoutError:
                raise aiohttp.ConnectionTimeoutError("no connection in time") from None
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            # What has come there unasked would be taken for the answer to this request.
            connection.close()

    def _request(self, url: str) -> aiohttp.ClientRequest:
        """Return the request by which aiohttp's connector connects to ``url``."""
        try:
            where = URL(url)
        except ValueError:
            raise aiohttp.InvalidURL(url) from None
        if where.scheme not in self._connector.allowed_protocol_schema_set:
            raise aiohttp.InvalidURL(url)
        if len(self._requests) >= HEADS_MAX:
            self._requests.clear()
        request = self._requests[url] = aiohttp.ClientRequest("POST", where, proxy=self._proxy)
        return request


def _authorization(proxy: URL) -> dict[str, str]:
    if proxy.user is None:
        return {}
    said = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {said}"}
