"""Checks the names of accounts, and the fields of a grant that is put (``T.PUT``)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from tidewarden import errors
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.queue.task import check_reachable
from tidewarden.tokens.provider.grant_request import Own, text_of
from tidewarden.tokens.provider.token_response import (
    CONSENT_S_MAX,
    EXTRA_CHARS_MAX,
    Scalar,
    is_extra,
)

from .account_record import ConsentEnd

ACCOUNT_BYTES_MAX = 200
EXTRAS_CHARS_MAX = 8_192
"""
The most characters of all an account's extras together, because they lie in the store's memory.
"""
TOKEN_BYTES_MAX = 32_768
SCOPE_BYTES_MAX = 8_192
SUBJECT_CHARS_MAX = 255
UNIX_MS_END = 1 << 42
LIFE_S_MAX = 366 * 86_400
SECONDS_BEGIN, SECONDS_END = 1_000_000_000, 100_000_000_000
"""
A time between these bounds is of this century in seconds, of the early seventies in milliseconds.
"""

_SIGNS = frozenset("_.:@+=/-'|!#$%&*?^,")
"""
The signs of addresses and identity providers that quoting in JSON or a shard's mark leave alone.
"""
_ACCOUNT_ALLOWED = (
    f"1 to {ACCOUNT_BYTES_MAX} bytes of letters, digits and {' '.join(sorted(_SIGNS))}"
)
_TYPE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
Secret: TypeAlias = Annotated[
    str, Meta(max_length=TOKEN_BYTES_MAX, pattern="^[ -~]*$", description="Printable ASCII.")
]


class GrantFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    The tokens of a consent, by the names that RFC 6749 has for them, and what belongs to it.

    Of ``refresh_token``, ``subject_token`` and ``client_secret`` an account has those that its
    provider's grant needs, and no other. What is null or an empty text counts as absent.
    """

    refresh_token: Annotated[
        Secret | None,
        Meta(description="What is refreshed by; most grants need it.", examples=["rt-8f2c"]),
    ] = None
    subject_token: Annotated[
        Secret | None, Meta(description="What an exchange of tokens begins with.")
    ] = None
    client_secret: Annotated[
        Secret | None, Meta(description="Of an account that has a client of its own.")
    ] = None
    access_token: Annotated[
        Secret | None,
        Meta(description="Absent: one is fetched within a minute.", examples=["at-77d0"]),
    ] = None
    token_type: Annotated[str | None, Meta(examples=["Bearer"])] = None
    scope: Annotated[str, Meta(max_length=SCOPE_BYTES_MAX)] | None = None
    expires_at_ms: Annotated[
        int | float | str | None,
        Meta(description="When the access token ends, Unix milliseconds."),
    ] = None
    expires_in: Annotated[
        int | float | str | None,
        Meta(description="The same, in seconds from now.", examples=[3600]),
    ] = None
    client: Annotated[
        str | None, Meta(description="A check: the id of the provider's client as configured.")
    ] = None
    parameters: Annotated[
        dict[str, str] | None, Meta(description="For the placeholders of its provider.")
    ] = None
    extras: Annotated[
        dict[str, str | int | float | bool] | None,
        Meta(description="What its provider said beside the tokens, as far as it is kept."),
    ] = None
    consent_expires_ms: Annotated[
        int | float | str | None,
        Meta(description="When the refresh token ends by itself, Unix milliseconds."),
    ] = None
    consent_end: Annotated[
        Literal["unknown", "fixed", "moves", ""] | None,
        Meta(description="Whether that moves with each refresh."),
    ] = None
    refresh_token_expires_in: Annotated[
        int | float | str | None,
        Meta(description="When the refresh token ends, in seconds from now."),
    ] = None
    subject: Annotated[
        str | None,
        Meta(description="Who consented, as an ID token names the person: its `sub`."),
    ] = None


_BROUGHT = ("refresh_token", "subject_token")
"""An account brings one of these fields, as its provider's grant needs, or none."""
_FIELDS = frozenset(GrantFields.__struct_fields__).difference((*_BROUGHT, "client_secret"))


@dataclass(frozen=True, slots=True)
class Grant:
    """Holds a grant that a user hands in, checked. Secrets stay out of its ``repr``."""

    refresh_token: str = field(default="", repr=False)
    subject_token: str = field(default="", repr=False)
    access_token: str = field(default="", repr=False)
    token_type: str = "Bearer"
    scope: str = ""
    expires_at_ms: int = 0
    """Unix milliseconds; 0: not known."""
    expires_in_s: float = 0.0
    """Seconds from now; 0: not given."""
    client_secret: str = field(default="", repr=False)
    """The secret of the account's own client."""
    parameters: dict[str, str] | None = None
    """The texts for its provider's placeholders; None: not given."""
    extras: dict[str, Scalar] | None = None
    """The members that its provider sent beside the tokens and that are kept; None: not given."""
    consent_expires_ms: int = 0
    """When the refresh token ends, unix milliseconds; 0: not given."""
    consent_end: ConsentEnd = "fixed"
    """Whether ``consent_expires_ms`` moves with each refresh."""
    consent_s: float = 0.0
    """Seconds until the refresh token ends, as its provider said; it may move. 0: not given."""
    subject: str = ""
    """Who consented, as an ID token names the person; empty: not given."""


def brought(provider: Provider, grant: Grant) -> str:
    """
    Return the text to seal for a grant that was put; grants that ask alike have the same text.
    """
    if provider.renews and not grant.client_secret:
        return grant.refresh_token
    scope = "" if provider.renews else grant.scope
    return text_of(Own(scope, grant.subject_token, grant.refresh_token, grant.client_secret))


def split(account: str) -> tuple[str, str]:
    """
    Split ``provider/account`` into the provider and the account's name within it.

    Raises: BadArg: no provider before a slash, or a name that is not allowed.
    """
    provider, slash, name = account.partition("/")
    if not slash or not provider:
        raise errors.BadArg(f"account {_short(account)} is not of the form provider/account")
    check_name(name)
    return provider, name


def check_name(name: str) -> None:
    """Raise BadArg unless ``name`` may name an account within its provider."""
    if not name:
        raise errors.BadArg(f"account is empty; allowed are {_ACCOUNT_ALLOWED}")
    check_reachable(name, "account name")
    bad = next((char for char in name if not _may_stand(char)), None)
    if bad is not None:
        raise errors.BadArg(
            f"account {_short(name)} contains {bad!a}; allowed are {_ACCOUNT_ALLOWED}"
        )
    if (size := len(name.encode())) > ACCOUNT_BYTES_MAX:
        raise errors.BadArg(f"account has {size} bytes; allowed are {_ACCOUNT_ALLOWED}")
    if not unicodedata.is_normalized("NFC", name):
        raise errors.BadArg(
            f"account {_short(name)} holds letters and their accents apart; "
            "allowed is one spelling of each name: Unicode's normal form C"
        )


def _may_stand(char: str) -> bool:
    """
    Return whether an account's name may hold the character: letters, marks, digits of every script.
    """
    return char in _SIGNS or unicodedata.category(char)[0] in "LMN"


def parse_grant(fields: Mapping[str, Any], provider: Provider) -> Grant:
    """
    Check the fields of a grant, as ``T.PUT`` and imports name them.

    Empty texts and ``None`` count as absent, as they come from a table's empty cells.

    Raises: BadArg: which field, what was found, what is allowed. The message never holds a token.
    """
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    brings, client_id = provider.brings, provider.client_id
    allowed = _FIELDS | {brings} if brings else _FIELDS
    if provider.account_secret:
        allowed |= {"client_secret"}
        if not _token(given, "client_secret"):
            raise errors.BadArg(
                f"client_secret is missing: each account of {provider.name} has its own"
                " (account_secret)"
            )
    for name in _BROUGHT:
        if name in given and name != brings:
            raise errors.BadArg(
                f"{name} is not used: the provider's grant is {provider.grant}, which asks "
                f"{f'by a {brings}' if brings else 'without one'}; leave it out"
            )
    if unknown := sorted(set(given) - allowed):
        raise errors.BadArg(
            f"unknown field {_short(str(unknown[0]))}; allowed are {', '.join(sorted(allowed))}"
        )
    if brings and not _token(given, brings):
        raise errors.BadArg(f"{brings} is missing: without one nothing can be refreshed")
    client = given.get("client", client_id)
    if client != client_id:
        raise errors.BadArg(
            f"client is {_short(str(client))}; the provider's client is {_short(client_id)}"
        )
    token_type = given.get("token_type", "Bearer")
    if not isinstance(token_type, str) or not _TYPE.fullmatch(token_type):
        raise errors.BadArg("token_type must be 1 to 64 of A-Z a-z 0-9 _ . : / -")
    scope = given.get("scope", "")
    if not isinstance(scope, str) or len(scope.encode()) > SCOPE_BYTES_MAX:
        raise errors.BadArg(f"scope must be a text of at most {SCOPE_BYTES_MAX} bytes")
    return Grant(
        refresh_token=_token(given, "refresh_token"),
        subject_token=_token(given, "subject_token"),
        client_secret=_token(given, "client_secret"),
        access_token=_token(given, "access_token"),
        token_type=token_type,
        scope=scope,
        expires_at_ms=_unix_ms(given, "expires_at_ms"),
        expires_in_s=_number(given, "expires_in", 0, LIFE_S_MAX),
        parameters=(
            placeholders.check(provider, given["parameters"]) if "parameters" in given else None
        ),
        extras=_extras(given["extras"], provider) if "extras" in given else None,
        consent_expires_ms=_unix_ms(given, "consent_expires_ms"),
        consent_end=_consent_end(given.get("consent_end", "fixed")),
        consent_s=_number(given, "refresh_token_expires_in", 0, CONSENT_S_MAX),
        subject=_subject(given.get("subject", "")),
    )


def _subject(value: Any) -> str:
    if not isinstance(value, str) or len(value) > SUBJECT_CHARS_MAX or not value.isprintable():
        raise errors.BadArg(f"subject must be a printable text of {SUBJECT_CHARS_MAX} characters")
    return value


def _consent_end(value: Any) -> ConsentEnd:
    if value not in get_args(ConsentEnd):
        raise errors.BadArg(
            f"consent_end is {_short(str(value))}; allowed are {', '.join(get_args(ConsentEnd))}"
        )
    found: ConsentEnd = value
    return found


def _extras(given: Any, provider: Provider) -> dict[str, Scalar]:
    if not isinstance(given, Mapping):
        raise errors.BadArg('extras is no JSON object; allowed is {"NAME": value}')
    for name, value in given.items():
        if name not in provider.extras:
            known = ", ".join(provider.extras) or "none"
            raise errors.BadArg(
                f"extras has {_short(str(name))}; {provider.name} keeps {known} (extras)"
            )
        if not is_extra(value):
            raise errors.BadArg(
                f"extras.{name} is no number, true, false or printable text of {EXTRA_CHARS_MAX}"
                " characters"
            )
    if (size := extras_size(given)) > EXTRAS_CHARS_MAX:
        raise errors.BadArg(f"extras has {size} characters; at most {EXTRAS_CHARS_MAX}")
    return dict(given)


def extras_size(extras: Mapping[str, Scalar]) -> int:
    """Return how many characters the extras have, names and values together."""
    return sum(len(name) + len(str(value)) for name, value in extras.items())


def _token(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise errors.BadArg(f"{name} is not a text but {type(value).__name__}")
    # RFC 6749 appendix A: tokens are printable ASCII. Anything else is a damaged file rather than a
    # token.
    if not value.isascii() or not value.isprintable():
        at = next(
            at for at, char in enumerate(value, 1) if not (char.isascii() and char.isprintable())
        )
        raise errors.BadArg(
            f"{name} holds characters other than printable ASCII: the first is number {at} of"
            f" {len(value)}"
        )
    if len(value) > TOKEN_BYTES_MAX:
        raise errors.BadArg(f"{name} has {len(value)} bytes; at most {TOKEN_BYTES_MAX}")
    return value


def _unix_ms(given: Mapping[str, Any], name: str) -> int:
    value = int(_number(given, name, 0, UNIX_MS_END - 1))
    if SECONDS_BEGIN <= value < SECONDS_END:
        raise errors.BadArg(
            f"{name} is {value}, which looks like seconds; allowed is unix time in milliseconds"
        )
    return value


def _number(given: Mapping[str, Any], name: str, low: int, high: int) -> float:
    value = given.get(name, 0)
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise errors.BadArg(f"{name} is {_short(str(value))}; allowed is {low} to {high}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
