"""
Authenticates our client at a token endpoint: by a secret, a signed assertion, or its certificate.

A provider may also ask for none of these.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.config.provider import ASSERTION_AUTHS, SECRET_AUTHS
from tidewarden.config.signing import SigningKey, load_signing_key, with_thumbprint

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"  # RFC 7523, 2.2
# Long enough for a clock that goes wrong a little, too short for a reader of a log.
ASSERTION_LIFE_S = 120

Proof = tuple[Mapping[str, str], Mapping[str, str]]
"""Headers, and members of the body."""


class Credentials:
    """
    Makes the proofs of this node's clients, and knows which of two secrets the provider takes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, SigningKey] = {}
        self._preferred: dict[str, int] = {}
        self._proofs: dict[tuple[str, int], tuple[Provider, Proof]] = {}

    def forget(self, provider: Provider) -> None:
        """Forget a provider whose settings have changed, or that is gone."""
        self._preferred.pop(provider.name, None)
        for number in (0, 1):
            self._proofs.pop((provider.name, number), None)

    def forget_keys(self) -> None:
        """Read the files of keys again where they are needed next."""
        self._keys.clear()

    def order(self, provider: Provider) -> tuple[int, ...]:
        """Return the numbers of the secrets to try, the one that was last taken first."""
        if len(provider.secrets) == 1:
            return (0,)
        return (1, 0) if self._preferred.get(provider.name) == 1 else (0, 1)

    def prefer(self, provider: Provider, number: int) -> bool:
        """Note which secret the provider took; returns whether it is another than before."""
        changed = self._preferred.get(provider.name, 0) != number
        self._preferred[provider.name] = number
        return changed

    def prove(self, provider: Provider, number: int, endpoint: str) -> Proof:
        """Return the headers and body members by which our client proves itself to ``endpoint``."""
        if provider.auth == "private_key_jwt":
            return {}, {"client_id": provider.client_id, **self._assertion(provider, endpoint)}
        known = self._proofs.get((provider.name, number))
        if known is None or known[0] is not provider:
            known = self._proofs[provider.name, number] = (provider, by_secret(provider, number))
        return known[1]

    def _assertion(self, provider: Provider, endpoint: str) -> dict[str, str]:
        """Make a new assertion each time: some servers remember ``jti`` and refuse a second use."""
        now_s = self._clock.unix_ms() // 1000
        claims = {
            "iss": provider.client_id,
            "sub": provider.client_id,
            "aud": provider.jwt_audience or provider.issuer or endpoint,
            "jti": uuid.uuid4().hex,
            "iat": now_s,
            "exp": now_s + ASSERTION_LIFE_S,
        }
        return {
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": self.sign(provider, claims),
        }

    def sign(self, provider: Provider, claims: Mapping[str, Any]) -> str:
        """
        Sign a statement by the provider's ``jwt_key_file``.

        Raises: ValueError: the key cannot be used.
        """
        key = self._keys.get(provider.name)
        if key is None:
            key = load_signing_key(provider.jwt_key_file, provider.jwt_algorithm)
            if provider.jwt_cert_file:
                key = with_thumbprint(key, provider.jwt_cert_file, provider.jwt_thumbprint)
            self._keys[provider.name] = key
        key_id = provider.jwt_key_id or key.key_id
        return key.sign({"kid": key_id} if key_id else {}, claims)


def by_secret(provider: Provider, number: int = 0) -> Proof:
    """
    Return headers and members with the client's ``number``-th secret; an empty one is never sent.
    """
    if provider.auth in ASSERTION_AUTHS:
        return {}, {}  # The grant's own assertion says who asks.
    name, secret = provider.client_id, provider.secrets[number].reveal()
    if provider.auth not in SECRET_AUTHS or not secret:
        return {}, {"client_id": name}
    if provider.auth == "post":
        return {}, {"client_id": name, "client_secret": secret}
    if provider.auth == "basic":  # RFC 6749, 2.3.1: each form-encoded first.
        name, secret = quote_plus(name), quote_plus(secret)
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}, {}
