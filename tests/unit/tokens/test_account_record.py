"""The records of an account, between bytes and names."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.errors import Internal
from tidewarden.tokens.accounts.account_record import (
    AccountDetails,
    AccountRow,
    RefreshTroubles,
    parse_details,
    parse_intent,
    parse_row,
    parse_troubles,
)

times = st.integers(0, 2**42)


@given(
    st.integers(0, 2**32 - 1), times, times, st.binary(min_size=8, max_size=8), st.text(max_size=20), st.binary(max_size=300),
    st.binary(max_size=300),
)  # fmt: skip
def test_a_row_reads_back_as_it_was_written(
    generation: int, stored: int, due: int, mark: bytes, scope: str, access: bytes, refresh: bytes
) -> None:
    row = AccountRow(
        1, generation, stored, stored + 1, due, mark, mark[::-1], "Bearer", scope, access, refresh
    )
    assert parse_row(row.pack()) == row


def test_a_head_alone_reads_too() -> None:
    row = AccountRow(3, 4, 5, 6, 7, b"12345678", b"abcdefgh", "Bearer", "s", b"a", b"r")
    head = parse_row(row.pack()[:44])
    assert (head.grant, head.generation, head.expires_at_ms, head.refresh) == (3, 4, 6, b"")


DETAILS = AccountDetails(
    {"shop": "a"}, {"instance_url": "https://a.example", "hub": 7}, 2**41, "fixed", 2**40
)


def test_details_go_before_their_row_and_read_back() -> None:
    row = AccountRow(
        3, 4, 5, 6, 7, b"12345678", b"abcdefgh", "Bearer", "s", b"a", b"r", details=DETAILS
    )
    assert parse_row(row.pack_all()) == row
    assert parse_row(row.pack(), DETAILS.pack(3)) == row
    assert parse_row(row.pack()[:44], DETAILS.pack(3)).details == DETAILS
    assert parse_row(row.pack()).details == AccountDetails()
    assert (
        AccountDetails().pack(3),
        parse_row(AccountRow(3, 4, 5, 6, 7, b"1" * 8, b"a" * 8).pack_all()).details,
    ) == (
        b"",
        AccountDetails(),
    )


def test_of_an_earlier_grants_details_only_the_parameters_count() -> None:
    """A node of an earlier version puts a new grant and knows of no details."""
    assert parse_details(DETAILS.pack(3), 4) == AccountDetails({"shop": "a"})


@pytest.mark.parametrize(
    "raw",
    [b"", b"x", b"\x02" + DETAILS.pack(3)[1:], DETAILS.pack(3)[:-3], b"\x01" + bytes(10) + b"\xc1"],
)
def test_details_that_nobody_can_read_are_none(raw: bytes) -> None:
    assert parse_details(raw, 3) == AccountDetails()


def test_details_that_a_later_version_wrote_are_read_as_far_as_they_are_known() -> None:
    raw = DETAILS.pack(3)
    assert raw[11] == 0x96, "an array of six"
    assert parse_details(raw[:11] + b"\x97" + raw[12:] + b"\x07", 3) == DETAILS


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x01", b"\x02" + b"x" * 60, b"\xfe", b"\xfe\0\0\0\x01", b"\xfe\0\0\0\xff" + bytes(80)],
)
def test_a_row_of_another_version_is_refused(raw: bytes) -> None:
    with pytest.raises(Internal, match="row has version"):
        parse_row(raw)


def test_troubles_read_back_and_old_ones_too() -> None:
    troubles = RefreshTroubles(
        tries=3, refusals=1, dead=True, outcome="invalid_grant", message="HTTP 400", next_ms=9
    )
    assert parse_troubles(troubles.pack()) == troubles
    asked = RefreshTroubles(
        confirmed_ms=7, stopped=True, asked=((7, "invalid_grant", "HTTP 400 invalid_grant"),)
    )
    assert parse_troubles(asked.pack()) == asked
    # Fields that a later version adds have defaults.
    assert parse_troubles(b"\x91\x05") == RefreshTroubles(tries=5)
    newer = msgspec.msgpack.encode([*msgspec.msgpack.decode(asked.pack()), "of a later version"])
    assert parse_troubles(newer) == asked
    assert parse_troubles(None) is None


def test_an_intent_reads_as_the_script_writes_it() -> None:
    raw = (
        struct.pack(">II", 2, 9)
        + (1000).to_bytes(6, "big")
        + (2000).to_bytes(6, "big")
        + b"12345678"
    )
    intent = parse_intent(raw + struct.pack(">Q", 2**40 + 1) + b"n0.3")
    assert intent is not None
    assert (intent.grant, intent.generation, intent.started_ms, intent.until_ms) == (
        2,
        9,
        1000,
        2000,
    )
    assert (intent.lease, intent.holder) == (2**40 + 1, "n0.3")
    assert parse_intent(None) is None


def test_sealed_tokens_stay_out_of_repr() -> None:
    assert "hush" not in repr(AccountRow(1, 1, 1, 1, 1, b"", b"", access=b"hush", refresh=b"hush"))
