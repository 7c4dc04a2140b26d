"""What an HTTP request asks, and what is said of what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from tidewarden.errors import BadArg
from tidewarden.server.http import params as asked


def test_parameters_are_those_that_are_there_once_each() -> None:
    assert asked.query_of(make_mocked_request("GET", "/x?a=1&b="), ("a", "b")) == {
        "a": "1",
        "b": "",
    }
    with pytest.raises(BadArg, match="There is no parameter 'c' here; there are a, b"):
        asked.query_of(make_mocked_request("GET", "/x?c=1"), ("a", "b"))
    with pytest.raises(BadArg, match="there are none"):
        asked.query_of(make_mocked_request("GET", "/x?c=1"), ())
    with pytest.raises(BadArg, match="a is given twice"):
        asked.query_of(make_mocked_request("GET", "/x?a=1&a=1"), ("a",))


def test_a_flag_is_true_or_false() -> None:
    assert [asked.flag(query, "keep") for query in ({}, {"keep": "true"}, {"keep": "false"})] == [
        False,
        True,
        False,
    ]
    with pytest.raises(BadArg, match="keep must be true or false: found '1'"):
        asked.flag({"keep": "1"}, "keep")


def test_a_path_is_utf_8() -> None:
    asked.check_path(make_mocked_request("GET", "/%C3%A4"))
    with pytest.raises(BadArg, match="A path must be UTF-8"):
        asked.check_path(make_mocked_request("GET", "/%FF"))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (b"", "cannot be read as JSON"),
        (b'{"a": "s3cret', "cannot be read as JSON"),
        (b'"s3cret"', "a JSON str was sent"),
        (b'{"b": "s3cret"}', "There is no field 'b' here; there are a"),
    ],
)
def test_a_body_is_an_object_of_known_fields(document: bytes, fault: str) -> None:
    with pytest.raises(BadArg, match=fault) as caught:
        asked.object_of(document, "A thing", ("a",))
    assert "s3cret" not in str(caught.value)
    assert asked.object_of(b'{"a": 1}', "A thing", ("a",)) == {"a": 1}


@pytest.mark.parametrize("value", [None, 1.5, True, "1", []])
def test_fields_are_of_their_kind(value: Any) -> None:
    with pytest.raises(BadArg, match="n must be an integer: found a JSON"):
        asked.integer_field({"n": value}, "n")
    if not isinstance(value, str):
        with pytest.raises(BadArg, match="n must be text: found a JSON"):
            asked.text_field({"n": value}, "n")
    assert asked.integer_field({"n": 5}, "n") == 5
    assert asked.text_field({}, "n", "x") == "x"
