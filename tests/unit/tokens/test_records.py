"""The records of a journal, between objects and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.journal.journal_records import (
    MAGIC,
    JournalAnswer,
    JournalKey,
    RawAnswer,
    Record,
    Stored,
    frame,
    read_records,
)

ANSWER = JournalAnswer(1, "q", "a@b", 2, 3, bytes(range(256)), 10, 20)
RAW = RawAnswer(2, "q", "a@b", 2, 3, 1000, b"sealed-secret")


@pytest.mark.parametrize("record", [ANSWER, RAW, JournalKey(7, b"wrapped"), Stored(1)])
def test_a_record_reads_back(record: Record) -> None:
    raw = MAGIC + frame(record)
    assert read_records(raw) == ([record], len(raw))
    assert read_records(raw[:-1]) == ([], len(MAGIC))


@given(st.binary(max_size=400))
def test_reading_never_fails_on_noise(noise: bytes) -> None:
    records, end = read_records(MAGIC + frame(ANSWER) + noise)
    assert records[0] == ANSWER
    assert end <= len(MAGIC) + len(frame(ANSWER)) + len(noise)
    assert read_records(noise)[1] <= len(noise)


def test_a_kind_that_is_not_ours_ends_the_reading() -> None:
    foreign = frame(Stored(1)).replace(b"stored", b"strred")
    assert read_records(MAGIC + frame(ANSWER) + foreign)[0] == [ANSWER]


def test_sealed_rows_stay_out_of_repr() -> None:
    assert "secret" not in repr(RAW)
    assert "x00" not in repr(ANSWER)
