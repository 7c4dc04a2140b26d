"""What an HTTP request asks, and what is said of what is wrong with it."""

from __future__ import annotations

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from tidewarden.errors import BadArg
from tidewarden.server.http.params import NoOptions, check_path, decoded, parameters_of


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    a: str = ""
    n: int = 0
    keep: bool = False


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", Asked()),
        ("a=1&n=5", Asked(a="1", n=5)),
        ("a=&keep=true", Asked(keep=True)),
        ("keep=false", Asked()),
    ],
)
def test_parameters_are_of_their_kind(query: str, found: Asked) -> None:
    assert parameters_of(make_mocked_request("GET", f"/x?{query}"), Asked) == found


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("c=1", "There is no parameter 'c' here; there are a, n, keep."),
        ("a=1&a=1", "a is given twice."),
        ("keep=s3cret", "keep must be true or false: found other text."),
        ("n=s3cret", "n must be an integer: found other text."),
    ],
)
def test_parameters_are_those_that_are_there_once_each(query: str, fault: str) -> None:
    with pytest.raises(BadArg) as caught:
        parameters_of(make_mocked_request("GET", f"/x?{query}"), Asked)
    assert str(caught.value) == fault
    with pytest.raises(BadArg, match="here; there are none"):
        parameters_of(make_mocked_request("GET", f"/x?{query}"), NoOptions)


def test_a_path_is_utf_8() -> None:
    check_path(make_mocked_request("GET", "/%C3%A4"))
    with pytest.raises(BadArg, match="A path must be UTF-8"):
        check_path(make_mocked_request("GET", "/%FF"))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (b"", "cannot be read as JSON"),
        (b'{"a": "s3cret', "cannot be read as JSON"),
        (b'"s3cret"', "The body must be an object: found other text."),
        (b'{"b": "s3cret"}', "There is no field 'b' here; there are a, n, keep."),
        (b'{"n": "s3cret"}', "n must be an integer: found other text."),
        (b'{"n": null}', "n must be an integer: found null."),
        (b'{"n": 1.5}', "n must be an integer: found 1.5."),
        (b'{"n": true}', "n must be an integer: found true."),
        (b'{"a": []}', "a must be text: found a list of 0 items."),
    ],
)
def test_a_body_is_an_object_of_known_fields(document: bytes, fault: str) -> None:
    with pytest.raises(BadArg, match=fault) as caught:
        decoded(document, Asked)
    assert "s3cret" not in str(caught.value)
    assert decoded(b'{"a": "1", "n": 5}', Asked) == Asked(a="1", n=5)
