"""
The reading half of RESP: whatever the bytes and however they are cut, requests or one clear
failure.
"""

from __future__ import annotations

import itertools
import time

import hypothesis
import pytest
from hypothesis import strategies as st
from support.inspect import BEGIN, WALK, begin_of

from tidewarden.server.resp import parser as requests
from tidewarden.server.resp.parser import RequestReader

REQUEST_BYTES = 200_000


def reader(request_bytes: int = REQUEST_BYTES) -> RequestReader:
    return RequestReader(request_bytes, arguments_max=2016, line_bytes=1000)


def framed(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(
        b"$%d\r\n%b\r\n" % (len(item), item) for item in arguments
    )


def test_one_request() -> None:
    assert reader().feed(framed(b"Q.PUT", b"mail", b"hello")) == [[b"Q.PUT", b"mail", b"hello"]]


def test_line_ends_and_headers_inside_an_argument_are_data() -> None:
    payload = b"a\r\n$3\r\nfoo\r\n*1\r\n"
    assert reader().feed(framed(b"ECHO", payload) + framed(b"PING")) == [
        [b"ECHO", payload],
        [b"PING"],
    ]


ARGUMENT = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"$1\r\na\r\n", b"x" * 3000])


@hypothesis.given(
    st.lists(st.lists(ARGUMENT, min_size=1, max_size=6), min_size=1, max_size=6),
    st.lists(st.integers(0, 20_000), max_size=12),
)
def test_requests_survive_any_cut(requests: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(framed(*request) for request in requests)
    subject = reader()
    found = []
    edges = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for start, stop in itertools.pairwise(edges):
        found += subject.feed(stream[start:stop])
    assert subject.failure is None
    assert found == requests


def test_requests_survive_one_byte_at_a_time() -> None:
    requests = [[b"Q.PUT", b"", b"\r\n*1\r\n"], [b"PING"]]
    subject = reader()
    found = []
    for byte in framed(*requests[0]) + framed(*requests[1]):
        found += subject.feed(bytes((byte,)))
    assert found == requests


@hypothesis.given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"*2\r\n", b"$5\r\n", b"\r\n", b"*-1\r\n", b":1\r\n"])
    )
)
def test_rubbish_never_raises(chunks: list[bytes]) -> None:
    subject = reader()
    for chunk in chunks:
        for request in subject.feed(chunk):
            assert request
            assert all(type(argument) is bytes for argument in request)


def test_inline_command() -> None:
    subject = reader()
    assert subject.feed(b"PI") == []
    assert subject.feed(b"NG  hello\r\n\r\n  \nQUIT\n") == [[b"PING", b"hello"], [b"QUIT"]]
    assert subject.inline


@pytest.mark.parametrize("nothing", [b"\n", b"\r\n", b" \n", b"\t \r\n\n", b"*0\r\n", b"\n*0\r\n"])
def test_what_asks_for_nothing_is_swallowed_in_one_go(
    nothing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that nobody has let in could else stop the loop with a few megabytes a second."""
    steps = 0
    begin = begin_of(RequestReader)

    def counted(
        subject: RequestReader, data: bytes, position: int, requests: list[list[bytes]]
    ) -> int:
        nonlocal steps
        steps += 1
        return begin(subject, data, position, requests)

    monkeypatch.setattr(RequestReader, BEGIN, counted)
    subject = reader()
    many = nothing * (256_000 // len(nothing))
    assert subject.feed(many) == []
    assert subject.feed(many + framed(b"PING") + many + b"PING\n") == [[b"PING"], [b"PING"]]
    assert steps <= 10
    assert subject.failure is None


def test_a_line_that_drips_is_looked_at_when_its_end_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    walk = getattr(RequestReader, WALK)

    def counted(subject: RequestReader, data: bytes) -> list[list[bytes]]:
        nonlocal walked
        walked += len(data)
        return walk(subject, data)

    monkeypatch.setattr(RequestReader, WALK, counted)
    subject = reader()
    for byte in b" " * 400 + b"PING" + b" " * 400:
        assert subject.feed(bytes((byte,))) == []
    assert subject.feed(b"\n") == [[b"PING"]]
    for _ in range(1000):
        assert subject.feed(b"x") == []
    assert subject.failure is None
    subject.feed(b"x")
    assert subject.failure is not None
    assert walked < 10_000


def test_empty_array_is_nothing() -> None:
    assert reader().feed(b"*0\r\n" + framed(b"PING")) == [[b"PING"]]


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (b"*-1\r\n", "BADARG", "0 or more"),
        (b"*1\r\n:5\r\n", "BADARG", "flat array"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "BADARG", "flat array"),
        (b"*1\r\n%1\r\n+a\r\n+b\r\n", "BADARG", "flat array"),
        (b"*1\r\n$-1\r\n", "BADARG", "length"),
        (b"*1\r\n$4\r\nPINGPONG\r\n", "BADARG", "4 bytes was announced"),
        (b"*1x\r\n", "BADARG", "number of arguments"),
        (b"*+1\r\n", "BADARG", "number of arguments"),
        (b"*" + b"1" * 30, "BADARG", "digits"),
        (b"*2147483647\r\n", "TOOBIG", "2016 arguments"),
        (b"*1\r\n$999999999\r\n", "TOOBIG", f"{REQUEST_BYTES} bytes"),
        (
            b"*3\r\n"
            + b"$90000\r\n"
            + b"x" * 90_000
            + b"\r\n$90000\r\n"
            + b"x" * 90_000
            + b"\r\n$90000\r\n",
            "TOOBIG",
            "bytes",
        ),
        (b"x" * 1001, "TOOBIG", "1000 bytes"),
    ],
)
def test_what_cannot_be_followed(sent: bytes, code: str, said: str) -> None:
    subject = reader()
    assert subject.feed(framed(b"PING") + sent) == [[b"PING"]]
    assert subject.failure is not None
    assert subject.failure.code == code
    assert said in str(subject.failure)
    assert subject.feed(framed(b"PING")) == []


def test_an_announced_length_allocates_nothing() -> None:
    started = time.process_time()
    for _ in range(100):
        reader().feed(b"*2147483647\r\n")
    assert time.process_time() - started < 2


def test_a_large_request_in_small_pieces_is_not_read_again_and_again() -> None:
    payload = b"\r\n" * 500_000
    stream = framed(b"Q.PUT", b"mail", payload)
    subject = reader(2_000_000)
    found = []
    for position in range(0, len(stream), 100):
        found += subject.feed(stream[position : position + 100])
    assert found == [[b"Q.PUT", b"mail", payload]]


@pytest.mark.parametrize(
    "one",
    [
        framed(b"PING"),
        b"PING\r\n",
        framed(b"PING") + b"PING\n",
        framed(*[b""] * 1000),
        framed(b"a\r\n*1\r\n", b"b"),
    ],
)
def test_many_small_requests_are_read_in_many_goes(
    one: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One go reads so many arguments; and nothing is lost or changed, whatever is fed meanwhile."""
    monkeypatch.setattr(requests, "LONG_BYTES", 2000)
    monkeypatch.setattr(requests, "LINES_MAX", 300)
    monkeypatch.setattr(requests, "STEPS_MAX", 200)
    whole = reader(1 << 30)
    count = 100_000 // len(one)
    expected = whole.feed(one)
    while whole.more:
        expected += whole.go_on()
    subject = reader(1 << 30)
    most = 0
    found: list[list[bytes]] = []
    for part in (one * count, one[:3], one[3:], one):
        gone = subject.feed(part)
        most = max(most, sum(map(len, gone)))
        found += gone
    goes = 0
    while subject.more:
        gone = subject.go_on()
        goes += 1
        most = max(most, sum(map(len, gone)))
        found += gone
    assert goes > 10
    assert most <= max(1000, len(expected[0]))
    assert found == expected * (count + 2)


def test_what_is_dropped_comes_back_in_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "STEPS_MAX", 10)
    subject = reader()
    assert len(subject.feed(b"PING\n" * 100)) == 10
    assert subject.more
    subject.drop()
    assert (subject.more, subject.go_on()) == (False, [])
