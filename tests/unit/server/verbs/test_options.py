"""Option tables: any order, either case, each once, and errors that name the word."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
from hypothesis import strategies as st

from tidewarden.errors import BadArg
from tidewarden.server.verbs.options import Option, Options, number, text, unsupported

TABLE = Options(
    "X.PUT",
    {
        "ID": Option("id", text),
        "DELAY": Option("delay_ms", number, rival="at_ms"),
        "AT": Option("at_ms", number, rival="delay_ms"),
        "FORCE": Option("force", None),
        "TTL": Option("ttl", unsupported),
    },
)


def test_any_order_and_case() -> None:
    assert TABLE.parse([b"X", b"force", b"Delay", b"5", b"ID", b"a"], 1) == {
        "force": True,
        "delay_ms": 5,
        "id": "a",
    }


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("DELAY", "DELAY needs a value"),
        ("DELAY -1", "DELAY must be an integer of 0 or more: found '-1'"),
        ("DELAY 1.5", "found '1.5'"),
        ("DELAY 1_0", "found '1_0'"),
        ("DELAY 99999999999999999", "DELAY must be"),
        ("DELAY 1 AT 2", "AT excludes DELAY"),
        ("ID a ID b", "ID is given twice"),
        ("TTL 5", "TTL is not supported by this version"),
        ("LANE x", "X.PUT has no option 'LANE'. It knows ID DELAY AT FORCE."),
    ],
)
def test_errors_name_the_word(sent: str, said: str) -> None:
    with pytest.raises(BadArg) as caught:
        TABLE.parse([b"X", *sent.encode().split()], 1)
    assert said in str(caught.value)


def test_options_may_end_at_a_word() -> None:
    table = Options("Q.TAKE", {"COUNT": Option("count", number)}, until="FROM")
    assert table.parse_until([b"Q.TAKE", b"COUNT", b"2", b"from", b"a"], 1) == ({"count": 2}, 4)
    with pytest.raises(BadArg, match="FROM"):
        table.parse([b"Q.TAKE", b"COUNT", b"2"], 1)


@hypothesis.given(
    st.lists(
        st.binary(max_size=8) | st.sampled_from([b"ID", b"DELAY", b"AT", b"FORCE", b"7"]),
        max_size=8,
    )
)
def test_rubbish_is_a_badarg_or_nothing(words: list[bytes]) -> None:
    with contextlib.suppress(BadArg):
        TABLE.parse(words, 0)
