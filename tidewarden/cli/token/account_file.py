"""
Reads files of accounts for ``token import``: CSV or TSV with a header, or JSONL.

It reads line by line, whatever their size.

One line is one account: no field holds a line end. So a line that is damaged costs itself and
nothing after it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

COLUMNS = (
    "account",
    "provider",
    "refresh_token",
    "subject_token",
    "access_token",
    "token_type",
    "expires_at",
    "expires_at_ms",
    "scope",
    "client",
    "consent_expires_at",
    "consent_expires_ms",
    "client_secret",
)
MAPS = ("parameters", "extras")
"""
What has entries of its own names: an object in JSONL, a column ``parameters.NAME`` each elsewhere.
"""
ALLOWED = (*COLUMNS, *(f"{name}.NAME" for name in MAPS))
REQUIRED = ("account", "refresh_token")
LINE_BYTES_MAX = 262_144
# A unix time below it is in seconds (the year 5138), from it on in milliseconds (1973).
SECONDS_END = 100_000_000_000
HINTS = {
    "expires_in": "from when would it count? write expires_at",
    "expires": "write expires_at",
    "token": "write refresh_token",
}
DELIMITERS = {"csv": ",", "csv with ;": ";"}


class NotAccounts(Exception):
    """The file as a whole cannot be read: its header is none."""


class RowFault(ValueError):
    """A fault of a line; its text never quotes what may be a secret."""

    def __init__(self, field: str, reason: str) -> None:
        """
        Name the faulty column as ``field``, which the reason begins with; empty: the whole line.
        """
        super().__init__(f"{field} {reason}" if field else reason)
        self.field = field


@dataclass(frozen=True, slots=True)
class AccountLine:
    """Holds one line: the account's name and its other fields, or why there is none."""

    line: int
    size_bytes: int
    account: str = ""
    """``provider/name``; of a line with a fault as far as it is known."""
    fields: str = ""
    """The fields as JSON, for ``T.PUT``. Holds secrets."""
    fault: str = ""
    field: str = ""
    """The column that the fault is about."""


def lines_of(source: IO[bytes]) -> Iterator[bytes]:
    """
    Yield the lines of a file.

    Of a line that is too long it yields only the beginning, so that no file fills the memory.
    """
    while line := source.readline(LINE_BYTES_MAX + 1):
        yield line
        while len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
            line = source.readline(LINE_BYTES_MAX + 1)


def rows(
    lines: Iterable[bytes],
    provider: str,
    known: Collection[str] = (),
    without: Collection[str] = (),
) -> Iterator[AccountLine]:
    """
    Yield a row for each line but the header and empty ones.

    The form is that of the first line: ``{`` begins JSONL, a tab in the header makes it TSV, else
    it is CSV, with semicolons if its header has no comma. ``provider`` is whose accounts all are,
    named as within it (``provider/`` before a name is taken off); empty: each line says so, in the
    column ``provider`` or as ``provider/account``. ``known``: the providers there are, if that is
    known; ``without``: those of them whose accounts have no refresh tokens.

    Raises: NotAccounts: there is no line, or the header lacks a column, or has an unknown one.
    """
    columns: list[str] = []
    form = ""
    # Hashes of names: another key in each process, so that nobody can make two of one hash.
    seen, tokens = set[int](), set[int]()
    for number, raw in enumerate(lines, 1):
        text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if not text.strip():
            yield AccountLine(number, len(raw))
            continue
        if not form:
            form = _form(text, number)
            if form != "jsonl":
                columns = _header(
                    text, form, number, REQUIRED if _renews(provider, without) else REQUIRED[:1]
                )
                yield AccountLine(number, len(raw))
                continue
        account = ""
        try:
            account, fields = _account(_fields(text, form, columns), provider, known, without)
            if not _is_new(account, seen):
                raise RowFault("account", "stands on an earlier line already; that one counts")
            token = fields.get("refresh_token")
            if token and not _is_new(f"{account.partition('/')[0]} {token}", tokens):
                raise RowFault(
                    "refresh_token",
                    "is that of an account on an earlier line; each would end the other's grant",
                )
        except RowFault as error:
            yield AccountLine(number, len(raw), account, fault=str(error), field=error.field)
            continue
        yield AccountLine(number, len(raw), account, json.dumps(fields))
    if not form:
        raise NotAccounts("is empty; needed is a header with the columns account and refresh_token")


def _is_new(text: str, known: set[int]) -> bool:
    """Remember ``text`` by its hash; tell whether it was not there before."""
    before = len(known)
    known.add(hash(text))
    return len(known) > before


def _renews(provider: str, without: Collection[str]) -> bool:
    """
    Return whether all accounts of a file have refresh tokens, as far as is known before reading.
    """
    return provider not in without if provider else not without


def _form(raw: bytes, number: int) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotAccounts("is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    first = raw.lstrip()
    if first.startswith(b"["):
        raise NotAccounts(
            f"line {number}: begins a JSON array; allowed is an object a line (jq -c '.[]' makes"
            " them)"
        )
    if first.startswith(b'{"tidewarden_export"'):
        raise NotAccounts("is a sealed export; --key-file or --passphrase-env opens it")
    if first.startswith(b"{"):
        return "jsonl"
    if b"\t" in raw:
        return "tsv"
    return "csv with ;" if b";" in raw and b"," not in raw else "csv"


def _header(raw: bytes, form: str, number: int, required: Collection[str]) -> list[str]:
    try:
        columns = [column.strip() for column in _cells(raw, form)]
    except RowFault as error:
        raise NotAccounts(f"line {number}: the header cannot be read: {error}") from None
    for column in columns:
        if column not in COLUMNS and not _in_map(column):
            shown = column if len(column) <= 40 else column[:37] + "..."
            hint = f" ({HINTS[column]})" if column in HINTS else ""
            raise NotAccounts(
                f"line {number}: unknown column {shown!r}{hint}; allowed are {', '.join(ALLOWED)}"
            )
    for column in required:
        if column not in columns:
            needed = f"needed {'is' if len(required) == 1 else 'are'} {' and '.join(required)}"
            raise NotAccounts(f"line {number}: the header has no column {column!r}; {needed}")
    if len(set(columns)) != len(columns):
        raise NotAccounts(f"line {number}: a column stands twice in the header")
    return columns


def _fields(raw: bytes, form: str, columns: list[str]) -> dict[str, Any]:
    """Raises: Fault: what is wrong with the line, without quoting it: it holds secrets."""
    if form == "jsonl":
        try:
            found = json.loads(_text(raw))
        except (ValueError, RecursionError):  # ValueError: a number of thousands of digits, too.
            raise RowFault("", "is not JSON, as the first line is") from None
        if not isinstance(found, dict):
            raise RowFault("", "is not a JSON object")
        if unknown := [name for name in found if name not in (*COLUMNS, *MAPS)]:
            raise RowFault(
                "", f"unknown field {unknown[0][:40]!r}; allowed are {', '.join((*COLUMNS, *MAPS))}"
            )
        return found
    cells = _cells(raw, form)
    if len(cells) == len(columns):
        # Blanks around a cell are the table's, not the token's.
        return _nested(dict(zip(columns, (cell.strip() for cell in cells), strict=True)))
    if raw.lstrip().startswith(b"{"):
        raise RowFault("", f"is JSON in a file that began as {form[:3].upper()}")
    has = f"{len(cells)} field{'s' * (len(cells) != 1)} where the header has {len(columns)}"
    if len(cells) > len(columns):
        raise RowFault(
            "",
            f"has {has} ({', '.join(columns)}); a field that holds the delimiter stands in"
            ' "quotes"',
        )
    raise RowFault(columns[len(cells)], f"is missing: {has} ({', '.join(columns)})")


def _in_map(column: str) -> bool:
    name, dot, entry = column.partition(".")
    return name in MAPS and bool(dot and entry)


def _nested(cells: dict[str, str]) -> dict[str, Any]:
    """Make columns ``parameters.NAME`` the entries of ``parameters``; an empty cell is none."""
    found: dict[str, Any] = {}
    for column, cell in cells.items():
        name, _, entry = column.partition(".")
        if not entry:
            found[column] = cell
        elif cell:
            found.setdefault(name, {})[entry] = cell
    return found


def _cells(raw: bytes, form: str) -> list[str]:
    text = _text(raw).rstrip("\r\n")
    if form == "tsv":
        return text.split("\t")
    try:
        return next(csv.reader([text], strict=True, delimiter=DELIMITERS[form]))
    except csv.Error as error:
        if str(error) == "unexpected end of data":
            raise RowFault(
                "", "opens a quote that it does not close; no field may hold a line end"
            ) from None
        raise RowFault("", f"is not CSV: {error}") from None


def _text(raw: bytes) -> str:
    if len(raw) > LINE_BYTES_MAX:
        raise RowFault("", f"has more than the {LINE_BYTES_MAX:,} bytes that are allowed")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RowFault("", f"is not UTF-8 at byte {error.start + 1}") from None


def _account(
    found: dict[str, Any], provider: str, known: Collection[str], without: Collection[str]
) -> tuple[str, dict[str, Any]]:
    """Return the account's whole name and its other fields. Raises: Fault."""
    name, whose = found.pop("account", ""), found.pop("provider", "") or ""
    if name is None or (isinstance(name, str) and not name.strip()):
        raise RowFault("account", "is empty")
    if not isinstance(name, str):
        raise RowFault("account", 'is no text; write it in "quotes"')
    whole = _whole(name.strip(), whose if isinstance(whose, str) else "?", provider, known)
    # Half a character (a lone surrogate of JSON) could not even be sent.
    if not whole.isprintable():
        raise RowFault("account", "holds characters that cannot be shown")
    fields = {column: value for column, value in found.items() if value not in (None, "")}
    if "refresh_token" not in fields and whole.partition("/")[0] not in without:
        raise RowFault("refresh_token", "is empty")
    for name in ("expires_at", "consent_expires_at"):
        if name in fields:
            told = f"{name.removesuffix('_at')}_ms" if name.startswith("consent") else f"{name}_ms"
            if told in fields:
                raise RowFault(name, f"stands beside {told}; one of them is allowed")
            fields[told] = unix_ms(fields.pop(name), name)
    return whole, fields


def _whole(name: str, whose: str, provider: str, known: Collection[str]) -> str:
    """
    Return ``provider/name``.

    A name of another provider than it is imported to is refused: its refresh token would be shown
    to a foreign server.
    """
    first, slash, rest = name.partition("/")
    if whose and provider and whose != provider:
        raise RowFault("provider", f"is {whose[:40]!r}, while --provider says {provider!r}")
    said = whose or provider
    if said and slash and first != said and first in known:
        raise RowFault("account", f"is of the provider {first!r}, not of {said!r}")
    if not said:
        said, name = first, rest
        if not slash or not rest:
            raise RowFault(
                "account",
                "names no provider; write provider/account, or add a column provider, or give"
                " --provider",
            )
    if known and said not in known:
        raise RowFault(
            "provider" if whose else "account",
            f"names the provider {said[:40]!r}; configured: {', '.join(sorted(known))}",
        )
    return f"{said}/{name.removeprefix(f'{said}/')}"


def unix_ms(value: Any, name: str = "expires_at") -> int:
    """
    Parse a moment into unix milliseconds.

    It is ISO 8601 with a zone, or unix time in seconds or milliseconds. Raises: Fault.
    """
    text = str(value).strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text):
        number = float(text)
        return int(number * 1000 if number < SECONDS_END else number)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        missing = "cannot be read" if moment is None else "says no time zone"
        raise RowFault(
            name,
            f"{missing}; allowed are 2026-11-21T18:00:00Z, +01:00 for a zone, or unix time in s"
            " or ms",
        )
    return int(moment.timestamp() * 1000)
