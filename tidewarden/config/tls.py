"""The node's certificate: how its doors encrypt, and what is wrong with the files."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

log = logging.getLogger("tidewarden.server")

NO_TLS = frozenset(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG")
)
TOO_OLD = frozenset(
    ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE", "INAPPROPRIATE_FALLBACK")
)
HANDSHAKE_S = 60.0
"""
Longest a handshake may take, seconds; who is slower is cut off. Of thousands who come at once each
waits for all the others'.
"""
RENEW_S = 7 * 86_400.0
"""How long before its end a certificate is warned of."""


def server_context(cert: str, key: str) -> ssl.SSLContext | None:
    """
    Return the TLS context of a port, from the files with its certificate, its chain and its key.

    None: the port uses no TLS.

    ``load_cert_chain`` on the result has it go on with fresh files, for connections from then on.

    Raises: OSError, ssl.SSLError: a file cannot be read, or the two do not belong together.
    """
    if not cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a peer could have us compute without end
    context.load_cert_chain(cert, key, password=_no_password)
    return context


def client_context(authorities: str) -> ssl.SSLContext:
    """
    Return the TLS context by which one node connects to another.

    It accepts a certificate that names the host that was dialled, and for which an authority in the
    file ``authorities`` vouches, or one that this host trusts anyway.

    Raises: OSError, ssl.SSLError: the file cannot be read.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(authorities)
    return context


def renew(context: ssl.SSLContext, cert: str, key: str) -> None:
    """
    Reload the certificate and the key of ``context`` for new connections.

    Files that do not fit are logged.
    """
    if fault := fault_of(cert, key):
        log.error("the certificate was not read anew: %s", fault, extra={"cert": cert, "key": key})
    else:
        context.load_cert_chain(cert, key)


def fault_of(cert: str, key: str) -> str:
    """Say what is wrong with the files; empty: nothing."""
    try:
        server_context(cert, key)
    except ssl.SSLError as error:
        return f"no PEM certificate and key that belong together ({error.reason or error})"
    except (OSError, ValueError) as error:
        return f"files that cannot be used: {getattr(error, 'strerror', None) or error}"
    return ""


def handshake_fault(error: OSError, limit_s: float) -> str:
    """
    Say why a peer's handshake failed, which had ``limit_s`` seconds.

    Empty: the peer just went, as after a load balancer's look at the port.
    """
    if isinstance(error, ssl.SSLError):
        reason = error.reason or type(error).__name__
        if reason in NO_TLS:
            return "it speaks no TLS, and this port nothing else (node.tls_cert is set)"
        if reason in TOO_OLD:
            return "it speaks no TLS of version 1.2 or later"
        return f"no TLS handshake with it: {reason.replace('_', ' ').lower()}"
    if isinstance(error, ConnectionAbortedError):
        return f"it did not end its TLS handshake within {limit_s:g} s"
    return ""


def expiry_of(cert: str) -> float:
    """
    Return when the first certificate in the file ends, in unix seconds; 0 means that there is none.

    It is 0, too, when none can be read.
    """
    try:
        return (
            load_pem_x509_certificate(Path(cert).read_bytes()).not_valid_after_utc.timestamp()
            if cert
            else 0.0
        )
    except (OSError, ValueError):
        return 0.0


def expiry_warning(expires_s: float, now_s: float) -> str:
    """
    Warn that a certificate which ends at ``expires_s`` has to be renewed, or has ended.

    Empty: there is time, or none is in use.
    """
    if not expires_s or expires_s - now_s > RENEW_S:
        return ""
    day = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"node.tls_cert {'has expired' if expires_s <= now_s else 'expires'} on {day}: renew it,"
        " then SIGHUP"
    )


def fault_of_authorities(path: str) -> str:
    """Say what is wrong with a file of trusted certificates; empty: nothing."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        return f"no PEM certificates ({error.reason or error})"
    except OSError as error:
        return reason(error)
    return "" if context.cert_store_stats()["x509"] else "no PEM certificate in it"


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Say why a file could not be read."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"


def _no_password() -> str:
    """Refuse an encrypted key: without this OpenSSL would ask the user at the terminal."""
    raise ValueError("the key is encrypted")
