"""
Finds an issuer's endpoints by its metadata (RFC 8414).

Metadata are read at most once an hour, and kept while the issuer is away.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from tidewarden.clock import Clock
from tidewarden.config.addresses import plain_fault, secret_url_fault
from tidewarden.config.load import Provider

from .reach_check import OutsideError, check_reach, outside_of

log = logging.getLogger("tidewarden.tokens")

FRESH_S = 3600.0
# Of a refresh's time for each place where they may lie; the rest is for the refresh, which an old
# endpoint may serve.
SHARE = 1 / 3
# After a failure; callers in between hear of the same one, or get the endpoint known before.
RETRY_S = 10.0
BODY_BYTES_MAX = 262_144
KNOWN_MAX = 10_000  # Issuers whose endpoints are remembered.


class NotFoundError(Exception):
    """Says in words why the token endpoint is not known."""


@dataclass(frozen=True, slots=True)
class ConsentEndpoints:
    """Says where people consent, and what a provider says when it sends them back."""

    authorization: str = ""
    """Where browsers are sent to."""
    pushed: str = ""
    """Where the request is pushed to first (RFC 9126); empty: the browser brings it."""
    says_issuer: bool = False
    """Whether each of its answers names the issuer (RFC 9207)."""
    device: str = ""
    """Where codes for other devices are asked for (RFC 8628); empty: there are none."""


@dataclass(slots=True)
class _Known:
    url: str = ""
    revocation: str = ""
    consent: ConsentEndpoints = field(default_factory=ConsentEndpoints)
    until: float = 0.0
    fault: str = ""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Discovery:
    """Finds token endpoints."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[
            tuple[str, str], _Known
        ] = {}  # By provider and issuer: accounts may have issuers of their own.

    async def endpoint(self, provider: Provider, session: aiohttp.ClientSession) -> str:
        """
        Return a provider's token endpoint; look it up if only its issuer is known.

        Raises: NotFoundError: it cannot be found, and was not found before.
        """
        if provider.token_url:
            return provider.token_url
        known = self._known.get((provider.name, provider.issuer))
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[provider.name, provider.issuer] = _Known()
        if self._clock.monotonic() >= known.until and not (known.url and known.asking.locked()):
            async with known.asking:
                if self._clock.monotonic() >= known.until:
                    await self._ask(provider, session, known)
        if not known.url:
            raise NotFoundError(known.fault)
        return known.url

    async def revocation(self, provider: Provider, session: aiohttp.ClientSession) -> str:
        """Return the address at which a provider revokes tokens. Raises: NotFoundError."""
        if provider.revocation_url:
            return provider.revocation_url
        await self.endpoint(provider, session)
        known = self._known.get((provider.name, provider.issuer))
        if known is None or not known.revocation:
            raise NotFoundError("its metadata name no revocation_endpoint")
        return known.revocation

    async def consent(self, provider: Provider, session: aiohttp.ClientSession) -> ConsentEndpoints:
        """Return where people consent, by the settings, else by metadata. Raises: NotFoundError."""
        found = ConsentEndpoints()
        if provider.issuer:
            await self.endpoint(provider, session)
            known = self._known.get((provider.name, provider.issuer))
            found = known.consent if known is not None else found
        return replace(
            found,
            authorization=provider.authorization_url or found.authorization,
            pushed=provider.par_url or found.pushed,
            device=provider.device_url or found.device,
        )

    async def _ask(self, provider: Provider, session: aiohttp.ClientSession, known: _Known) -> None:
        faults = []
        for address in addresses(provider.issuer):
            try:
                check_reach(provider, address)
                async with asyncio.timeout(provider.timeout_s * SHARE):
                    raw = await _get(session, address)
                known.url, known.revocation, known.consent = (
                    read_metadata(provider, raw),
                    read_revocation(provider, raw),
                    read_consent(provider, raw),
                )
                known.until, known.fault = self._clock.monotonic() + FRESH_S, ""
                return
            except (NotFoundError, OutsideError, TimeoutError) as error:
                faults.append(f"{urlsplit(address).path}: {str(error) or 'no answer in time'}")
        known.until, known.fault = self._clock.monotonic() + RETRY_S, "; ".join(faults)
        if known.url:
            log.warning(
                "%s: its metadata cannot be read, %s is used on: %s",
                provider.name,
                known.url,
                known.fault,
            )


def addresses(issuer: str) -> Iterator[str]:
    """
    List where an issuer's metadata may be.

    RFC 8414 (3) puts them between host and path, OpenID behind it.
    """
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    yield urlunsplit(
        (parts.scheme, parts.netloc, f"/.well-known/oauth-authorization-server{path}", "", "")
    )
    yield urlunsplit(
        (parts.scheme, parts.netloc, f"{path}/.well-known/openid-configuration", "", "")
    )


def read_metadata(provider: Provider, raw: bytes) -> str:
    """
    Read the token endpoint that metadata name.

    Raises: NotFoundError: what is wrong with them.
    """
    try:
        found: Any = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotFoundError("no JSON object")
    # RFC 8414, 3.3: else anybody could take the place of anybody.
    if found.get("issuer") != provider.issuer:
        raise NotFoundError("the metadata are of another issuer")
    url = _named(provider, found, "token_endpoint")
    if not isinstance(url, str) or secret_url_fault(url):
        raise NotFoundError("they name no token_endpoint")
    if not _is_encrypted_enough(provider, url):
        raise NotFoundError(
            "their token_endpoint is not encrypted, as the issuer is or https:// would be"
        )
    if not _is_at_home(provider, url):
        raise NotFoundError(
            "their token_endpoint is at another host than the issuer, which is an account's own"
        )
    return url


def read_revocation(provider: Provider, raw: bytes) -> str:
    """
    Return the revocation endpoint (RFC 8414, 2) of metadata that :func:`read_metadata` accepts.

    Empty: they name none that can be used.
    """
    return _usable(provider, _named(provider, json.loads(raw), "revocation_endpoint"))


def read_consent(provider: Provider, raw: bytes) -> ConsentEndpoints:
    """Return where people consent, by metadata that :func:`read_metadata` accepts."""
    found = json.loads(raw)
    return ConsentEndpoints(
        _usable(provider, found.get("authorization_endpoint")),
        _usable(provider, _named(provider, found, "pushed_authorization_request_endpoint")),
        found.get("authorization_response_iss_parameter_supported") is True,
        _usable(provider, _named(provider, found, "device_authorization_endpoint")),
    )


def _usable(provider: Provider, url: Any) -> str:
    """Return an endpoint of metadata; empty: it is none, or may not be used."""
    if not isinstance(url, str) or secret_url_fault(url):
        return ""
    return url if _is_encrypted_enough(provider, url) and _is_at_home(provider, url) else ""


def _is_at_home(provider: Provider, url: str) -> bool:
    """
    Return whether the metadata of an account's own issuer name an address on the provider's host.

    Elsewhere its metadata could lead the client's secret anywhere.
    """
    return (
        not provider.own_issuer
        or urlsplit(url).netloc.lower() == urlsplit(provider.issuer).netloc.lower()
    )


def _is_encrypted_enough(provider: Provider, url: str) -> bool:
    if provider.issuer.startswith("https:") and not url.startswith("https:"):
        return False
    return not plain_fault(url, allowed=provider.plain_http)


def _named(provider: Provider, found: dict[str, Any], name: str) -> Any:
    aliases = found.get("mtls_endpoint_aliases")
    if provider.tls_cert and isinstance(aliases, dict):  # RFC 8705, 5
        return aliases.get(name, found.get(name))
    return found.get(name)


async def _get(session: aiohttp.ClientSession, address: str) -> bytes:
    try:
        async with session.get(address, allow_redirects=False) as response:
            if response.status != 200:
                raise NotFoundError(f"HTTP {response.status}")
            body = b""
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise NotFoundError(f"more than {BODY_BYTES_MAX} bytes")
            return body
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = outside_of(error) or f"no answer ({type(error).__name__})"
        raise NotFoundError(why) from error
