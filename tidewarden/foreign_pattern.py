"""
Matches texts against regular expressions that others wrote: a file, a user, a stored record.

The time that a match takes grows with the text alone, whatever the pattern: RE2 does not backtrack.
Python's own ``re`` does, and a pattern such as ``(a+)+b`` stops a whole process for years there.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import re2

PATTERN_CHARS_MAX = 10_000
MEMORY_BYTES_MAX = 131072
"""Of one pattern, with what its matches keep: it bounds the time of one step of a match, too."""
KEPT_MAX = 256
"""Patterns that are kept as they were read."""
_OMITTED_LOW = re.compile(r"\{,[0-9]")


def fault_of(pattern: str) -> str:
    """Say what is wrong with a pattern, in words that follow "found …, "; empty: nothing."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return f"which has {len(pattern)} characters; allowed: at most {PATTERN_CHARS_MAX}"
    if _OMITTED_LOW.search(pattern):
        # RE2 would take it for the text itself, elsewhere it counts from 0.
        return "which has a repetition without its least number; allowed: {0,5} instead of {,5}"
    try:
        _read(pattern)
    except re2.error as error:
        said = error.args[0]
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return (
            f"which is none ({why[:80]}); allowed: a regular expression of RE2, which has neither"
            " references back to a group nor looks ahead or behind, and repeats at most 1000 times"
        )
    return ""


def is_match(pattern: str, text: str) -> bool:
    """Tell whether a pattern without fault (:func:`fault_of`) matches a text as a whole."""
    return _read(pattern).fullmatch(text) is not None


@functools.lru_cache(maxsize=KEPT_MAX)
def _read(pattern: str) -> Any:
    """Compile the pattern as RE2 has it. Raises: re2.error."""
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # Nobody asks for groups, and thousands of them cost much.
    options.log_errors = False
    return re2.compile(pattern, options)
