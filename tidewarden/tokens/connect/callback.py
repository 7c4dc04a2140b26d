"""Reads and judges what a browser comes back with from a provider. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidewarden.config.load import Provider

from .outcomes import ConsentFailed
from .sealed_visits import STATE, Visit

CODE_CHARS_MAX = 4096
READ = ("state", "code", "iss", "error")
"""The parameters that anything is decided by; providers send others, which are not looked at."""
_ERROR = re.compile(r"[a-z_]{1,40}")
DENIALS = ("access_denied", "user_denied", "consent_required", "interaction_required")


@dataclass(frozen=True, slots=True)
class Callback:
    """Holds the answer of an authorization endpoint (RFC 6749, 4.1.2), as the browser brings it."""

    state: str
    code: str = field(default="", repr=False)
    issuer: str = ""
    error: str = ""


def read_callback(query: Iterable[tuple[str, str]]) -> Callback:
    """
    Read the parameters of a callback.

    Raises: ConsentFailed: there is no state as we make them, or a parameter is there twice.
    """
    found: dict[str, str] = {}
    for name, value in query:
        if name in READ:
            if name in found:  # RFC 6749, 3.1; else two readers could take two of them
                raise ConsentFailed("unknown_browser", f"{name} is given twice")
            found[name] = value
    state = found.get("state", "")
    if not STATE.fullmatch(state):
        raise ConsentFailed("unknown_browser", "there is no state of ours")
    return Callback(state, found.get("code", ""), found.get("iss", ""), found.get("error", ""))


def code_of(callback: Callback, visit: Visit, others: Collection[str], now_ms: int) -> str:
    """
    Return the code that a callback brings for its visit.

    ``others``: see :func:`issuers_of_others`. Raises: ConsentFailed: it comes too late or from
    somebody else, or brings none.
    """
    if visit.until_ms <= now_ms:
        raise ConsentFailed("expired")
    _check_issuer(callback.issuer, visit, others)
    if callback.error:
        word = callback.error if _ERROR.fullmatch(callback.error) else "an odd error"
        raise ConsentFailed("denied" if callback.error in DENIALS else "provider_error", word)
    code = callback.code
    if not 0 < len(code) <= CODE_CHARS_MAX or not code.isascii() or not code.isprintable():
        raise ConsentFailed("no_code")
    return code


def issuers_of_others(provider: Provider, known: Iterable[Provider]) -> frozenset[str]:
    """
    Return the issuers by which an answer is known not to be the provider's.

    Those of providers that are put while nodes run do not count: whoever may put one could name any
    issuer. Nor do those of the same server, of which two clients may be known here.
    """
    own = _origins_of(provider)
    return frozenset(
        one.issuer or one.consent_issuer
        for one in known
        if one.name != provider.name and one.reach is None and own.isdisjoint(_origins_of(one))
    )


def _origins_of(provider: Provider) -> frozenset[str]:
    """Return the origins that are known to be the provider's server's."""
    urls = (
        provider.issuer,
        provider.consent_issuer,
        provider.authorization_url,
        provider.token_url,
    )
    found = (urlsplit(url) for url in urls if url)
    return frozenset(f"{parts.scheme}://{parts.netloc}".lower() for parts in found)


def _check_issuer(said: str, visit: Visit, others: Collection[str]) -> None:
    """Refuse the answer of another provider than was asked (mix-up; RFC 9207, 2.4)."""
    if not said and visit.says_issuer:
        raise ConsentFailed("wrong_issuer", "it names no issuer, and its metadata say that it does")
    if said and (said != visit.issuer if visit.issuer else said in others):
        raise ConsentFailed("wrong_issuer", "it names another issuer")
