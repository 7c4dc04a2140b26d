"""Signed statements: each algorithm is verified by the library, not by us."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tidewarden.config.signing import fault_of_key, load_signing_key

RSA = rsa.generate_private_key(65537, 2048)


def written(folder: Path, key: Any, password: bytes = b"") -> str:
    path = folder / "key.pem"
    how = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    )
    return str(path)


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@pytest.mark.parametrize(
    ("key", "wanted", "algorithm"),
    [
        (RSA, "auto", "RS256"),
        (RSA, "PS512", "PS512"),
        (ec.generate_private_key(ec.SECP256R1()), "auto", "ES256"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512", "ES512"),
        (ed25519.Ed25519PrivateKey.generate(), "auto", "EdDSA"),
    ],
)
def test_what_is_signed_verifies(tmp_path: Path, key: Any, wanted: str, algorithm: str) -> None:
    signing = load_signing_key(written(tmp_path, key), wanted)
    head, claims, signature = signing.sign({"kid": "k1"}, {"iss": "c0"}).split(".")
    assert json.loads(decoded(head)) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    assert json.loads(decoded(claims)) == {"iss": "c0"}
    said, raw, public = f"{head}.{claims}".encode(), decoded(signature), key.public_key()
    if algorithm == "EdDSA":
        public.verify(raw, said)
    elif algorithm.startswith("ES"):
        digest = hashes.SHA256() if algorithm == "ES256" else hashes.SHA512()
        half = len(raw) // 2
        assert len(raw) == {"ES256": 64, "ES512": 132}[algorithm]
        der = encode_dss_signature(
            int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        )
        public.verify(der, said, ec.ECDSA(digest))
    elif algorithm == "RS256":
        public.verify(raw, said, padding.PKCS1v15(), hashes.SHA256())
    else:
        public.verify(raw, said, padding.PSS(padding.MGF1(hashes.SHA512()), 64), hashes.SHA512())


def test_what_is_wrong_with_a_key_is_said(tmp_path: Path) -> None:
    assert fault_of_key(written(tmp_path, RSA), "auto") == ""
    assert fault_of_key(str(tmp_path / "absent"), "auto") == "No such file or directory"
    assert fault_of_key(written(tmp_path, RSA, b"word"), "auto") == "the key is encrypted"
    assert fault_of_key(written(tmp_path, RSA), "ES256").startswith("a key for RS256")
    assert "1024 bits" in fault_of_key(
        written(tmp_path, rsa.generate_private_key(65537, 1024)), "auto"
    )
    assert "signs no assertion" in fault_of_key(
        written(tmp_path, dsa.generate_private_key(1024)), "auto"
    )
    (tmp_path / "key.pem").write_text("nothing")
    assert fault_of_key(str(tmp_path / "key.pem"), "auto") == "no private key in PEM"


def test_a_key_may_lie_in_the_json_of_a_service_account(tmp_path: Path) -> None:
    pem = Path(written(tmp_path, RSA)).read_text()
    path = tmp_path / "robot.json"
    path.write_text(
        json.dumps({"type": "service_account", "private_key": pem, "private_key_id": "k7"})
    )
    key = load_signing_key(str(path), "auto")
    assert (key.algorithm, key.key_id) == ("RS256", "k7")
    assert load_signing_key(written(tmp_path, RSA), "auto").key_id == ""
    for odd in ("{}", "{", '{"private_key": 7}', '{"private_key": "nothing"}', "[]"):
        path.write_text(odd)
        assert fault_of_key(str(path), "auto") == "no private key in PEM"
