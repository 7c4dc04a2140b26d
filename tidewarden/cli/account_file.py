"""
Files of accounts for ``token import``: CSV or TSV with a header, or JSONL; read line by line, whatever their size.

One line is one account: no field holds a line end. So a line that is damaged costs itself and nothing after it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

COLUMNS = ("account", "refresh_token", "access_token", "expires_at_ms", "scope", "client")
REQUIRED = ("account", "refresh_token")
LINE_BYTES_MAX = 262_144


class NotAccounts(Exception):
    """The file as a whole cannot be read: its header is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the account's name and its other fields, or why there is none."""

    line: int
    size_bytes: int
    account: str = ""
    fields: str = ""
    """The fields as JSON, for ``T.PUT``. Holds secrets."""
    fault: str = ""


def rows(lines: Iterable[bytes], provider: str) -> Iterator[Row]:
    """
    A row for each line but the header and empty ones.

    The form is that of the first line: ``{`` begins JSONL, a tab in the header makes it TSV, else it is CSV. An account
    is named as within its provider; ``provider/`` before it is taken off.

    Raises: NotAccounts: the header lacks a column, or has an unknown one.
    """
    columns: list[str] = []
    form = ""
    seen: set[int] = set()  # hashes: some 70 bytes an account, where the names would be three times that
    for number, raw in enumerate(lines, 1):
        text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if not text.strip():
            yield Row(number, len(raw))
            continue
        if not form:
            form = "jsonl" if text.lstrip().startswith(b"{") else "tsv" if b"\t" in text else "csv"
            if form != "jsonl":
                columns = _header(text, form, number)
                yield Row(number, len(raw))
                continue
        try:
            account, fields = _account(_fields(text, form, columns), provider)
        except ValueError as error:
            yield Row(number, len(raw), fault=str(error))
            continue
        key = hash(account)
        if key in seen:
            yield Row(number, len(raw), fault="the account stands on an earlier line already")
            continue
        seen.add(key)
        yield Row(number, len(raw), account, json.dumps(fields))


def _header(raw: bytes, form: str, number: int) -> list[str]:
    try:
        columns = [column.strip() for column in _cells(raw, form)]
    except ValueError as error:
        raise NotAccounts(f"line {number}: the header cannot be read: {error}") from None
    for column in columns:
        if column not in COLUMNS:
            shown = column if len(column) <= 40 else column[:37] + "..."
            raise NotAccounts(f"line {number}: unknown column {shown!r}; allowed are {', '.join(COLUMNS)}")
    for column in REQUIRED:
        if column not in columns:
            raise NotAccounts(
                f"line {number}: the header has no column {column!r}; needed are {' and '.join(REQUIRED)}"
            )
    if len(set(columns)) != len(columns):
        raise NotAccounts(f"line {number}: a column stands twice in the header")
    return columns


def _fields(raw: bytes, form: str, columns: list[str]) -> dict[str, Any]:
    """Raises: ValueError: what is wrong with the line, without quoting it: it holds secrets."""
    if form == "jsonl":
        try:
            found = json.loads(_text(raw))
        except (json.JSONDecodeError, RecursionError):
            raise ValueError("is not JSON") from None
        if not isinstance(found, dict):
            raise ValueError("is not a JSON object")
        if unknown := [name for name in found if name not in COLUMNS]:
            raise ValueError(f"unknown field {unknown[0][:40]!r}; allowed are {', '.join(COLUMNS)}")
        return found
    cells = _cells(raw, form)
    if len(cells) != len(columns):
        raise ValueError(f"has {len(cells)} fields where the header has {len(columns)}")
    return dict(zip(columns, cells, strict=True))


def _cells(raw: bytes, form: str) -> list[str]:
    text = _text(raw).rstrip("\r\n")
    if form == "tsv":
        return text.split("\t")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise ValueError(f"is not CSV: {error}") from None


def _text(raw: bytes) -> str:
    if len(raw) > LINE_BYTES_MAX:
        raise ValueError(f"has {len(raw):,} bytes; at most {LINE_BYTES_MAX:,} are allowed")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start + 1}") from None


def _account(found: dict[str, Any], provider: str) -> tuple[str, dict[str, Any]]:
    account = found.pop("account", "")
    if not isinstance(account, str) or not account.strip():
        raise ValueError("account is empty")
    fields = {name: value for name, value in found.items() if value not in (None, "")}
    if "refresh_token" not in fields:
        raise ValueError("refresh_token is empty")
    return account.strip().removeprefix(f"{provider}/"), fields
