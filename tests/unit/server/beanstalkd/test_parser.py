"""Requests as beanstalkd 1.12 reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.server.beanstalkd.parser import (
    BAD_FORMAT,
    EXPECTED_CRLF,
    JOB_TOO_BIG,
    UNKNOWN_COMMAND,
    Answered,
    Malformed,
    Request,
    RequestReader,
    parse,
)


def all_of(reader: RequestReader) -> list[Request | Answered]:
    found = []
    while (request := reader.next()) is not None:
        found.append(request)
    return found


@pytest.mark.parametrize(
    ("line", "op", "numbers", "name"),
    [
        (b"put 1 2 3 4", "put", (1, 2, 3, 4, 0), ""),
        (b"put   1 2  3 4x", "put", (1, 2, 3, 4, 1), ""),
        (b"delete 18446744073709551615", "delete", (2**64 - 1,), ""),
        (b"release 1 4294967295 0", "release", (1, 2**32 - 1, 0), ""),
        (b"reserve-with-timeout 5x", "reserve-with-timeout", (5,), ""),
        (b"reserve-with-timeout x", "reserve-with-timeout", (0,), ""),
        (b"reserve-with-timeout -1", "reserve-with-timeout", (-1,), ""),
        (b"reserve-with-timeout 4294967296", "reserve-with-timeout", (0,), ""),
        (b"kick 5x", "kick", (5,), ""),
        (b"kick -1", "kick", (2**32 - 1,), ""),
        (b"pause-tube a 7", "pause-tube", (7,), "a"),
        (b"pause-tubea 7", "pause-tube", (7,), "a"),
        (b"use a;b", "use", (), "a;b"),
        (b"quit now", "quit", (), ""),
        (b"auth me my secret", "auth", (), "me my secret"),
    ],
)
def test_what_is_read(line: bytes, op: str, numbers: tuple[int, ...], name: str) -> None:
    assert parse(line) == Request(op, numbers, name)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"", UNKNOWN_COMMAND),
        (b"PUT 1 2 3 4", UNKNOWN_COMMAND),
        (b"use", UNKNOWN_COMMAND),
        (b"kick-job", UNKNOWN_COMMAND),
        (b"put 1 2 3", BAD_FORMAT),
        (b"put -1 2 3 4", BAD_FORMAT),
        (b"put 4294967296 2 3 4", BAD_FORMAT),
        (b"delete 1 ", BAD_FORMAT),
        (b"delete 18446744073709551616", BAD_FORMAT),
        (b"reserve ", BAD_FORMAT),
        (b"reserve-job", BAD_FORMAT),
        (b"reserve-with-timeout 9223372036854775808", BAD_FORMAT),
        (b"stats-tube", BAD_FORMAT),
        (b"use -a", BAD_FORMAT),
        (b"use  a", BAD_FORMAT),
        (b"watch " + b"a" * 201, BAD_FORMAT),
        (b"stats\0", BAD_FORMAT),
        (b"kick x", BAD_FORMAT),
        (b"pause-tube a", BAD_FORMAT),
        (b"pause-tube a 1x", BAD_FORMAT),
        (b"use \xff", BAD_FORMAT),
    ],
)
def test_what_is_refused(line: bytes, reply: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        parse(line)
    assert caught.value.reply == reply


def test_bodies_are_read_by_their_length() -> None:
    reader = RequestReader(10)
    reader.feed(b"put 0 0 0 4\r\na\r\nb\r\nput 0 0 0 2\r\nabcdstats\r\n")
    assert all_of(reader) == [
        Answered(b"", "put"),
        Request("put", (0, 0, 0, 4, 0), body=b"a\r\nb"),
        Answered(b"", "put"),
        Answered(EXPECTED_CRLF),
        Request("stats"),
    ]


def test_a_body_that_is_too_big_is_passed_by() -> None:
    reader = RequestReader(10)
    reader.feed(b"put 0 0 0 11\r\n01234")
    assert all_of(reader) == [Answered(b"", "put")]
    reader.feed(b"567890\r\nstats\r\n")
    assert all_of(reader) == [Answered(JOB_TOO_BIG), Request("stats")]
    reader.feed(b"put 0 0 0 4294967295\r\n" + b"x" * 100_000)
    assert all_of(reader) == [Answered(b"", "put")]
    assert len(reader) == 0


def test_a_line_ends_within_224_bytes() -> None:
    reader = RequestReader(10)
    reader.feed(b"delete " + b" " * 214 + b"1\r\n")
    assert all_of(reader) == [Request("delete", (1,))]
    reader.feed(b"delete " + b" " * 215 + b"1\r\nstats\r\n")
    assert all_of(reader) == [Answered(BAD_FORMAT), Request("stats")]
    reader.feed(b"x" * 1_000_000)
    assert all_of(reader) == []
    assert len(reader) <= 1
    reader.feed(b"\r")
    reader.feed(b"\nstats\r\n")
    assert all_of(reader) == [Answered(BAD_FORMAT), Request("stats")]


def test_who_speaks_http_is_told_apart() -> None:
    reader = RequestReader(10)
    reader.feed(b"POST / HTTP/1.1\r\nHost: localhost\r\n")
    assert all_of(reader) == [Answered(UNKNOWN_COMMAND, foreign="it speaks HTTP")] * 2


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_pieces_make_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    words = [b"put 0 0 1 3\r\n", b"put 0 0 1 30\r\n", b"\r\n", b"delete 5\r\n", b"use a\r\n"]
    stream = b"".join(part + data.draw(st.sampled_from(words)) for part in parts)
    whole, pieces = RequestReader(20), RequestReader(20)
    whole.feed(stream)
    expected = all_of(whole)
    found = []
    while stream:
        size = data.draw(st.integers(1, 400))
        pieces.feed(stream[:size])
        stream = stream[size:]
        found += all_of(pieces)
    assert found == expected
