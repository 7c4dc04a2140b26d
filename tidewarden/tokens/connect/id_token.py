"""
Reads an ID token that came straight from the token endpoint (OpenID Connect Core, 3.1.3.7). Pure.

Its signature is not checked: it came by TLS from the endpoint that our settings name, in answer to
our request, and point 6 there lets that stand for the signature. It is never taken from a browser.
"""

from __future__ import annotations

import base64

import msgspec

AHEAD_S = 300
"""So much the clocks may differ."""
SUBJECT_CHARS_MAX = 255


class IdToken(msgspec.Struct):
    """Holds the claims that are looked at."""

    sub: str = ""
    iss: str = ""
    aud: str | list[str] = ""
    azp: str = ""
    exp: float = 0
    nonce: str = ""


def read_id_token(text: str) -> IdToken:
    """Read the claims. Raises: ValueError: it is no signed statement in JSON."""
    parts = text.split(".")
    if len(parts) != 3:
        raise ValueError("it is no signed statement of three parts")
    body = parts[1]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=IdToken)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise ValueError("its claims cannot be read") from None


def fault_of(token: IdToken, client_id: str, issuer: str, nonce: str, now_s: float) -> str:
    """
    Say why an ID token is not the answer to our request; empty: it is.

    ``issuer``: whom it has to be of; empty: that is not known.
    """
    audience = [token.aud] if isinstance(token.aud, str) else token.aud
    if token.nonce != nonce:
        return "its nonce is not that of the request"
    if client_id not in audience:
        return "it is for another client"
    if (len(audience) > 1 or token.azp) and token.azp != client_id:
        return "it was issued to another client"
    if issuer and token.iss != issuer:
        return "it is of another issuer"
    if token.exp < now_s - AHEAD_S:
        return "it has expired"
    if not 0 < len(token.sub) <= SUBJECT_CHARS_MAX or not token.sub.isprintable():
        return "it names nobody"
    return ""
