"""
Reads the codes and the words of an error, in whichever shape an answer has them. Pure.

RFC 6749 (5.2) wants ``error`` and ``error_description``. Others give an object, a list of objects,
numbers, or other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CODE_CHARS_MAX = 64  # What is longer is a sentence.
CODES_MAX = 4
DEPTH_MAX = 4
# Names without their underscores, in lower case: providers write them in every fashion. The first
# are those of the code itself; what follows says more of it.
_ERRORS = ("error", "errors", "fault")
_NUMBERS = ("errorcode", "errcode", "errno")
_CODES = (
    *_ERRORS,
    "status",
    "type",
    "code",
    *_NUMBERS,
    "errortype",
    "suberror",
    "errorcodes",
    "errorsubcode",
    "reason",
)
_AROUND = ("detail", "data")  # May hold the error.
_WORDS = (
    "errordescription",
    "message",
    "msg",
    "errormessage",
    "errormsg",
    "errmsg",
    "faultstring",
    "description",
    "detail",
    "reason",
    "title",
)
_ALL_WELL = ("0", "false", "none", "null", "ok", "success")
_SAYS_NOTHING = (*_ALL_WELL, "error", "fail", "failed", "failure", "about:blank")
_TOKEN = re.compile(r"token|jwt", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Holds the error that an answer tells of."""

    codes: tuple[str, ...] = ()
    """In lower case, the most general first; of an item about a field, ``field:code``."""
    words: str = ""
    """The free text of the error."""
    refused: bool = False
    """Whether the answer calls itself an error so plainly that its status does not matter."""


NOTHING = ErrorReport()


def read_error(members: Mapping[str, Any], status: int) -> ErrorReport:
    """Read the error that an answer's members tell; a number equal to ``status`` is no code."""
    plain = {_plain(name): value for name, value in members.items()}
    codes = dict.fromkeys(code for code in _codes(plain, 0) if code != str(status))
    words = next(_words(plain, 0), "")
    return ErrorReport(tuple(codes)[:CODES_MAX], words, _is_refusal(plain, words))


def read_error_at(value: object, words: object) -> ErrorReport:
    """Read the error of an answer where its place is known."""
    code = _code(value)
    return ErrorReport((code,), words if isinstance(words, str) else "", True) if code else NOTHING


def holds_token(value: object, depth: int = 0) -> bool:
    """
    Return whether a member calls itself a token: the answer may be a success in an unknown form.
    """
    if isinstance(value, list) and depth < DEPTH_MAX:
        return any(holds_token(item, depth + 1) for item in value)
    if not isinstance(value, dict) or depth == DEPTH_MAX:
        return False
    return any(
        holds_token(item, depth + 1)
        or (isinstance(item, str) and item != "" and bool(_TOKEN.search(name)))
        for name, item in value.items()
    )


def _is_refusal(plain: Mapping[str, Any], words: str) -> bool:
    if plain.get("success") is False or plain.get("ok") is False:
        return True
    if any(_says_error(plain.get(name)) for name in (*_ERRORS, *_NUMBERS)):
        return True
    number = plain.get("code")  # Many call it so, and say 0 or 200 when all is well.
    if _says_error(words) and isinstance(number, int) and number != 0 and not 200 <= number < 300:
        return True
    inner = plain.get("data")
    return isinstance(inner, dict) and _says_error(inner.get("error_code"))


def _says_error(value: object) -> bool:
    if isinstance(value, str):
        return value != "" and value.lower() not in _ALL_WELL
    return bool(value) and not isinstance(value, bool)


def _codes(plain: Mapping[str, Any], depth: int) -> Iterator[str]:
    about, of_it = _code(plain.get("field")), _code(plain.get("code"))
    about = about or _code(_snake(plain.get("resource")))
    if about and of_it:
        yield f"{about}:{of_it}"
        return
    for name in (*_CODES, *_AROUND):
        value = plain.get(name)
        if value is None:
            continue
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict):
            if depth < DEPTH_MAX:
                yield from _codes({_plain(key): item for key, item in first.items()}, depth + 1)
        elif name not in _AROUND and (code := _code(first)):
            yield code


def _words(plain: Mapping[str, Any], depth: int) -> Iterator[str]:
    yield from (value for name in _WORDS if isinstance(value := plain.get(name), str) and value)
    for name in (*_ERRORS, *_AROUND):
        value = plain.get(name)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, dict) and depth < DEPTH_MAX:
            yield from _words({_plain(key): item for key, item in first.items()}, depth + 1)
        elif isinstance(first, str) and len(first) > CODE_CHARS_MAX:
            yield first


def _code(value: object) -> str:
    """Return a code as text; empty: it is none, or says nothing."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 0 < abs(value) < 10**CODE_CHARS_MAX
    ):
        return str(value)
    if not isinstance(value, str) or not 0 < len(value) <= CODE_CHARS_MAX or "://" in value:
        return ""
    code = value.lower()
    return "" if code in _SAYS_NOTHING else code


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _snake(name: object) -> object:
    """Turn ``RefreshToken`` into ``refresh_token``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name) if isinstance(name, str) else name
