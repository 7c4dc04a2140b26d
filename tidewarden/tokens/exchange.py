"""
The refresh request: one POST to a token endpoint, by httpx over aiohttp's transport.

The transport reports a refused connection, a name that does not resolve, a bad certificate *and* a peer that closed
after the whole request alike, as ``ConnectTimeout``: what was sent is told by ``exc.__cause__`` alone.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from tidewarden import __version__
from tidewarden.clock import Clock, SystemClock
from tidewarden.config import Provider

from .answers import Answer, Outcome, Unheard, Unsent
from .credentials import Credentials
from .discovery import Discovery, NotFoundError

BODY_BYTES_MAX = 65_536
KEEPALIVE_S = 15.0  # Shorter than the idle time-outs of servers, so that they rarely close under a request.
TOLD = frozenset(
    ("content-type", "date", "retry-after", "content-encoding")
)  # The headers that anything is decided by.
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": f"tidewarden/{__version__}"}
UNREAD_S = 0.25  # What a request that has timed out gets to read the answer that may be there.

# httpx logs the URL of every request at INFO; some providers want secrets there.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Exchange:
    """The HTTP client of this node's refreshers: one pool of connections per provider, no cookies, no redirects."""

    def __init__(self, tls: ssl.SSLContext | None = None, clock: Clock | None = None) -> None:
        """``tls``: the context to trust servers by; None, the default: each provider's ``tls_ca``, else certifi's."""
        self._tls = tls
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._transports: dict[str, AiohttpTransport] = {}
        self._urls: dict[str, httpx.URL] = {}  # Parsing one costs httpx as much as all else that it does.
        clock = clock or SystemClock()
        self.credentials = Credentials(clock)
        self._discovery = Discovery(clock)

    async def refresh(self, provider: Provider, refresh_token: str, secret: int = 0) -> Outcome:
        """
        Trade a refresh token for a new pair; ``secret``: which of the client's to show.

        Never raises for what the network or the provider does.
        """
        client = self._client(provider)
        sent = False
        try:
            async with asyncio.timeout(None) as limit:
                timer = _two_steps(limit, provider.timeout_s)
                try:
                    url = await self._discovery.endpoint(provider, client)
                    sent = True
                    return await self._post(provider, url, refresh_token, secret)
                finally:
                    timer.cancel()
        except TimeoutError:
            if not sent:
                return Unsent("discovery", f"its metadata did not come within {provider.timeout_s:g} s")
            return Unheard(f"no whole answer within {provider.timeout_s:g} s")
        except NotFoundError as error:
            return Unsent("discovery", f"its token endpoint was not found: {error}")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            return Unsent("bad_url", f"{type(error).__name__}")
        except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError, ValueError) as error:
            return _judge_error(error)

    async def close(self) -> None:
        """Close every connection."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def _post(self, provider: Provider, url: str, refresh_token: str, secret: int) -> Outcome:
        """
        The request, straight by the transport.

        What httpx's client does beside, it does for redirects, cookies and logins that we do not want; it takes more of
        a refresh's time than all else (docs/performance.md).
        """
        proof, members = self.credentials.prove(provider, secret, url)
        headers = {**HEADERS, **provider.headers, **proof}
        members = {"grant_type": "refresh_token", "refresh_token": refresh_token, **members, **provider.parameters}
        connect_s = provider.connect_s
        request = httpx.Request(
            "POST",
            self._url(url),
            headers=headers,
            json=members if provider.body == "json" else None,
            data=members if provider.body == "form" else None,
            extensions={"timeout": {"connect": connect_s, "pool": connect_s}},  # the whole of it is timed by refresh()
        )
        response = await self._transports[provider.name].handle_async_request(request)
        try:
            told = {
                name: value.decode("latin-1")
                for raw_name, value in response.headers.raw
                if (name := raw_name.decode("latin-1").lower()) in TOLD
            }
            assert isinstance(response.stream, httpx.AsyncByteStream)
            raw = b""
            async for chunk in response.aiter_bytes() if "content-encoding" in told else response.stream:
                raw += chunk
                if len(raw) > BODY_BYTES_MAX:
                    return Unheard(f"HTTP {response.status_code} with a body over {BODY_BYTES_MAX} bytes")
            return Answer(response.status_code, told, raw)
        finally:
            await response.aclose()

    def _url(self, address: str) -> httpx.URL:
        url = self._urls.get(address)
        if url is None:
            url = self._urls[address] = httpx.URL(address)
        return url

    def _client(self, provider: Provider) -> httpx.AsyncClient:
        client = self._clients.get(provider.name)
        if client is None:
            self._transports[provider.name] = transport = _new_transport(provider, self._tls)
            client = self._clients[provider.name] = _new_client(provider, transport)
        return client


def _two_steps(limit: asyncio.Timeout, timeout_s: float) -> asyncio.TimerHandle:
    """
    End a request ``timeout_s`` from now, but look into the socket once more before.

    A process that was paused past the time (SIGSTOP, a host that slept) finds the timer gone off and the answer unread
    at once; and an answer that holds the only refresh token must not be thrown away.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(timeout_s, lambda: limit.reschedule(loop.time() + UNREAD_S))


def _new_transport(provider: Provider, tls: ssl.SSLContext | None) -> AiohttpTransport:
    context = tls
    if context is None and provider.tls_ca:
        context = ssl.create_default_context(cafile=provider.tls_ca)
    elif context is None:
        context = httpx.create_ssl_context(trust_env=False)
    if provider.tls_cert:
        context.load_cert_chain(provider.tls_cert, provider.tls_key)

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=provider.refreshers + 4, ssl=context, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=30
        )
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    return AiohttpTransport(verify=context, client=session)


def _new_client(provider: Provider, transport: AiohttpTransport) -> httpx.AsyncClient:
    """For what else there is to ask of a provider: its metadata."""
    connect_s = provider.connect_s
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(None, connect=connect_s, pool=connect_s),
        # httpx keeps a jar of its own, and would carry one account's cookie to the next.
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
        follow_redirects=False,
        trust_env=False,
    )


def _judge_error(error: Exception) -> Outcome:
    cause = error.__cause__ if isinstance(error, httpx.HTTPError) else error
    name = type(cause or error).__name__  # The text of such errors may quote the URL or bytes of the answer.
    if isinstance(cause, aiohttp.ClientConnectorDNSError):
        return Unsent("dns", "the name of the token endpoint does not resolve")
    if isinstance(cause, aiohttp.ClientSSLError):
        return Unsent("tls", f"no trusted TLS connection ({name})")
    if isinstance(cause, aiohttp.ClientConnectorError):
        return Unsent("refused", f"no connection ({cause.os_error.strerror or name})")
    if isinstance(cause, aiohttp.ConnectionTimeoutError):
        return Unsent("connect_timeout", "no connection in time")
    if isinstance(cause, aiohttp.InvalidURL):
        return Unsent("bad_url", name)
    return Unheard(f"the connection ended without an answer ({name})")
