"""Reads what a provider answers about a code for another device (RFC 8628). Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tidewarden.config.addresses import secret_url_fault
from tidewarden.tokens.provider.token_response import (
    HttpAnswer,
    NoAnswer,
    Outcome,
    Verdict,
    classify,
    error_of,
)

from .granted import AWAY
from .outcomes import ConsentFailed

CODE_CHARS_MAX = 4096
USER_CODE_CHARS_MAX = 64
URL_CHARS_MAX = 2000
INTERVAL_S, INTERVAL_MIN_S, INTERVAL_MAX_S = 5.0, 1.0, 60.0
"""
Between two requests: where the provider names no time (RFC 8628, 3.2), the shortest, the longest.
"""
SLOWER_S = 5.0
LIFE_MAX_S = 3600.0

OF_CODES = ("authorization_pending", "slow_down", "access_denied", "expired_token")
"""What is said of a code (RFC 8628, 3.5), with whatever status."""

Poll = Literal["given", "waiting", "slower", "lost"]
"""``lost``: no answer came, or none that tells anything; what was given may be gone with it."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Holds the codes of one consent on another device."""

    device_code: str = field(repr=False)
    """By which its tokens are asked for; nobody but us sees it."""
    user_code: str
    """Which the person types in at ``verification_uri``."""
    verification_uri: str
    verification_uri_complete: str
    """The same with the code in it; empty: there is none."""
    life_s: float
    interval_s: float


def read_device_code(answer: HttpAnswer) -> DeviceCode:
    """Read a device authorization response. Raises: ValueError: in words, what is wrong with it."""
    if answer.status >= 300:
        # The code of its error is a text like any other, and may repeat what was sent.
        raise ValueError(classify(answer, 0).brief)
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}")
    try:
        found: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    # Google once wrote verification_url.
    uri = found.get("verification_uri", found.get("verification_url"))
    complete = found.get("verification_uri_complete")
    return DeviceCode(
        _text(found.get("device_code"), "device_code", CODE_CHARS_MAX),
        _text(found.get("user_code"), "user_code", USER_CODE_CHARS_MAX),
        _url(_text(uri, "verification_uri", URL_CHARS_MAX)),
        _url(_text(complete, "verification_uri_complete", URL_CHARS_MAX)) if complete else "",
        min(_seconds(found.get("expires_in"), LIFE_MAX_S), LIFE_MAX_S),
        min(max(_seconds(found.get("interval"), INTERVAL_S), INTERVAL_MIN_S), INTERVAL_MAX_S),
    )


def poll_of(outcome: Outcome, verdict: Verdict) -> Poll:
    """
    Judge the answer to a request for the tokens of a device code (RFC 8628, 3.5).

    Raises: ConsentFailed: no further request will bring any.
    """
    if verdict.pair is not None:
        return "given"
    code = error_of(outcome)[0] if isinstance(outcome, HttpAnswer) else ""
    if code in ("authorization_pending", "slow_down"):
        return "waiting" if code == "authorization_pending" else "slower"
    if code in ("access_denied", "expired_token"):
        raise ConsentFailed("denied" if code == "access_denied" else "expired")
    if isinstance(outcome, NoAnswer) or verdict.outcome == "unknown":
        return "lost"
    if not isinstance(outcome, HttpAnswer) or verdict.outcome in AWAY:
        return "slower"  # it was not asked, or did not look
    raise ConsentFailed("refused", verdict.message)


def refuses_client(outcome: Outcome, verdict: Verdict) -> bool:
    """Tell whether the client was refused, so that the code was not looked at."""
    code = error_of(outcome)[0] if isinstance(outcome, HttpAnswer) else ""
    return verdict.outcome == "invalid_client" and code not in OF_CODES


def _text(value: Any, name: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise ValueError(f"{name} is no text of 1 to {most} characters")
    return value


def _url(text: str) -> str:
    if secret_url_fault(text):
        raise ValueError("a verification address is none of https://")
    return text


def _seconds(value: Any, default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        return default
    return float(value)
