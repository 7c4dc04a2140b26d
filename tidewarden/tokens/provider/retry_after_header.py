"""Reads the pause that an HTTP answer asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

# Quotas are renewed each day at the latest. What asks for more is a mistake (milliseconds, a year
# that is off by one), and an account that believed it would be lost; to ask a provider that means
# it once a day does no harm.
RETRY_AFTER_S_MAX = 86_400.0


def retry_after(headers: Mapping[str, str], unix_ms: int) -> float | None:
    """
    Return the seconds to wait as Retry-After says, at most a day; None without a usable one.

    RFC 9110, 10.2.3: seconds or a date.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d*)?", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    then_s = _unix_s(text)
    if then_s is None:
        return None
    return min(max(0.0, then_s - provider_now_s(headers, unix_ms)), RETRY_AFTER_S_MAX)


def provider_now_s(headers: Mapping[str, str], unix_ms: int) -> float:
    """
    Return the time by the provider's clock, if it tells it, because the hosts' clocks may differ.
    """
    told_s = _unix_s(headers.get("date", ""))
    return unix_ms / 1000 if told_s is None else told_s


def _unix_s(text: str) -> float | None:
    """Read an HTTP-date as unix seconds; None: it is none."""
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
