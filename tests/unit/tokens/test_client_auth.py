"""
How a client proves itself without a server: what is said, and which of two secrets comes first.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from joserfc import jwt
from joserfc.jwk import RSAKey
from support.manual_clock import ManualClock
from support.providers.certificate import make

from tidewarden.config.load import Provider, Secret
from tidewarden.tokens.provider.client_auth import ASSERTION_TYPE, Credentials

ENDPOINT = "https://as.example/token"


def part_of(assertion: str, number: int) -> dict[str, Any]:
    part = assertion.split(".")[number]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def claims_of(assertion: str) -> dict[str, Any]:
    return part_of(assertion, 1)


@pytest.mark.parametrize(
    ("settings", "audience"),
    [
        ({"token_url": ENDPOINT}, ENDPOINT),
        ({"issuer": "https://as.example"}, "https://as.example"),
        ({"issuer": "https://as.example", "jwt_audience": "urn:else"}, "urn:else"),
    ],
)
def test_an_assertion_is_for_its_audience_short_lived_and_never_the_same(
    tmp_path: Path, settings: dict[str, str], audience: str
) -> None:
    _, key = make(tmp_path)
    clock = ManualClock()
    provider = Provider(
        name="p", client_id="c0", auth="private_key_jwt", jwt_key_file=key, **settings
    )  # type: ignore[arg-type]
    credentials = Credentials(clock)
    made = [credentials.prove(provider, 0, ENDPOINT) for _ in range(2)]
    assert made[0][0] == {}
    assert (made[0][1]["client_id"], made[0][1]["client_assertion_type"]) == ("c0", ASSERTION_TYPE)
    first, second = (claims_of(members["client_assertion"]) for _, members in made)
    assert (first["iss"], first["sub"], first["aud"]) == ("c0", "c0", audience)
    assert 0 < first["exp"] - clock.unix_ms() / 1000 <= 300
    assert first["jti"] != second["jti"]


@pytest.mark.parametrize(("name", "digest"), [("x5t#S256", hashlib.sha256), ("x5t", hashlib.sha1)])
def test_an_assertion_names_the_certificate_of_its_key(
    tmp_path: Path, name: str, digest: Any
) -> None:
    certificate, key = make(tmp_path)
    _, older = make(tmp_path, "older")
    both = tmp_path / "chain.pem"
    both.write_text(Path(certificate).read_text() + (tmp_path / "older.pem").read_text())
    provider = Provider(
        name="p", client_id="c0", token_url=ENDPOINT, auth="private_key_jwt", jwt_key_file=key,
        jwt_key_id="k1", jwt_cert_file=str(both), jwt_thumbprint=name,
    )  # fmt: skip
    _, members = Credentials(ManualClock()).prove(provider, 0, ENDPOINT)
    raw = ssl.PEM_cert_to_DER_cert(Path(certificate).read_text())
    wanted = base64.urlsafe_b64encode(digest(raw).digest()).decode().rstrip("=")
    header = part_of(members["client_assertion"], 0)
    assert header == {"alg": "ES256", "typ": "JWT", "kid": "k1", name: wanted}
    with pytest.raises(ValueError, match="of another key"):
        Credentials(ManualClock()).prove(
            dataclasses.replace(provider, jwt_key_file=older), 0, ENDPOINT
        )


def test_another_library_takes_an_assertion_as_microsoft_wants_it(tmp_path: Path) -> None:
    private = rsa.generate_private_key(65537, 2048)
    certificate, key = make(tmp_path, key=private)
    provider = Provider(
        name="p", client_id="c0", token_url=ENDPOINT, auth="private_key_jwt", jwt_key_file=key,
        jwt_cert_file=certificate, jwt_algorithm="PS256",
    )  # fmt: skip
    clock = ManualClock()
    _, members = Credentials(clock).prove(provider, 0, ENDPOINT)
    public = load_pem_x509_certificate(Path(certificate).read_bytes()).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    told = jwt.decode(members["client_assertion"], RSAKey.import_key(pem), algorithms=["PS256"])
    assert (told.claims["iss"], told.claims["aud"]) == ("c0", ENDPOINT)
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(Path(certificate).read_text())).digest()
    assert told.header["x5t#S256"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")


def test_the_secret_that_was_taken_last_comes_first() -> None:
    credentials = Credentials(ManualClock())
    one = Provider(name="one", client_id="c", client_secret=Secret("a"))
    two = Provider(name="two", client_id="c", client_secret=Secret("a"), next_secret=Secret("b"))
    assert credentials.order(one) == (0,)
    assert credentials.order(two) == (0, 1)
    assert not credentials.prefer(two, 0)
    assert credentials.prefer(two, 1)
    assert not credentials.prefer(two, 1)
    assert credentials.order(two) == (1, 0)
    headers, _ = credentials.prove(two, 1, ENDPOINT)
    assert base64.b64decode(headers["Authorization"].split()[1]) == b"c:b"
