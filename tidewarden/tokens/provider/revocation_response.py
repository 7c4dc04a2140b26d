"""
Classifies the answer of a revocation endpoint (RFC 7009, 2.2). Pure.

Plain functions; times are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .retry_after_header import retry_after
from .token_response import HttpAnswer, error_of


@dataclass(frozen=True, slots=True)
class Revoked:
    """Says what became of a request to revoke a token."""

    outcome: Literal["revoked", "failed", "unsupported"]
    """
    ``revoked``: the token does not work, and perhaps did not before; ``failed``: it is tried again.
    """
    message: str = ""
    retry_after_s: float | None = None


def judge_revocation(answer: HttpAnswer, unix_ms: int) -> Revoked:
    """
    Judge the answer to a revocation; ``unix_ms`` is the time a Retry-After date is read against.
    """
    code, message = error_of(answer)
    if (200 <= answer.status < 300 and not code) or code in ("invalid_token", "invalid_grant"):
        return Revoked("revoked")  # Of unknown tokens the RFC wants a 200; some say so.
    outcome: Literal["failed", "unsupported"] = (
        "unsupported" if code == "unsupported_token_type" else "failed"
    )
    return Revoked(outcome, message, retry_after(answer.headers, unix_ms))
