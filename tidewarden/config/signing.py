"""
Signed statements (JWS, RFC 7515) by a private key in a PEM file.

It finds the algorithm of a key, and the faults of a key.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import Certificate, load_pem_x509_certificates

RSA_BITS_MIN = 2048  # RFC 7518, 3.3
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "256": hashes.SHA256,
    "384": hashes.SHA384,
    "512": hashes.SHA512,
}
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Holds a private key and the algorithm it signs by."""

    algorithm: str
    key: Any = field(repr=False)
    thumbprint: tuple[str, str] | None = None
    """A member of each header, by which its certificate is found."""
    key_id: str = ""
    """Its ``kid``, where the file tells it."""

    def sign(self, header: Mapping[str, str], claims: Mapping[str, Any]) -> str:
        """Sign a statement, in compact form; ``alg`` and ``typ`` are in the header anyway."""
        head = {"alg": self.algorithm, "typ": "JWT", **header}
        if self.thumbprint is not None:
            head[self.thumbprint[0]] = self.thumbprint[1]
        said = b".".join(
            _coded(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims)
        )
        return (said + b"." + _coded(self._signature(said))).decode()

    def _signature(self, said: bytes) -> bytes:
        key = self.key
        if self.algorithm == "EdDSA":
            return bytes(key.sign(said))
        digest = _HASHES[self.algorithm[2:]]()
        if self.algorithm.startswith("RS"):
            return bytes(key.sign(said, padding.PKCS1v15(), digest))
        if self.algorithm.startswith("PS"):
            return bytes(
                key.sign(said, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
            )
        r, s = decode_dss_signature(key.sign(said, ec.ECDSA(digest)))
        # RFC 7518, 3.4: the two numbers side by side, not DER.
        size = (key.curve.key_size + 7) // 8
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def load_signing_key(path: str, algorithm: str) -> SigningKey:
    """
    Load the key in the file.

    It is PEM, or JSON with a ``private_key``, as Google gives it for service accounts.

    ``algorithm``: one of RFC 7518 and 8037, or ``auto``: the key's usual one.

    Raises: ValueError: what is wrong, in words.
    """
    try:
        pem, key_id = _pem_of(Path(path).read_bytes())
        key = load_pem_private_key(pem, password=None)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except TypeError as error:
        raise ValueError("the key is encrypted") from error
    except (ValueError, KeyError, AttributeError, UnsupportedAlgorithm) as error:
        raise ValueError("no private key in PEM") from error
    able: tuple[str, ...] = ()
    if isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < RSA_BITS_MIN:
            raise ValueError(f"an RSA key of {key.key_size} bits; at least {RSA_BITS_MIN}")
        able = tuple(f"{kind}{size}" for kind in ("RS", "PS") for size in _HASHES)
    elif isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        able = (_CURVES[key.curve.name],)
    elif isinstance(key, (ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey)):
        able = ("EdDSA",)
    if not able:
        raise ValueError("a key of a kind that signs no assertion")
    if algorithm != "auto" and algorithm not in able:
        raise ValueError(f"a key for {' '.join(able)}, not for {algorithm}")
    return SigningKey(able[0] if algorithm == "auto" else algorithm, key, key_id=key_id)


def _pem_of(raw: bytes) -> tuple[bytes, str]:
    """
    Return the PEM of a key file and the key's identifier.

    Raises: ValueError: JSON without a key.
    """
    if not raw.lstrip().startswith(b"{"):
        return raw, ""
    found = json.loads(raw)
    pem, key_id = found["private_key"], found.get("private_key_id", "")
    return pem.encode(), key_id if isinstance(key_id, str) else ""


def with_thumbprint(key: SigningKey, path: str, kind: str) -> SigningKey:
    """
    Return the key whose statements name its certificate in their header.

    The certificate is the first in the file. ``kind``: ``x5t`` (SHA-1) or ``x5t#S256`` (RFC 7515,
    4.1.7 and 4.1.8). Raises: ValueError: what is wrong, in words.
    """
    try:
        certificate: Certificate = load_pem_x509_certificates(Path(path).read_bytes())[0]
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except ValueError as error:
        raise ValueError("no certificate in PEM") from error
    if certificate.public_key() != key.key.public_key():
        raise ValueError("a certificate of another key")
    # No security hangs on the digest: it only finds the certificate among those that the server
    # knows.
    digest = hashes.SHA1() if kind == "x5t" else hashes.SHA256()
    return replace(key, thumbprint=(kind, _coded(certificate.fingerprint(digest)).decode()))


def fault_of_certificate(path: str, key_path: str, algorithm: str) -> str:
    """
    Say what is wrong with the certificate of a signing key.

    Empty: nothing, or nothing can be said without the key.
    """
    try:
        key = load_signing_key(key_path, algorithm)
    except ValueError:
        return ""
    try:
        with_thumbprint(key, path, "x5t#S256")
    except ValueError as error:
        return str(error)
    return ""


def fault_of_key(path: str, algorithm: str) -> str:
    """Say what is wrong with a key file; empty: nothing."""
    try:
        load_signing_key(path, algorithm)
    except ValueError as error:
        return str(error)
    return ""


def _coded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
