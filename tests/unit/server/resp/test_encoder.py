"""Replies as bytes, read back by hiredis."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from tidewarden.errors import BadArg
from tidewarden.server.resp import encoder

VALUE = {
    "id": "ä",
    "payload": b"\x00\r\n",
    "n": 2**53 + 1,
    "none": None,
    "list": [1, ["x"], {}],
    "share": 0.5,
}


def parsed(data: bytes) -> Any:
    subject = hiredis.Reader()
    subject.feed(data)
    return subject.gets()


def test_resp2_has_flat_maps_and_null_strings() -> None:
    assert parsed(encoder.encode(VALUE, 2)) == [
        b"id", "ä".encode(), b"payload", b"\x00\r\n", b"n", 2**53 + 1, b"none", None, b"list", [1, [b"x"], []], b"share", b"0.5",
    ]  # fmt: skip


def test_resp3_has_maps_nulls_booleans_and_doubles() -> None:
    found = parsed(encoder.encode({**VALUE, "yes": True}, 3))
    assert found[b"list"] == [1, [b"x"], {}]
    assert found[b"none"] is None
    assert found[b"share"] == 0.5
    assert found[b"yes"] is True


def test_an_error_stays_one_line() -> None:
    assert encoder.failure(BadArg("a\r\n+OK\r\nb")) == b"-BADARG a +OK b\r\n"
    assert len(encoder.error_line("ERR", "ä" * 5000)) < 2000


def test_what_has_no_reply_is_a_defect() -> None:
    with pytest.raises(TypeError):
        encoder.encode(object(), 2)
