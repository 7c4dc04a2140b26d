"""
Sends the refresh request: one POST to a token endpoint, by the connections below aiohttp's client.

The client makes all other requests to a provider (for its metadata, and to revoke). The refresh
itself goes to the connections beneath (:mod:`.http_post`), because the layers between cost more
than all else of a refresh (docs/performance.md). An authorization code goes the same way, for its
answer has to be told apart as carefully.

What was sent is told by the error alone: one of connecting means nothing, any other that the
provider may have had all of it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
import ssl
import weakref
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode

import aiohttp
import certifi

from tidewarden import __version__
from tidewarden.bounded_connector import BoundedConnector, Lookups
from tidewarden.clock import Clock, SystemClock
from tidewarden.config.load import Provider

from .client_auth import Credentials
from .discovery import ConsentEndpoints, Discovery, NotFoundError
from .grant_request import asking
from .http_post import BODY_BYTES_MAX, HEADER_BYTES_MAX, TOLD, HttpPost, LateError, RequestProgress
from .reach_check import check_reach, outside_of, sockets_within
from .request_timeout import RequestTimeout
from .revocation_response import Revoked, judge_revocation
from .token_response import HttpAnswer, NoAnswer, Outcome, RequestNotSent, classify

# Shorter than the idle time-outs of servers (5 s is the default of many), so that they rarely close
# under a request.
KEEPALIVE_S = 4.0
KINDS = {"form": "application/x-www-form-urlencoded", "json": "application/json"}
HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"tidewarden/{__version__}",
}


@dataclass(frozen=True, slots=True)
class Connections:
    """Holds the connections to one provider, those of refreshes and those of all other requests."""

    loop: asyncio.AbstractEventLoop
    poster: HttpPost
    session: aiohttp.ClientSession


class TokenEndpoint:
    """
    Sends this node's token requests.

    It has one pool of connections per provider, and takes no cookies and no redirects.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, clock: Clock | None = None) -> None:
        """
        Trust servers by the context ``tls``; None: by each provider's ``tls_ca``, else certifi's.
        """
        self._tls = tls
        self._lines: dict[str, Connections] = {}
        # By provider, while any is under way: who puts a provider again and again has no more.
        self._lookups: weakref.WeakValueDictionary[str, Lookups] = weakref.WeakValueDictionary()
        self._clock = clock = clock or SystemClock()
        self.credentials = Credentials(clock)
        self._discovery = Discovery(clock)

    async def refresh(
        self,
        provider: Provider,
        brought: str,
        secret: int = 0,
        send_by: float = math.inf,
        account: str = "",
    ) -> Outcome:
        """
        Trade a refresh token, or what else the account brings, for a new pair.

        ``secret``: which of the client's to show.

        ``account``: its name within the provider. ``send_by``: after that (monotonic seconds of the
        clock) nothing leaves any more; the outcome is ``late`` then. Never raises for what the
        network or the provider does.
        """
        coming = RequestProgress(_secrets(provider, brought))
        asking = self._refresh(provider, account, brought, secret, coming, send_by)
        return await self._outcome(provider, coming, asking)

    async def exchange(
        self, provider: Provider, grant: Mapping[str, str], secret: int = 0
    ) -> Outcome:
        """
        Trade what a consent brought, a code, for a pair (RFC 6749, 4.1.3; RFC 8628, 3.4), once.

        ``grant``: the members of the body beside the proof of our client. Never raises for what the
        network or the provider does.
        """
        coming = RequestProgress((*_secrets(provider, ""), *grant.values()))
        asking = self._exchange(provider, grant, secret, coming)
        return await self._outcome(provider, coming, asking)

    async def ask_beside(self, provider: Provider, url: str, request: Mapping[str, str]) -> Outcome:
        """
        Send a form to an endpoint beside the token endpoint, as the client that we are there.

        Requests are pushed so (RFC 9126), and codes for other devices asked for (RFC 8628), by each
        of the client's secrets until one is taken: what is refused for its secret used nothing up.
        Never raises for what the network or the provider does.
        """
        for number in self.credentials.order(provider):
            coming = RequestProgress(_secrets(provider, ""))
            asking = self._ask_beside(provider, url, request, number, coming)
            outcome = await self._outcome(provider, coming, asking)
            if classify(outcome, self._clock.unix_ms()).outcome != "invalid_client":
                self.credentials.prefer(provider, number)
                break
        return outcome

    async def consent_endpoints(self, provider: Provider) -> ConsentEndpoints:
        """Return where people consent. Raises: NotFoundError: metadata do not tell, or not now."""
        session = self._line(provider).session
        try:
            async with asyncio.timeout(provider.timeout_s):
                return await self._discovery.consent(provider, session)
        except TimeoutError:
            raise NotFoundError(f"no metadata within {provider.timeout_s:g} s") from None

    async def _outcome(
        self, provider: Provider, coming: RequestProgress, asking: Awaitable[Outcome]
    ) -> Outcome:
        """Return the outcome of a request; what the network does becomes one, too."""
        try:
            outcome = await asking
        except aiohttp.ClientError as error:  # Before TimeoutError, which some of them are, too.
            outcome = _judge_error(error, proxied=bool(provider.proxy))
            if not coming.sent and isinstance(outcome, NoAnswer):
                outcome = RequestNotSent(
                    "refused",
                    f"the connection ended before anything was sent ({type(error).__name__})",
                )
        except TimeoutError:
            outcome = NoAnswer(f"no whole answer within {provider.timeout_s:g} s")
            if not coming.sent:
                missing = (
                    "neither its metadata nor a connection" if provider.issuer else "no connection"
                )
                outcome = RequestNotSent(
                    "connect_timeout", f"{missing} within {provider.timeout_s:g} s"
                )
        except NotFoundError as error:
            outcome = RequestNotSent("discovery", f"its token endpoint was not found: {error}")
        except (OSError, ValueError) as error:
            outcome = _judge_error(error)
            if not coming.sent and isinstance(outcome, NoAnswer):
                outcome = RequestNotSent(
                    "misconfigured", f"the request cannot be made: {_reason(error)}"
                )
        if coming.status and isinstance(outcome, NoAnswer):
            # The status says what it means, and what there is of a success may hold the only
            # refresh token.
            return coming.answer(outcome.message)
        return outcome

    async def revoke(self, provider: Provider, refresh_token: str) -> Revoked:
        """
        Have a refresh token revoked (RFC 7009), by each of the client's secrets until one is taken.

        Never raises for what the network or the provider does.
        """
        session = self._line(provider).session
        found = Revoked("failed", "nothing was sent")
        try:
            async with asyncio.timeout(provider.timeout_s):
                url = await self._discovery.revocation(provider, session)
                check_reach(provider, url)
                for number in self.credentials.order(provider):
                    proof, members = self.credentials.prove(provider, number, url)
                    form = {"token": refresh_token, "token_type_hint": "refresh_token", **members}
                    headers = {**proof, **provider.headers, "Content-Type": KINDS["form"]}
                    async with session.post(
                        url, data=urlencode(form).encode(), headers=headers, allow_redirects=False
                    ) as response:
                        raw = b""
                        async for chunk in response.content.iter_any():
                            raw += chunk
                            if len(raw) > BODY_BYTES_MAX:
                                break
                    told = {
                        name: value
                        for name in TOLD
                        if (value := response.headers.get(name)) is not None
                    }
                    answer = HttpAnswer(
                        response.status, told, raw, secrets=_secrets(provider, refresh_token)
                    )
                    found = judge_revocation(answer, self._clock.unix_ms())
                    if "invalid_client" not in found.message:
                        break
        except aiohttp.ClientError as error:  # Before TimeoutError, which some of them are, too.
            return Revoked("failed", outside_of(error) or f"no answer ({type(error).__name__})")
        except TimeoutError:
            return Revoked("failed", f"no whole answer within {provider.timeout_s:g} s")
        except NotFoundError as error:
            return Revoked("failed", f"its revocation endpoint was not found: {error}")
        except (OSError, ValueError) as error:
            return Revoked("failed", outside_of(error) or f"no answer ({type(error).__name__})")
        return found

    async def forget(self, provider: Provider) -> None:
        """Drop what is kept of a provider whose settings have changed, or that is gone."""
        self.credentials.forget(provider)
        line = self._lines.pop(provider.name, None)
        if line is not None:
            await line.session.close()

    async def close(self) -> None:
        """Close every connection."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.session.close()

    async def _refresh(
        self,
        provider: Provider,
        account: str,
        brought: str,
        secret: int,
        coming: RequestProgress,
        send_by: float,
    ) -> Outcome:
        line = self._line(provider)
        with RequestTimeout(line.loop, provider.timeout_s):
            url = await self._discovery.endpoint(provider, line.session)
            proof, members = self._proven(provider, secret, url)
            if provider.renews:
                head, body = line.poster.head(url, proof), _refresh_body(provider, brought, members)
            else:
                asked = asking(provider, account, brought, url, self.credentials, self._clock)
                coming.secrets += asked.secrets
                head = line.poster.head(url, {**proof, **asked.headers}, keep=not asked.headers)
                body = _body(provider, {**asked.members, **members, **provider.parameters})
            return await line.poster.post(url, head, body, coming, send_by)

    async def _exchange(
        self,
        provider: Provider,
        grant: Mapping[str, str],
        secret: int,
        coming: RequestProgress,
    ) -> Outcome:
        line = self._line(provider)
        with RequestTimeout(line.loop, provider.timeout_s):
            url = await self._discovery.endpoint(provider, line.session)
            proof, members = self._proven(provider, secret, url)
            body = _body(provider, {**provider.parameters, **grant, **members})
            return await line.poster.post(url, line.poster.head(url, proof), body, coming)

    async def _ask_beside(
        self,
        provider: Provider,
        url: str,
        request: Mapping[str, str],
        secret: int,
        coming: RequestProgress,
    ) -> Outcome:
        line = self._line(provider)
        with RequestTimeout(line.loop, provider.timeout_s):
            proof, members = self._proven(provider, secret, url)
            # It is a form at every provider, whatever the token endpoint wants.
            headers = {**proof, "Content-Type": KINDS["form"]}
            body = urlencode({**request, **members}).encode()
            return await line.poster.post(url, line.poster.head(url, headers), body, coming)

    def _proven(
        self, provider: Provider, secret: int, url: str
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """
        Return the headers of a request, and the members of its body, that prove our client.

        ``provider.headers`` are among them where they may be each account's own: else its
        connections send them. Raises what :func:`check_reach` raises.
        """
        check_reach(provider, url)
        proof, members = self.credentials.prove(provider, secret, url)
        if provider.account_parameters:
            proof = {**provider.headers, **proof}
        return proof, members

    def _line(self, provider: Provider) -> Connections:
        line = self._lines.get(provider.name)
        if line is None:
            lookups = self._lookups.setdefault(provider.name, Lookups())
            line = _new_line(provider, self._tls, self._clock, lookups)
            self._lines[provider.name] = line
        return line


def _secrets(provider: Provider, refresh_token: str) -> tuple[str, ...]:
    """
    Return the texts that no error may quote.

    Of further headers and members only values with a digit count: mere words would blank the text.
    """
    further = (*provider.headers.values(), *provider.parameters.values())
    odd = (text for text in further if any(map(str.isdigit, text)))
    return (refresh_token, *(secret.reveal() for secret in provider.secrets), *odd)


def _refresh_body(provider: Provider, refresh_token: str, members: Mapping[str, str]) -> bytes:
    rest = {**members, **provider.parameters}
    if provider.body == "json":
        return _body(
            provider, {"grant_type": "refresh_token", "refresh_token": refresh_token, **rest}
        )
    body = f"grant_type=refresh_token&refresh_token={quote_plus(refresh_token)}"
    return (f"{body}&{urlencode(rest)}" if rest else body).encode()


def _body(provider: Provider, members: Mapping[str, str]) -> bytes:
    if provider.body == "json":
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    return urlencode(members).encode()


def _trust() -> ssl.SSLContext:
    """Return a context that trusts the usual certificates."""
    return ssl.create_default_context(cafile=certifi.where())


@functools.cache
def _usual_trust() -> ssl.SSLContext:
    """
    Return the context of all providers that name no certificates.

    To read the usual certificates takes a process 20 ms and a megabyte each time.
    """
    return _trust()


def _new_line(
    provider: Provider, tls: ssl.SSLContext | None, clock: Clock, lookups: Lookups
) -> Connections:
    context = tls
    if context is None and provider.tls_ca:
        context = ssl.create_default_context(cafile=provider.tls_ca)
    elif context is None:
        context = _trust() if provider.tls_cert else _usual_trust()
    if provider.tls_cert:
        context.load_cert_chain(provider.tls_cert, provider.tls_key)
    # To a host of one account nobody comes back soon: kept, its connections would only take
    # descriptors.
    lasting: dict[str, Any] = (
        {"force_close": True} if provider.own_hosts else {"keepalive_timeout": KEEPALIVE_S}
    )
    if provider.reach is not None:
        lasting["socket_factory"] = sockets_within(provider.reach)
    connector = BoundedConnector(
        limit=provider.concurrency_bounds[1] + 4,
        ssl=context,
        ttl_dns_cache=30,
        resolver=lookups,
        **lasting,
    )
    # The whole of a request is timed by who makes it.
    connect_s = provider.connect_s
    timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)
    session = aiohttp.ClientSession(
        connector=connector,
        headers=HEADERS,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        proxy=provider.proxy or None,
        max_line_size=HEADER_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
    )
    headers = {**HEADERS, "Content-Type": KINDS[provider.body]}
    if not provider.account_parameters:  # Else they may be each account's own.
        headers |= provider.headers
    return Connections(
        asyncio.get_running_loop(),
        HttpPost(connector, timeout, headers, clock, provider.proxy),
        session,
    )


def reason_of(error: BaseException, name: str) -> str:
    """
    Return the system's words for an error of connecting.

    asyncio's own words name a call and an address instead.
    """
    if isinstance(error, ssl.SSLError):
        # Its own names for them are in capitals, and so long that they would be taken for a token.
        return (
            str(getattr(error, "verify_message", "") or error.reason or name)
            .replace("_", " ")
            .lower()
        )
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\[Errno (\d+)\]", str(error))):
        number = int(found[1])  # of several addresses
    return os.strerror(number) if number and number > 0 else name


def _judge_error(error: Exception, *, proxied: bool = False) -> Outcome:
    if isinstance(error, LateError):
        return RequestNotSent("late", "the lease was almost over when there was a connection")
    if why := outside_of(error):
        return RequestNotSent("misconfigured", f"no request is made: {why}")
    name = type(error).__name__  # The text of such errors may quote the URL or bytes of the answer.
    if isinstance(error, aiohttp.ClientHttpProxyError):
        if error.status >= 500:
            return RequestNotSent(
                "refused", f"the proxy has no connection to it (HTTP {error.status})"
            )
        return RequestNotSent("proxy", f"the proxy refuses the way there (HTTP {error.status})")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return RequestNotSent(
            "proxy", f"no connection to the proxy: {reason_of(error.os_error, name)}"
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        whose = "the proxy's name" if proxied else "the name of the token endpoint"
        return RequestNotSent("dns", f"{whose} does not resolve")
    if isinstance(error, aiohttp.ClientSSLError):
        return RequestNotSent(
            "tls", f"no trusted TLS connection: {reason_of(error.os_error, name)}"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestNotSent("refused", f"no connection: {reason_of(error.os_error, name)}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return RequestNotSent("connect_timeout", "no connection in time")
    if isinstance(error, aiohttp.InvalidURL):
        return RequestNotSent("bad_url", name)
    return NoAnswer(f"the connection ended without an answer ({name})")


def _reason(error: Exception) -> str:
    """Return the reason of an error, in words that quote no part of the request."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__ if isinstance(error, UnicodeError) else str(error)
