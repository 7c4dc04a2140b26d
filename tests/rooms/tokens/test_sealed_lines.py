"""Lines that somebody sealed by their own key, with whatever in them: told, and nothing is half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.config.sealed_file import seal_line
from tidewarden.errors import BadArg

KEY, FILE = b"k" * 32, b"i" * 16
GOOD = {"account": "p/good", "refresh_token": "r-1"}
NO_ACCOUNT: tuple[Any, ...] = (
    b"", b"{", b"\xff\xfe", b"[" * 5000, [], None, 7, "text", {}, {"account": None},
    {"account": 7}, {"account": ["p/a"]}, {"account": {}}, b'{"account": "\\ud800"}',
)  # fmt: skip
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"account": "p"}, "is not of the form"),
    ({"account": "nobody/a"}, "nobody"),
    ({"account": "p/a b"}, "contains"),
    ({"refresh_token": 7}, "refresh_token is not a text"),
    ({"refresh_token": None}, "refresh_token is missing"),
    ({"extras": "text"}, "extras is no JSON object"),
    ({"extras": [1]}, "extras is no JSON object"),
    ({"parameters": [1]}, "parameters is no JSON object"),
    ({"parameters": {"x": {}}}, "parameters has 'x'"),
    ({"origin": "zz", "generation": 1}, "origin is no text of hexadecimal digits"),
    ({"origin": 7, "generation": 1}, "origin is no text of hexadecimal digits"),
    ({"origin": "00", "generation": "x"}, "generation is no whole number"),
    ({"origin": "00", "generation": -1}, "generation is no whole number"),
    ({"spare_refresh_token": 7}, "refresh_token is not a text"),
    ({"spare_refresh_token": ["x"]}, "refresh_token is not a text"),
    ({"spare_refresh_token": "\x00"}, "other than printable ASCII"),
    ({"spare_refresh_token": ""}, "refresh_token is missing"),
    ({"expires_at_ms": {}}, "expires_at_ms is '{}'"),
    ({"expires_in": 1e300}, "expires_in is"),
    ({"consent_end": []}, "consent_end is"),
    ({"consent_expires_ms": [1]}, "consent_expires_ms is"),
    ({"scope": 7}, "scope must be a text"),
    ({"token_type": {}}, "token_type must be"),
    ({"client": {}}, "client is '{}'"),
    ({"unknown": 1}, "unknown field"),
)  # fmt: skip


def sealed(*contents: Any) -> list[bytes]:
    plain = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in contents]
    return [seal_line(KEY, FILE, 1 + at, one) for at, one in enumerate(plain)]


async def test_a_line_that_holds_no_account_stops_all_before_anything_is_put(
    valkey: Any, tmp_path: Path
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as one:
        for content in NO_ACCOUNT:
            lines = sealed(GOOD, content)
            with pytest.raises(BadArg, match="line 3 opens, but holds no account"):
                await one.tokens.custody.import_sealed((KEY, FILE, 1), lines)
        assert await one.tokens.list() == ([], "")


async def test_a_wrong_field_is_told_of_its_account_alone_which_is_not_put(
    valkey: Any, tmp_path: Path
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as one:
        for at, (fields, fault) in enumerate(WRONG):
            bad = {"account": "p/bad", "refresh_token": "r-2", **fields}
            good = {**GOOD, "account": f"p/good{at}", "refresh_token": f"good-{at}"}
            other = {**good, "account": f"p/other{at}", "refresh_token": f"other-{at}"}
            lines = sealed(good, bad, other)
            results = await one.tokens.custody.import_sealed((KEY, FILE, 1), lines)
            assert (results[0], results[2]) == (1, 1), fields
            assert str(results[1]).startswith(f"{bad['account']}: "), fields
            assert fault in str(results[1]), fields
        page, _ = await one.tokens.list(count=1000)
        assert {row["account"].rstrip("0123456789") for row in page} == {"p/good", "p/other"}
        assert len(page) == 2 * len(WRONG)
