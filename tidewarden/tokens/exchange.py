"""
The refresh request: one POST to a token endpoint, by httpx over aiohttp's transport.

The transport reports a refused connection, a name that does not resolve, a bad certificate *and* a peer that closed
after the whole request alike, as ``ConnectTimeout``: what was sent is told by ``exc.__cause__`` alone.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import quote_plus

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from tidewarden.config import Provider

from .answers import Answer, Outcome, Unheard, Unsent

BODY_BYTES_MAX = 65_536
KEEPALIVE_S = 15.0  # Shorter than the idle time-outs of servers, so that they rarely close under a request.
TOLD = ("content-type", "date", "retry-after")  # The headers that anything is decided by.
CONNECT_SHARE = 0.4  # Of the provider's time-out: what takes longer to connect was surely not sent.
UNREAD_S = 0.25  # What a request that has timed out gets to read the answer that may be there.

# httpx logs the URL of every request at INFO; some providers want secrets there.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Exchange:
    """The HTTP client of this node's refreshers: one pool of connections per provider, no cookies, no redirects."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: the context to trust servers by; None, the default: the certificates of certifi."""
        self._tls = tls
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._urls: dict[str, httpx.URL] = {}  # Parsing one costs httpx as much as all else that it does.

    async def refresh(self, provider: Provider, refresh_token: str) -> Outcome:
        """Trade a refresh token for a new pair. Never raises for what the network or the provider does."""
        client = self._client(provider)
        try:
            async with asyncio.timeout(None) as limit:
                timer = _two_steps(limit, provider.timeout_s)
                try:
                    return await self._post(client, provider, refresh_token)
                finally:
                    timer.cancel()
        except TimeoutError:
            return Unheard(f"no whole answer within {provider.timeout_s:g} s")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            return Unsent("bad_url", f"{type(error).__name__}")
        except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError, ValueError) as error:
            return _judge_error(error)

    async def close(self) -> None:
        """Close every connection."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    async def _post(self, client: httpx.AsyncClient, provider: Provider, refresh_token: str) -> Outcome:
        headers, form = credentials(provider)
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, **form}
        async with client.stream("POST", self._url(provider), headers=headers, data=form) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    return Unheard(f"HTTP {response.status_code} with a body over {BODY_BYTES_MAX} bytes")
            told = {name: value for name in TOLD if (value := response.headers.get(name)) is not None}
            return Answer(response.status_code, told, body)

    def _url(self, provider: Provider) -> httpx.URL:
        url = self._urls.get(provider.token_url)
        if url is None:
            url = self._urls[provider.token_url] = httpx.URL(provider.token_url)
        return url

    def _client(self, provider: Provider) -> httpx.AsyncClient:
        client = self._clients.get(provider.name)
        if client is None:
            client = self._clients[provider.name] = _new_client(provider, self._tls)
        return client


def _two_steps(limit: asyncio.Timeout, timeout_s: float) -> asyncio.TimerHandle:
    """
    End a request ``timeout_s`` from now, but look into the socket once more before.

    A process that was paused past the time (SIGSTOP, a host that slept) finds the timer gone off and the answer unread
    at once; and an answer that holds the only refresh token must not be thrown away.
    """
    loop = asyncio.get_running_loop()
    return loop.call_later(timeout_s, lambda: limit.reschedule(loop.time() + UNREAD_S))


def credentials(provider: Provider) -> tuple[dict[str, str], dict[str, str]]:
    """The headers and the form fields by which our client proves itself; an empty secret is never sent."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    name, secret = provider.client_id, provider.client_secret.reveal()
    if provider.auth == "none" or not secret:
        return headers, {"client_id": name}
    if provider.auth == "post":
        return headers, {"client_id": name, "client_secret": secret}
    if provider.auth == "basic":  # RFC 6749, 2.3.1: each form-encoded first.
        name, secret = quote_plus(name), quote_plus(secret)
    headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()
    return headers, {}


def _new_client(provider: Provider, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    context = tls if tls is not None else httpx.create_ssl_context(trust_env=False)

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=provider.refreshers + 4, ssl=context, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=30
        )
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    connect_s = provider.timeout_s * CONNECT_SHARE
    return httpx.AsyncClient(
        transport=AiohttpTransport(verify=context, client=session),
        timeout=httpx.Timeout(None, connect=connect_s, pool=connect_s),  # the whole of it is timed by refresh()
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
