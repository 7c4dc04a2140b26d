"""Words times, lengths and counts for people, and fills sentences with them. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(seconds: float) -> str:
    """Word a length of time in its two greatest units: ``2 d 4 h``, ``45 s``."""
    parts: list[str] = []
    left = max(0, round(seconds))
    for unit, size in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def when(unix_ms: int, now_ms: int) -> str:
    """Word a time: ``2026-11-22 14:03:05 UTC (in 2 min)``; 0 is no known time."""
    if not unix_ms:
        return "a time that nobody knows"
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    apart_s = (unix_ms - now_ms) / 1000
    if abs(apart_s) < 1:
        return f"{moment} (now)"
    return f"{moment} (in {span(apart_s)})" if apart_s > 0 else f"{moment} ({span(-apart_s)} ago)"


def count(number: int, noun: str) -> str:
    """Count a noun in words: ``1 account``, ``2,000 accounts``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


class _Sentence(string.Formatter):
    """Fills a template from the attributes of its only argument, which has a ``now_ms``."""

    def get_value(self, key: int | str, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        self._now_ms = args[0].now_ms
        return getattr(args[0], str(key))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value[:1].upper() + value[1:] if conversion == "c" else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "when":
            return when(value, self._now_ms)
        if format_spec == "span":
            return span(value)
        if format_spec == "span_ms":
            return span(value / 1000)
        if format_spec == "%":
            return f"{100 * value:.3g} %"
        if format_spec.isalpha() and len(format_spec) > 1:
            return count(value, format_spec)
        return format(value, format_spec)


def fill(template: str, facts: Any) -> str:
    """
    Fill the ``{attribute.path}`` of a template from the attributes of ``facts``.

    Beside Python's own formats there are ``when`` (unix milliseconds), ``span`` (seconds),
    ``span_ms``, ``%`` (a share), and a noun, which is counted: ``{refusals:refusal}``.
    ``{grant!c}`` begins with a capital letter.
    """
    return _Sentence().format(template, facts)
