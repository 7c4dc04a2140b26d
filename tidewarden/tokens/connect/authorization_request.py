"""Makes the request that a browser brings to a provider's authorization endpoint. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from tidewarden.config.load import Provider
from tidewarden.config.provider import reserved_in

from .outcomes import ConsentFailed

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
OPENID = "openid"
"""The scope by which a provider says who consented (OpenID Connect Core, 3.1.2.1)."""


def wants_identity(scope: str) -> bool:
    """Tell whether the scope asks for an ID token."""
    return OPENID in scope.split()


def request_members(
    provider: Provider, redirect_uri: str, scope: str, state: str, verifier: str, nonce: str
) -> dict[str, str]:
    """Return the parameters of the request; those of ``provider`` come last."""
    members = {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
    }
    if scope:
        members["scope"] = scope
    if verifier:
        members |= {"code_challenge": challenge_of(verifier), "code_challenge_method": "S256"}
    if nonce:
        members["nonce"] = nonce
    return members | provider.authorization_parameters


def code_grant(redirect_uri: str, code: str, verifier: str) -> dict[str, str]:
    """Return what trades a code for tokens, beside the proof of our client (RFC 6749, 4.1.3)."""
    members = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
    return members | {"code_verifier": verifier} if verifier else members


def device_grant(device_code: str) -> dict[str, str]:
    """Return what asks for the tokens of another device's consent (RFC 8628, 3.4)."""
    return {"grant_type": DEVICE_CODE, "device_code": device_code}


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def address_with(endpoint: str, members: Mapping[str, str]) -> str:
    """
    Return the endpoint's address with the parameters behind what its query has.

    Raises: ConsentFailed: the query has one of them, or another that is ours to say.
    """
    if name := reserved_in(endpoint):  # its metadata may name any address
        raise ConsentFailed("provider_error", f"its authorization endpoint says {name} by itself")
    # A blank as %20: some providers take a plus sign for what it is.
    query = urlencode(members, quote_via=quote)
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"
