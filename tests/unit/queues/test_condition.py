"""What a search asks of a task: globs of any bytes, paths into JSON, and what is refused."""

from __future__ import annotations

import pytest

from tidewarden.errors import BadArg
from tidewarden.queue.reads.condition import (
    GLOB_BYTES_MAX,
    JSON_BYTES_MAX,
    WHERE_BYTES_MAX,
    condition_of,
)


@pytest.mark.parametrize(
    ("glob", "text", "fits"),
    [
        ("a", b"a", True),
        ("a", b"ab", False),
        ("a*", b"ab", True),
        ("*b", b"ab", True),
        ("*", b"", True),
        ("*ü*", "grün".encode(), True),
        ("*ü*", "grün".encode("latin-1"), False),
        ("*ok*", b"\xff\xfe\x00ok\xff", True),
        ("a*a", b"a", False),
        ("a*b*c", b"a-b-c", True),
        ("a*b*c", b"a-c-b", False),
        ("[a]?", b"[a]?", True),
        ("*\n*", b"a\nb", True),
    ],
)
def test_a_glob(glob: str, text: bytes, fits: bool) -> None:
    assert condition_of(glob, "payload", None).fits(text, b"other") is fits
    assert condition_of(glob, "reason", None).fits(b"other", text) is fits
    by_id = condition_of(glob, "id", None)
    assert (by_id.fits_id(text), by_id.fits(b"other", b"other")) == (fits, True)
    assert condition_of(glob, "payload", None).fits_id(b"any")


def test_a_glob_of_any_author_takes_as_long_as_the_text() -> None:
    """One that tries every way of sharing the text out would not end within a life."""
    text = b"a" * 2**20
    for glob in ("*" + "a" * 900 + "b*", "*" + ("a" * 90 + "b*") * 10, "*a" * 400 + "*b*"):
        assert condition_of(glob, "payload", None).fits(text, b"") is False
    assert condition_of("*a" * 499 + "*", "payload", None).fits(text, b"")


DOCUMENT = b"""{"to": [{"name": "ada", "n": 1}, {"name": "42"}], "n": 42, "f": 1.50, "yes": true,
 "none": null, "a.b": {"c=d": "x=y", "": 0}, "list": [1], "twice": 1, "twice": 2, "\\u00fc": "\\u00fc"}"""


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ("$.to[0].name=ada", True),
        ('$.to[0].name="ada"', True),
        ("$.to[0].name=Ada", False),
        ("$.to[1].name=42", True),
        ('$.to[1].name="42"', True),
        ("$.to[2].name=42", False),
        ("$.to.name=ada", False),
        ("$.to[0].name.more=ada", False),
        ("$.n=42", True),
        ("$.n=42.0", True),
        ('$.n="42"', False),
        ("$.n[0]=42", False),
        ("$.f=1.5", True),
        ("$.yes=true", True),
        ("$.yes=1", False),
        ("$.to[0].n=true", False),
        ("$.none=null", True),
        ("$.absent=null", False),
        ("$.none=", False),
        ('$["a.b"]["c=d"]=x=y', True),
        ('$["a.b"][""]=0', True),
        ("$.list=[1]", False),
        ("$.twice=2", True),
        ("$.ü=ü", True),
        ('$["\\u00fc"]=ü', True),
        ("$=ada", False),
    ],
)
def test_a_value_at_a_path(where: str, fits: bool) -> None:
    assert condition_of(None, "payload", where).fits(DOCUMENT, b"") is fits


def test_a_document_may_be_a_value_alone() -> None:
    assert condition_of(None, "payload", "$=ada").fits(b'"ada"', b"")
    assert condition_of(None, "payload", "$[1]=2").fits(b"[1, 2]", b"")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"ada",
        b"{",
        b'{"a": 1',
        b'{"a": "\xff"}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"a":' * 10_000,
    ],
)
def test_what_is_no_json_does_not_fit(payload: bytes) -> None:
    assert condition_of(None, "payload", "$.a=1").fits(payload, b"") is False


def test_what_is_too_long_for_json_is_told_apart() -> None:
    payload = b'{"a": 1, "b": "' + b"x" * JSON_BYTES_MAX + b'"}'
    both = condition_of("*x*", "payload", "$.a=1")
    assert both.fits(payload, b"") is None
    assert condition_of("*y*", "payload", "$.a=1").fits(payload, b"") is False
    assert both.fits(b'{"a": 1, "b": "x"}', b"") is True
    assert both.fits(b'{"a": 1}', b"") is False


@pytest.mark.parametrize(
    ("glob", "place", "where", "said"),
    [
        ("", "payload", None, "MATCH has 0 bytes; allowed are 1 to 1000"),
        ("x" * (GLOB_BYTES_MAX + 1), "payload", None, "MATCH has 1001 bytes"),
        ("x", "lane", None, "IN is 'lane'; allowed are payload, id, reason"),
        *((None, "payload", where, "WHERE is ") for where in (
            "", "$", "$.a", "a=1", ".a=1", "$a=1", "$..a=1", "$.=1", "$.a[=1", "$.a[b]=1",
            "$.a[-1]=1", "$.a[1.5]=1", '$["a]=1', '$["\\x"]=1', "$.a b=1", "$.a[9999999]=1",
        )),
        (None, "payload", "$.a=" + "x" * WHERE_BYTES_MAX, "WHERE has 1004 characters"),
    ],
)  # fmt: skip
def test_what_is_refused(glob: str | None, place: str, where: str | None, said: str) -> None:
    with pytest.raises(BadArg) as refused:
        condition_of(glob, place, where)
    assert said in str(refused.value)
