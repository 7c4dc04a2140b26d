"""
Classifies a token endpoint's answer: its error class, and whose matter it is. Pure.

Plain functions; times are handed in.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeGuard
from urllib.parse import parse_qsl

import msgspec

from tidewarden.config.error_classes import BY_CODE, ERROR_CLASSES, ErrorClass, Scope, class_of

from .error_shapes import NOTHING, ErrorReport, holds_token, read_error, read_error_at
from .retry_after_header import provider_now_s, retry_after

Scalar = str | int | float | bool

LIFE_S_MAX = 1e12  # What is told beyond that, and may be no float, is nonsense.
MESSAGE_CHARS_MAX = 240
SAID_CHARS_MAX = 4 * MESSAGE_CHARS_MAX  # Of an error text, of which much is left out.
SCOPE_CHARS_MAX = 8192
EXTRA_CHARS_MAX = 2048
INTEGER_END = 2**63
CONSENT_S_MAX = (
    # Ten years: a refresh token that lives longer is said to, for want of a way to say for ever.
    315_360_000
)
# Keycloak says the second, QuickBooks the last.
CONSENT_NAMES = ("refresh_token_expires_in", "refresh_expires_in", "x_refresh_token_expires_in")
PAGES = ("text/html", "application/xhtml+xml")
SECRET_CHARS_MIN = 4  # A shorter one would be found in words that have nothing to do with it.
MEMBERS_MAX = 64  # Commas that are looked back for in an answer that broke off.

_ANYTHING = "rejected"  # Its code is said for want of a better word, often beside one.
ODD = "its refresh token is no text of ASCII characters"
_KIND = re.compile(r"[\x21-\x7e]{1,64}")  # of a token
# Anything that could be a token or a secret; error texts of providers quote them.
_TOKENLIKE = re.compile(r"[A-Za-z0-9_\-.~+/=%]{16,}")
# Bounded, so that a long text without any costs no square of its length.
_ADDRESS = re.compile(r"[^\s<>\"(),;:=]{1,64}(?:@|%40)[^\s<>\"(),;:=]{1,255}")
_PHONE = re.compile(r"(?<![\w.])(?!\d{4}-\d\d-\d\d\b)[+(]{0,2}\d(?:[ ()./-]{0,2}\d){6,}")
# A code is one of a vocabulary and may be long; anything else so long may be a token.
_VOCABULARY = re.compile(r"[a-z_]{1,40}([.:][a-z_]{1,40}){0,3}|\d{1,8}")


class HttpAnswer(msgspec.Struct, frozen=True):
    """Holds the answer of a token endpoint."""

    status: int
    headers: Mapping[str, str]
    """The headers, by names in lower case."""
    body: bytes
    cut: str = ""
    """Why ``body`` is not known to be whole; empty: it is."""
    secrets: tuple[str, ...] = ()
    """The secrets of the request, which no text may repeat: error texts quote them."""
    raw: bytes = b""
    """The body as it came, where its Content-Encoding could not be undone, or not all of it."""

    def __repr__(self) -> str:
        return f"HttpAnswer(status={self.status}, cut={self.cut!r})"

    @property
    def as_it_came(self) -> bytes:
        """Return the bytes to keep of an answer that cannot be read."""
        return self.raw or self.body


@dataclass(frozen=True, slots=True)
class RequestNotSent:
    """Says that the request never left, so that nothing can have happened at the provider."""

    reason: str
    """
    ``refused dns proxy tls connect_timeout discovery bad_url``, ``late``, or ``misconfigured``: it
    could not be made.
    """
    message: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Says that the request was sent, or may have been, and that no answer came back."""

    message: str


Outcome = HttpAnswer | RequestNotSent | NoAnswer


class TokenPair(msgspec.Struct, frozen=True):
    """Holds the tokens of a successful answer, and their lives."""

    access_token: str
    refresh_token: str
    """The new refresh token; empty: the old one goes on."""
    token_type: str
    scope: str | None
    """The scope; None: it is as before."""
    life_s: float | None
    """How long the access token lives; None: not told. 0: it is over."""
    consent_s: float | None = None
    """How long the refresh token lives if it is not used; None: not told."""
    extras: dict[str, Scalar] = {}
    """Members that the provider's ``extras`` name and that can be kept."""

    def __repr__(self) -> str:
        return f"TokenPair(scope={self.scope!r}, life_s={self.life_s}, extras={self.extras})"


class Verdict(msgspec.Struct, frozen=True):
    """
    Holds the class of an outcome, whose matter it is, and the pair or the words of the answer.
    """

    outcome: str
    scope: Scope
    """
    Whose matter the outcome seems to be: a hint, because the answers to other accounts decide.
    """
    message: str = ""
    """The words for those who may see the account."""
    retry_after_s: float | None = None
    pair: TokenPair | None = None
    keep_body: bool = False
    """
    The answer is a success that cannot be read as a whole, and may hold the only refresh token
    there is.
    """
    answered: bool = True
    """Whether an answer came; without one it may be our own network's matter."""
    brief: str = ""
    """
    ``message`` without the provider's free text: the status and its code, or our own words if no
    answer came.
    """


@dataclass(frozen=True, slots=True)
class Rules:
    """
    Holds what is particular to a provider's answers; see ``paths`` and ``errors`` of its settings.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    renews: bool = True
    """
    An answer may bring a refresh token; otherwise an answer that cannot be read has lost nothing.
    """
    extras: Mapping[str, str] = field(default_factory=dict)
    """The members to keep of a successful answer: each name, and where it lies."""

    def of_error(self, status: int, codes: tuple[str, ...]) -> str:
        """
        Return the class that the map's closest entry gives to an answer; empty: none does.

        Of several codes the last is the most particular.
        """
        if not self.errors:
            return ""
        particular = codes[::-1]
        for key in (*(f"{status} {code}" for code in particular), *particular, str(status)):
            if word := self.errors.get(key):
                return word
        return ""


PLAIN = Rules()


def rules_of(
    paths: Mapping[str, str],
    errors: Mapping[str, str],
    extras: Sequence[str] = (),
    *,
    renews: bool = True,
) -> Rules:
    """Make the rules of a provider's settings: codes are compared without regard to case."""
    return Rules(
        paths,
        {key.lower(): word for key, word in errors.items()},
        renews,
        {name: name for name in extras},
    )


def classify(outcome: Outcome, unix_ms: int, rules: Rules = PLAIN) -> Verdict:
    """
    Judge the outcome of one refresh.

    ``unix_ms`` is this host's time, against which a Retry-After date is read.
    """
    if isinstance(outcome, HttpAnswer):
        return _judge_answer(outcome, unix_ms, rules)
    message = scrub(outcome.message)
    if isinstance(outcome, NoAnswer):
        return Verdict("unknown", "unknown", message, answered=False, brief=message)
    scope = class_of(outcome.reason).scope
    return Verdict(outcome.reason, scope, message, answered=False, brief=message)


def _judge_answer(answer: HttpAnswer, unix_ms: int, rules: Rules) -> Verdict:
    members = _members(answer)
    if 200 <= answer.status < 300:
        members = members or (_come(answer, rules) if answer.cut else {})
        return _judge_success(answer, members, unix_ms, rules)
    told = _error_of(members, answer.status, rules)
    found = _class_of(answer, told.codes, rules)
    words = told.words or ("" if members else _plain_text(answer))
    message, brief = _words(answer, told.codes, words), _brief(answer, told.codes, rules)
    return _refusal(found, answer, message, brief, unix_ms)


def _refusal(
    found: ErrorClass, answer: HttpAnswer, message: str, brief: str, unix_ms: int
) -> Verdict:
    wait_s = retry_after(answer.headers, unix_ms)
    return Verdict(found.name, found.scope, message, wait_s, brief=brief)


def _class_of(answer: HttpAnswer, codes: tuple[str, ...], rules: Rules) -> ErrorClass:
    """Return the class of an answer that is no success."""
    word = rules.of_error(answer.status, codes) or _of_status(answer.status)
    if word:
        return ERROR_CLASSES[word]
    return _known(codes) or ERROR_CLASSES[_of_refusal(answer)]


def _of_status(status: int) -> str:
    """Return the class that a status means whatever the answer says; empty: its words count."""
    if status in (502, 504):
        return "unknown"  # The gateway may have passed it on.
    if status == 429:
        return "rate_limited"
    return "unavailable" if status >= 500 or status in (408, 421, 425) else ""


def _of_refusal(answer: HttpAnswer) -> str:
    """Return the class of a refusal without a code that is known."""
    if answer.status == 401:
        return "invalid_client"
    if answer.status < 400 or answer.status in (404, 405, 410):
        return "misdirected"
    # A page is of a proxy or firewall, not the authorization server's.
    return "unavailable" if _is_page(answer) else "rejected"


def _known(codes: tuple[str, ...]) -> ErrorClass | None:
    """
    Return the class of the first code that has one, whatever its stops and the path before it.
    """
    found = [
        known for code in codes if (known := BY_CODE.get(code) or _BY_LETTERS.get(_letters(code)))
    ]
    found.sort(key=lambda known: known.name == _ANYTHING)
    return found[0] if found else None


def _letters(code: str) -> str:
    return re.sub(r"[^a-z0-9:]", "", code.rstrip(".").rpartition(".")[2])


_BY_LETTERS = {_letters(code): known for code, known in BY_CODE.items()}


def text_of_member(answer: HttpAnswer, name: str) -> str:
    """Return a member of an answer that is a text; empty: there is none of that name."""
    found = _members(answer).get(name)
    return found if isinstance(found, str) else ""


def error_of(answer: HttpAnswer) -> tuple[str, str]:
    """Return the error's code in an answer, if any, and words about it that hold no secret."""
    told = read_error(_members(answer), answer.status)
    codes = told.codes if told.refused or answer.status >= 300 else ()
    return codes[0] if codes else "", _words(answer, codes, "")


def _judge_success(
    answer: HttpAnswer, members: Mapping[str, Any], unix_ms: int, rules: Rules
) -> Verdict:
    token = _at(members, "access_token", rules.paths)
    if isinstance(token, str) and token and token.isascii() and token.isprintable():
        pair = _pair(members, token, rules, answer, unix_ms)
        odd = (
            rules.renews
            and not pair.refresh_token
            and _at(members, "refresh_token", rules.paths) not in (None, "")
        )
        brief = f"HTTP {answer.status}"
        return Verdict("ok", "ok", ODD if odd else "", pair=pair, keep_body=odd, brief=brief)
    told = _error_of(members, answer.status, rules)
    plainly = "error" in rules.paths or isinstance(members.get("error"), str)
    if told.refused and (plainly or not holds_token(members)):  # GitHub and Slack refuse with 200.
        word = rules.of_error(answer.status, told.codes)
        found = ERROR_CLASSES[word] if word else _known(told.codes) or ERROR_CLASSES[_ANYTHING]
        message, brief = _words(answer, told.codes, told.words), _brief(answer, told.codes, rules)
        return _refusal(found, answer, message, brief, unix_ms)
    kind = answer.headers.get("content-type", "no content type")
    brief = f"HTTP {answer.status} without an access_token"
    message = f"{brief} ({scrub(kind)[:80]}, {len(answer.body)} bytes)"
    if answer.cut:
        message = f"{message}: {answer.cut}"
    return Verdict(
        "unknown", "unknown", message, keep_body=bool(answer.body) and rules.renews, brief=brief
    )


def _come(answer: HttpAnswer, rules: Rules) -> dict[str, Any]:
    """
    Return the members that had come whole when the answer broke off.

    They are no pair if the refresh token is not among them.
    """
    raw, at = answer.body, len(answer.body)
    for _ in range(MEMBERS_MAX):
        at = raw.rfind(b",", 0, at)
        if at < 0:
            break
        try:
            found = json.loads(_text(raw[:at] + b"}"))  # Anything but whole members is no JSON.
        except (ValueError, RecursionError):
            continue
        return found if isinstance(_at(found, "refresh_token", rules.paths), str) else {}
    return {}


def _at(members: Mapping[str, Any], name: str, paths: Mapping[str, str]) -> Any:
    """Return a member of the answer, under its own name or where ``paths`` says; None: absent."""
    path = paths.get(name)
    if path is None or path in members:
        return members.get(path or name)
    found: Any = members
    for step in path.split("."):
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _pair(
    members: Mapping[str, Any], access_token: str, rules: Rules, answer: HttpAnswer, unix_ms: int
) -> TokenPair:
    paths = rules.paths
    refresh_token = _at(members, "refresh_token", paths) if rules.renews else ""
    kind, scope = _at(members, "token_type", paths), _at(members, "scope", paths)
    life_s = _life(_at(members, "expires_in", paths))
    if not life_s and "expires_at" in paths:
        now_s = provider_now_s(answer.headers, unix_ms)
        until_s = _life_until(_at(members, "expires_at", paths), now_s)
        life_s = until_s if until_s is not None else life_s
    return TokenPair(
        access_token=access_token,
        refresh_token=refresh_token if _is_refresh_token(refresh_token) else "",
        token_type=kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "Bearer",
        scope=_scope(scope),
        life_s=life_s,
        consent_s=_consent(members, paths) if rules.renews else None,
        extras=_extras(members, rules.extras),
    )


def _is_refresh_token(value: Any) -> TypeGuard[str]:
    """
    Return whether the value can be kept as a refresh token.

    A control character begins what is sealed of accounts that bring more than a refresh token.
    """
    return isinstance(value, str) and value.isascii() and value[:1].isprintable()


def _extras(members: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the members to keep: numbers, truths and texts that are not too long."""
    if not names:
        return {}
    found = {name: _at(members, name, names) for name in names}
    return {name: value for name, value in found.items() if is_extra(value)}


def is_extra(value: object) -> bool:
    """Return whether the value may be kept beside a pair."""
    if isinstance(value, str):
        return len(value) <= EXTRA_CHARS_MAX and value.isprintable()
    return isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) < INTEGER_END)


def _consent(members: Mapping[str, Any], paths: Mapping[str, str]) -> float | None:
    """
    Return how long the refresh token itself lives, by any of the names in use.

    0, which some providers send for ever, tells nothing.
    """
    names = ("refresh_expires_in",) if "refresh_expires_in" in paths else CONSENT_NAMES
    for name in names:
        told = _at(members, name, paths)
        if told and (life_s := _life(told, CONSENT_S_MAX)):
            return life_s
    return None


def _scope(value: object) -> str | None:
    """
    Read a scope as RFC 6749 (3.3) writes it, or as the list that some send in its place.

    None: there is none.
    """
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)
    return value[:SCOPE_CHARS_MAX] if isinstance(value, str) and value.isascii() else None


def _life(value: object, most_s: float = LIFE_S_MAX) -> float | None:
    """Return the seconds of life that are left; 0: it is over. None: the answer does not tell."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,12}(\.\d+)?", value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return max(0.0, float(value)) if -most_s < value < most_s else None


def _life_until(value: object, now_s: float) -> float | None:
    """
    Return the life of a token by its end, which is in ISO 8601 with a zone, or in unix seconds.
    """
    moment = None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(value.strip())
    if moment is not None:
        return _life(moment.timestamp() - now_s) if moment.tzinfo else None
    end_s = _life(value)
    return _life(end_s - now_s) if end_s else None


def _members(answer: HttpAnswer) -> dict[str, Any]:
    """
    Read the answer's members, from JSON or, as some endpoints like it, from a form.

    Empty when it is neither.
    """
    if _kind_of(answer) == "application/x-www-form-urlencoded":
        if answer.cut:
            return {}  # Half a token looks like a whole one there.
        return dict(parse_qsl(answer.body.decode("utf-8", "replace")))
    try:
        members = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        try:
            # Slower, and takes what is not quite JSON. A name in Latin-1 elsewhere spoils no token:
            # those are ASCII.
            members = json.loads(_text(answer.body))
        except (ValueError, RecursionError):
            return {}
    if isinstance(members, list):
        return {"errors": members} if answer.status >= 400 else {}
    return members if isinstance(members, dict) else {}


def _kind_of(answer: HttpAnswer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_page(answer: HttpAnswer) -> bool:
    """Return whether the answer is a document to be looked at, which no token endpoint sends."""
    body = answer.body.removeprefix(b"\xef\xbb\xbf").lstrip()
    return body.startswith(b"<") or (
        _kind_of(answer) in PAGES and not body.startswith((b"{", b"["))
    )


def _plain_text(answer: HttpAnswer) -> str:
    """Return the text of a body that is neither data nor a page."""
    raw = answer.body[: SAID_CHARS_MAX + 1]
    text = raw.decode("utf-8", "replace")
    odd = sum(not char.isprintable() and not char.isspace() for char in text)
    return "" if _is_page(answer) or odd else text.strip()


def _text(body: bytes) -> str:
    """Decode a body in whichever encoding of JSON's it is, its byte order mark off."""
    return body.decode(json.detect_encoding(body), "replace")


def _error_of(members: Mapping[str, Any], status: int, rules: Rules) -> ErrorReport:
    """Read the error of an answer, at the places that ``rules.paths`` names, if it names any."""
    if "error" in rules.paths:
        words = _at(members, "error_description", rules.paths) or members.get("message", "")
        return read_error_at(_at(members, "error", rules.paths), words)
    if not members:
        return NOTHING
    told = read_error(members, status)
    if "error_description" in rules.paths:
        words = _at(members, "error_description", rules.paths)
        told = replace(told, words=words if isinstance(words, str) else told.words)
    return told


def scrub(text: str) -> str:
    """
    Make an error text fit to be stored and shown: one line, no control characters.

    Nothing is left in it that looks like a token, an e-mail address or a phone number.
    """
    line = "".join(char if char.isprintable() else " " for char in text[: SAID_CHARS_MAX + 1])
    if len(line) > SAID_CHARS_MAX:
        line = line.rpartition(" ")[0]  # What is left of a token that was cut looks like none.
    if "@" in line or "%40" in line:  # To look for one costs more than all else here.
        line = _ADDRESS.sub("…", line)
    return _PHONE.sub("…", _TOKENLIKE.sub("…", line))[:MESSAGE_CHARS_MAX]


def _words(answer: HttpAnswer, codes: tuple[str, ...], words: str) -> str:
    shown = " ".join(code if _VOCABULARY.fullmatch(code) else scrub(code) for code in codes)
    for secret in _sent(answer):
        shown, words = shown.replace(secret.lower(), "…"), words.replace(secret, "…")
    said = (f"HTTP {answer.status}", shown, scrub(words).strip())
    return " ".join(part for part in said if part)[:MESSAGE_CHARS_MAX]


def _brief(answer: HttpAnswer, codes: tuple[str, ...], rules: Rules) -> str:
    """Return the status and the codes, without what may be a name, a token or a sentence."""
    said = [f"HTTP {answer.status}"]
    for code in codes:
        plain = " " not in code and (_VOCABULARY.fullmatch(code) or scrub(code) == code)
        told_again = any(secret.lower() in code for secret in _sent(answer))
        if not told_again and (plain or code in rules.errors):
            said.append(code)
    return " ".join(said)


def _sent(answer: HttpAnswer) -> Iterator[str]:
    """Yield the request's secrets that are long enough to be blanked in texts."""
    return (secret for secret in answer.secrets if len(secret) >= SECRET_CHARS_MIN)
