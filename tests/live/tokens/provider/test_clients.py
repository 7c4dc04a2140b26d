"""
How our client proves itself to authorization servers that none of us wrote: by secrets, assertions
and certificates.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from support.cluster.processes import free_base_port
from support.providers.certificate import make
from support.tokens import harness

from tidewarden.config.load import Provider, Secret
from tidewarden.tokens.provider.revocation_response import Revoked
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import RequestNotSent, Verdict, classify

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider


def provider(server: Any, **settings: Any) -> Provider:
    known: dict[str, Any] = {"token_url": server.token_url, "client_id": server.client_id}
    return Provider(name="p", **(known | settings))


async def ask(provider: Provider, token: str, secret: int = 0) -> Verdict:
    exchange = TokenEndpoint()
    try:
        return classify(await exchange.refresh(provider, token, secret), int(time.time() * 1000))
    finally:
        await exchange.close()


def coded(number: int, size: int = 32) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(size, "big")).rstrip(b"=").decode()


def jwk_of(key_file: str) -> dict[str, Any]:
    key = load_pem_private_key(Path(key_file).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    point = key.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "x": coded(point.x), "y": coded(point.y), "kid": "k1"}


async def test_a_secret_in_either_place(dot: Any) -> None:
    server = dot(accounts=2)
    for auth, (_, token) in zip(("basic", "post"), server.seeds, strict=True):
        good = provider(server, auth=auth, client_secret=Secret(server.client_secret))
        assert (await ask(good, token)).outcome == "ok", auth
        wrong = provider(server, auth=auth, client_secret=Secret("wrong"))
        assert (await ask(wrong, token)).outcome == "invalid_client", auth


async def test_an_assertion_to_an_issuer_that_is_looked_up(
    oidc: Callable[..., Any], tmp_path: Path
) -> None:
    cert_file, key_file = make(tmp_path)
    port = free_base_port()
    server = oidc(
        accounts=3, PORT=str(port), AUTH="private_key_jwt", JWKS=json.dumps({"keys": [jwk_of(key_file)]})
    )  # fmt: skip
    settings = {
        "auth": "private_key_jwt",
        "jwt_key_file": key_file,
        "jwt_key_id": "k1",
        "jwt_cert_file": cert_file,
    }
    known = provider(server, token_url="", issuer=server.base, **settings)
    assert (await ask(known, server.seeds[0][1])).outcome == "ok"
    assert (await ask(provider(server, **settings), server.seeds[1][1])).outcome == "ok"
    other_cert, other_file = make(tmp_path, "other")
    wrong = provider(server, **settings | {"jwt_key_file": other_file, "jwt_cert_file": other_cert})
    assert (await ask(wrong, server.seeds[2][1])).outcome == "invalid_client"
    assert server.stats()["live"] == 3
    server.stop()
    exchange = TokenEndpoint()
    outcome = await exchange.refresh(known, "r")
    await exchange.close()
    assert isinstance(outcome, RequestNotSent)  # Nothing was sent where nobody says where to.
    assert outcome.reason == "discovery"


async def test_a_certificate_of_ones_own(oidc: Callable[..., Any], tmp_path: Path) -> None:
    mine, mine_key = make(tmp_path, "mine")
    theirs, theirs_key = make(tmp_path, "theirs")
    der = x509.load_pem_x509_certificate(Path(mine).read_bytes()).public_bytes(Encoding.DER)
    jwk = jwk_of(mine_key) | {"x5c": [base64.b64encode(der).decode()]}
    server = oidc(
        accounts=2, AUTH="self_signed_tls_client_auth", JWKS=json.dumps({"keys": [jwk]}), TLS_CERT=theirs, TLS_KEY=theirs_key,
        NODE_TLS_REJECT_UNAUTHORIZED="0",
    )  # fmt: skip
    settings = {"auth": "tls", "tls_ca": theirs}
    shown = provider(server, tls_cert=mine, tls_key=mine_key, **settings)
    assert (await ask(shown, server.seeds[0][1])).outcome == "ok"
    wrong = provider(server, tls_cert=theirs, tls_key=theirs_key, **settings)
    assert (await ask(wrong, server.seeds[1][1])).outcome == "invalid_client"
    untrusting = provider(server, auth="tls", tls_cert=mine, tls_key=mine_key)
    assert (await ask(untrusting, server.seeds[1][1])).outcome == "tls"


async def test_a_secret_is_rolled_while_accounts_are_refreshed(
    oidc: Callable[..., Any], valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The provider takes the new secret already; nobody's grant is touched by the refusal of the old
    one.
    """
    server = oidc(accounts=4)
    rolled = provider(
        server, client_secret=Secret("old"), next_secret=Secret(server.client_secret), refreshers=1
    )
    async with harness.node(valkey, tmp_path, rolled) as side:
        for account, token in server.seeds:
            await side.tokens.put(f"p/{account}", {"refresh_token": token})

        async def fresh() -> bool:
            return bool((await side.tokens.stats())["p"]["fresh"] == 4)

        await harness.eventually(fresh)
    assert server.stats()["answers"] == {"401 invalid_client": 1, "200": 4}
    assert server.stats()["live"] == 4
    assert caplog.text.count("now takes our next secret") == 1


async def revoke(provider: Provider, token: str) -> Revoked:
    exchange = TokenEndpoint()
    try:
        return await exchange.revoke(provider, token)
    finally:
        await exchange.close()


async def test_a_token_is_revoked_at_dot(dot: Any) -> None:
    server = dot(accounts=3)
    (_, first), (_, second), _ = server.seeds
    where = {"revocation_url": f"{server.base}/o/revoke_token/"}
    rolled = provider(
        server, client_secret=Secret("wrong"), next_secret=Secret(server.client_secret), **where
    )
    assert await revoke(rolled, first) == Revoked("revoked"), "by whichever secret it takes"
    good = provider(server, client_secret=Secret(server.client_secret), **where)
    assert (await ask(good, first)).outcome == "invalid_grant"
    assert server.stats()["live"] == 2
    assert await revoke(good, first) == Revoked("revoked"), "it was no good before"
    wrong = await revoke(provider(server, client_secret=Secret("wrong"), **where), second)
    assert (wrong.outcome, wrong.message) == ("failed", "HTTP 401 invalid_client")
    assert (await ask(good, second)).outcome == "ok"
    server.stop()
    assert (await revoke(good, second)).outcome == "failed"


async def test_where_to_revoke_is_looked_up_at_an_issuer(oidc: Callable[..., Any]) -> None:
    port = free_base_port()
    server = oidc(accounts=2, PORT=str(port))
    known = provider(
        server, token_url="", issuer=server.base, client_secret=Secret(server.client_secret)
    )
    (_, first), (_, second) = server.seeds
    assert await revoke(known, first) == Revoked("revoked")
    assert (await ask(known, first)).outcome == "invalid_grant"
    assert (await ask(known, second)).outcome == "ok"
