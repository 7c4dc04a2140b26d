"""The records of a journal, between objects and bytes."""

from __future__ import annotations

import itertools
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.journal.journal_records import (
    MAGIC,
    JournalAnswer,
    JournalKey,
    JournalReading,
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
    assert read_records(raw) == JournalReading([record])
    assert read_records(raw[:-1]) == JournalReading(damage=[(len(MAGIC), len(raw) - 1)])


@given(st.binary(max_size=400))
def test_reading_never_fails_on_noise(noise: bytes) -> None:
    raw = MAGIC + frame(ANSWER) + noise
    found = read_records(raw)
    assert found.records[0] == ANSWER
    assert all(begin < end <= len(raw) for begin, end in found.damage)
    read_records(noise)


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    st.data(),
)
def test_damage_costs_only_the_records_that_it_touches(
    rows: list[bytes], data: st.DataObject
) -> None:
    records: list[Record] = [
        msgspec.structs.replace(ANSWER, number=number, row=row) for number, row in enumerate(rows)
    ]
    ends = list(itertools.accumulate((len(frame(one)) for one in records), initial=len(MAGIC)))
    raw = bytearray(MAGIC + b"".join(map(frame, records)))
    begin = data.draw(st.integers(0, len(raw) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=len(raw) - begin))
    raw[begin : begin + len(noise)] = noise
    touched = [
        number
        for number in range(len(records))
        if raw[ends[number] : ends[number + 1]] != frame(records[number])
    ]
    found = read_records(bytes(raw))
    assert found.records == [one for one in records if one.number not in touched]
    assert all(any(a <= ends[number] < b for a, b in found.damage) for number in touched)


@pytest.mark.thorough
def test_no_single_damaged_byte_costs_a_second_record() -> None:
    records: list[Record] = [JournalKey(7, b"wrapped"), ANSWER, Stored(1), RAW, ANSWER]
    raw = MAGIC + b"".join(map(frame, records))
    for at in range(len(raw)):
        found = read_records(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        assert len(found.records) == len(records) - (at >= len(MAGIC)), at
        assert len(found.damage) == 1


def test_a_kind_that_is_not_ours_is_kept_and_what_follows_is_read() -> None:
    foreign = frame(Stored(1))
    body = foreign[8:].replace(b"stored", b"strred")
    foreign = foreign[:4] + zlib.crc32(body).to_bytes(4, "big") + body
    found = read_records(MAGIC + foreign + frame(ANSWER))
    assert found == JournalReading([ANSWER], foreign=[foreign])


def test_zeros_behind_the_last_record_are_no_records() -> None:
    raw = MAGIC + frame(ANSWER)
    assert read_records(raw + bytes(4096)) == JournalReading(
        [ANSWER], damage=[(len(raw), len(raw) + 4096)]
    )


def test_sealed_rows_stay_out_of_repr() -> None:
    assert "secret" not in repr(RAW)
    assert "x00" not in repr(ANSWER)
