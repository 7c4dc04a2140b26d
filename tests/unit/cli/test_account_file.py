"""Files of accounts: each form, each kind of wrong line, and files that are none."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tidewarden.cli.token.account_file import (
    LINE_BYTES_MAX,
    NotAccounts,
    RowFault,
    lines_of,
    rows,
    unix_ms,
)

NOON_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z


def parsed(
    text: bytes, provider: str = "p", known: tuple[str, ...] = ()
) -> list[tuple[int, str, dict[str, Any], str]]:
    found = rows(lines_of(io.BytesIO(text)), provider, known)
    return [
        (row.line, row.account, json.loads(row.fields) if row.fields else {}, row.fault)
        for row in found
        if row.fields or row.fault
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'account,refresh_token,scope\na,"r,1",s\np/b,"r""2",\n',
        b'account;scope;refresh_token\r\na;s;r,1\r\np/b;;"r""2"\r\n',
        b'\xef\xbb\xbfaccount\trefresh_token\tscope\r\na\tr,1\ts\r\n\r\nb\tr"2\t\r\n',
        b'account, refresh_token, scope\n a , "r,1" , s \n p/b , "r""2" ,'.replace(
            b', "', b',"'
        ).replace(b'" ,', b'",'),
        (
            b'{"account": "a", "refresh_token": "r,1", "scope": "s"}\n{"account": "p/b",'
            b' "refresh_token": "r\\"2", "scope": null}'
        ),
    ],
    ids=["csv", "semicolons", "tsv", "blanks", "jsonl"],
)
def test_each_form_gives_the_same_accounts(text: bytes) -> None:
    found = [(account, fields, fault) for _, account, fields, fault in parsed(text)]
    assert found == [
        ("p/a", {"refresh_token": "r,1", "scope": "s"}, ""),
        ("p/b", {"refresh_token": 'r"2'}, ""),
    ]


@pytest.mark.parametrize(
    ("written", "read_ms"),
    [
        ("2026-11-21T12:00:00Z", NOON_MS),
        ("2026-11-21 13:00:00.5+01:00", NOON_MS + 500),
        ("20261121T120000Z", NOON_MS),
        (f"{NOON_MS // 1000}", NOON_MS),
        (NOON_MS / 1000 + 0.25, NOON_MS + 250),
        (f" {NOON_MS} ", NOON_MS),
        ("1970-01-02T00:00:00Z", 86_400_000),
    ],
)
def test_moments_as_people_and_databases_write_them(written: Any, read_ms: int) -> None:
    assert unix_ms(written) == read_ms


@pytest.mark.parametrize(
    "written",
    [
        "tomorrow",
        "21.11.2026 12:00",
        "2026-11-21T12:00:00",
        "2026-11-21",
        "-5",
        "1e400",
        "9" * 16,
        True,
        [],
    ],
)
def test_moments_that_could_be_two_or_none(written: Any) -> None:
    with pytest.raises(
        RowFault,
        match=r"^expires_at (cannot be read|says no time zone); allowed are 2026-11-21T18:00:00Z",
    ):
        unix_ms(written)


@pytest.mark.parametrize(
    "text",
    [
        b"account,refresh_token,parameters.shop,extras.org.id,consent_expires_at\np/a,r,s1,7,1700000000\np/b,r2,,,\n",
        (
            b'{"account": "p/a", "refresh_token": "r", "parameters": {"shop": "s1"}, "extras":'
            b' {"org.id": "7"}, "consent_expires_ms": 1700000000000}\n{"account": "p/b",'
            b' "refresh_token": "r2"}\n'
        ),
    ],
)
def test_what_is_known_of_an_account_stands_in_columns_or_objects(text: bytes) -> None:
    one, two = [
        json.loads(row.fields) for row in rows(text.splitlines(keepends=True), "") if row.fields
    ]
    assert one == {
        "refresh_token": "r", "parameters": {"shop": "s1"}, "extras": {"org.id": "7"}, "consent_expires_ms": 1_700_000_000_000,
    }  # fmt: skip
    assert two == {"refresh_token": "r2"}


def test_a_column_of_moments_becomes_milliseconds() -> None:
    text = b"account,refresh_token,expires_at,expires_at_ms\na,r1,1795262400,\nb,r2,,1795262400000\nc,r3,1,1\n"
    assert [(fields.get("expires_at_ms"), fault) for _, _, fields, fault in parsed(text)] == [
        (NOON_MS, ""),
        (str(NOON_MS), ""),
        (None, "expires_at stands beside expires_at_ms; one of them is allowed"),
    ]


def test_a_bad_line_costs_itself_alone() -> None:
    text = (
        b"account,refresh_token\n"
        b"a,r1\n"
        b'b,"open quote\n'
        b"c\n"
        b"d,r4,more\n"
        b",r5\n"
        b"f,\n"
        b"g,\xff\n"
        b'{"account": "j"}\n'
        b"a,again\n" + b"h," + b"x" * 4 * LINE_BYTES_MAX + b"\nlast,r9"
    )
    found = parsed(text)
    assert [(line, account) for line, account, _, fault in found if not fault] == [
        (2, "p/a"),
        (12, "p/last"),
    ]
    assert [(line, fault) for line, _, _, fault in found if fault] == [
        (3, "opens a quote that it does not close; no field may hold a line end"),
        (4, "refresh_token is missing: 1 field where the header has 2 (account, refresh_token)"),
        (
            5,
            (
                "has 3 fields where the header has 2 (account, refresh_token); a field that holds"
                ' the delimiter stands in "quotes"'
            ),
        ),
        (6, "account is empty"),
        (7, "refresh_token is empty"),
        (8, "is not UTF-8 at byte 3"),
        (9, "is JSON in a file that began as CSV"),
        (10, "account stands on an earlier line already; that one counts"),
        (11, "has more than the 262,144 bytes that are allowed"),
    ]


def test_bad_lines_of_jsonl() -> None:
    text = (
        b'{"account": "a", "refresh_token": "r", "expires_at_ms":'
        b' 1700000000000}\n{"account\nb,r\n[1]\n{"acount": "a"}\n{"account": 5}\n'
        + b"[" * 100_000
        + b"\n"
        + b"5" * 5000
        + b'\n{"account": null}\n{"account": "\\ud800"}\n'
    )
    found = parsed(text)
    assert found[0][2]["expires_at_ms"] == 1_700_000_000_000  # a number stays one
    assert [fault.partition(";")[0] for *_, fault in found] == [
        "",
        "is not JSON, as the first line is",
        "is not JSON, as the first line is",
        "is not a JSON object",
        "unknown field 'acount'",
        "account is no text",
        "is not JSON, as the first line is",
        "is not JSON, as the first line is",
        "account is empty",
        "account holds characters that cannot be shown",
    ]


def test_accounts_of_several_providers_in_one_file() -> None:
    text = b"account,refresh_token\nshop/a/b,r\nbank/a/b,r\nalice,r\nshop/,r\nshpo/c,r\n"
    found = parsed(text, "", ("bank", "shop"))
    assert [(account, fault.partition(";")[0]) for _, account, _, fault in found] == [
        ("shop/a/b", ""),
        ("bank/a/b", ""),
        ("", "account names no provider"),
        ("", "account names no provider"),
        ("", "account names the provider 'shpo'"),
    ]
    text = b"provider,account,refresh_token\nshop,a,r\nbank,bank/a,r\nbank,shop/b,r\n,shop/c,s\nshpo,d,r\n"
    assert [
        (account, fault.partition(";")[0])
        for _, account, _, fault in parsed(text, "", ("bank", "shop"))
    ] == [
        ("shop/a", ""),
        ("bank/a", ""),
        ("", "account is of the provider 'shop', not of 'bank'"),
        ("shop/c", ""),
        ("", "provider names the provider 'shpo'"),
    ]


def test_a_refresh_token_of_two_accounts_is_refused_where_it_comes_again() -> None:
    """Where tokens rotate, a refresh of either account would end the other's grant."""
    text = b"provider,account,refresh_token\np,a,r1\np,b,r2\np,c,r1\nbank,d,r1\n"
    assert [(account, fault) for _, account, _, fault in parsed(text, "")] == [
        ("p/a", ""),
        ("p/b", ""),
        (
            "p/c",
            (
                "refresh_token is that of an account on an earlier line; each would end the other's"
                " grant"
            ),
        ),
        ("bank/d", ""),
    ]


def test_who_has_no_refresh_tokens_needs_no_column_for_them() -> None:
    without, known = ("app", "sts"), ("app", "shop", "sts")

    def found(text: bytes, provider: str) -> list[tuple[str, str, str]]:
        return [
            (row.account, row.fields, row.fault)
            for row in rows(text.splitlines(keepends=True), provider, known, without)
            if row.account or row.fault
        ]

    assert found(b"account,scope\na,mail\nb,\n", "app") == [
        ("app/a", '{"scope": "mail"}', ""),
        ("app/b", "{}", ""),
    ]
    assert found(b"account\na\n", "app") == [("app/a", "{}", "")]
    assert found(b"account,subject_token\na,s1\nb,s1\n", "sts") == [
        ("sts/a", '{"subject_token": "s1"}', ""),
        ("sts/b", '{"subject_token": "s1"}', ""),
    ]
    mixed = (
        b'{"account": "app/a"}\n{"account": "shop/a"}\n{"account": "shop/b", "refresh_token":'
        b' "r"}\n'
    )
    assert found(mixed, "") == [
        ("app/a", "{}", ""),
        ("", "", "refresh_token is empty"),
        ("shop/b", '{"refresh_token": "r"}', ""),
    ]
    assert found(b"account\napp/a\nshop/a\n", "")[1] == ("", "", "refresh_token is empty")
    with pytest.raises(
        NotAccounts,
        match="the header has no column 'refresh_token'; needed are account and refresh_token",
    ):
        found(b"account,scope\na,mail\n", "shop")
    with pytest.raises(NotAccounts, match="the header has no column 'account'; needed is account"):
        found(b"scope,client\nmail,c\n", "app")


def test_no_refresh_token_goes_to_a_provider_that_it_is_none_of() -> None:
    """``bank/x`` imported to ``shop`` would be shown to the shop as its account ``bank/x``."""
    text = b"account,refresh_token,provider\nbank/x,r,\nother/x,r,\ny,r,bank\n"
    assert [
        (account, fault) for _, account, _, fault in parsed(text, "shop", ("bank", "shop"))
    ] == [
        ("", "account is of the provider 'bank', not of 'shop'"),
        ("shop/other/x", ""),
        ("", "provider is 'bank', while --provider says 'shop'"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"account,token\n",
            (
                r"unknown column 'token' \(write refresh_token\); allowed are account, provider,"
                r" refresh_token"
            ),
        ),
        (
            b"account,refresh_token,expires_in\n",
            r"unknown column 'expires_in' \(from when would it count\?",
        ),
        (b"account,scope\n", "the header has no column 'refresh_token'"),
        (b"account,refresh_token,account\n", "a column stands twice"),
        (b"\xff\n", "the header cannot be read: is not UTF-8"),
        ("account,refresh_token\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b"a,r1\n", "unknown column 'a'"),
        (b'[{"account": "a"}]', "begins a JSON array; allowed is an object a line"),
        (
            b'{"tidewarden_export": 1, "id": "x"}',
            "is a sealed export; --key-file or --passphrase-env opens it",
        ),
        (b"", "is empty; needed is a header"),
        (b"\n \n", "is empty; needed is a header"),
        (b"x" * 10 * LINE_BYTES_MAX, "has more than"),
    ],
)
def test_a_file_without_its_header_is_none(text: bytes, expected: str) -> None:
    with pytest.raises(NotAccounts, match=expected):
        parsed(text)
