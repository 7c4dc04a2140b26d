"""Raft files that cannot be trusted are told from whole ones."""

from __future__ import annotations

from pathlib import Path

import pysyncobj.journal
import pytest

from tidewarden.raft import journal, pysync


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    """A journal as the library writes it: terms 0, 1, 1, 4, one entry of which was cut off again."""
    path = tmp_path / "raft.journal"
    file = pysyncobj.journal.FileJournal(str(path))
    for index, term in enumerate([0, 1, 1, 4, 9], start=1):
        file.add(b"x" * index * 40, index, term)
    file.deleteEntriesFrom(4)
    file._destroy()
    return path.read_bytes()


def test_a_journal_of_the_library_is_read_whole(written: bytes) -> None:
    assert journal.last_term(written) == 4


def test_an_empty_journal_of_the_library_has_no_term(tmp_path: Path) -> None:
    file = pysyncobj.journal.FileJournal(str(tmp_path / "j"))
    file._destroy()
    assert journal.last_term((tmp_path / "j").read_bytes()) == 0


def test_a_journal_cut_anywhere_within_its_records_is_refused(written: bytes) -> None:
    end = journal.HEADER.unpack_from(written)[3]
    for length in range(end):
        with pytest.raises(ValueError, match=r"bytes are less|records end at"):
            journal.last_term(written[:length])
    assert journal.last_term(written[:end]) == 4


@pytest.mark.parametrize(
    ("offset", "value", "match"),
    [
        (0, b"X", "does not begin"),
        (32, b"\x07", "format is 7"),
        (36, b"\xff\xff\xff", "records end"),
        (36, b"\x29", "torn"),
        (40, b"\xff", "torn"),
        (44, b"\x07", "entry 2 follows entry 7"),
        (52, b"\x09", "term 1 follows term 9"),
    ],
)
def test_damage_is_named(written: bytes, offset: int, value: bytes, match: str) -> None:
    damaged = written[:offset] + value + written[offset + len(value) :]
    with pytest.raises(ValueError, match=match):
        journal.last_term(damaged)


def test_term_and_vote_of_the_library_are_accepted(tmp_path: Path) -> None:
    storer = pysync.MetaStorer(str(tmp_path / "m"))
    assert storer.getMeta() == {}
    storer.storeMeta({"currentTerm": 4, "votedForNodeId": "127.0.0.1:7422", "raftCommitIndex": 9})
    journal.check_meta(storer.getMeta(), 4)
    journal.check_meta(None, 0)
    journal.check_meta({"raftCommitIndex": 1}, 0)


@pytest.mark.parametrize(
    ("meta", "term", "match"),
    [
        (None, 1, "missing"),
        ([], 0, "no record"),
        ({"currentTerm": "4"}, 0, "no such thing"),
        ({"currentTerm": 4, "votedForNodeId": 1}, 4, "no such thing"),
        ({"currentTerm": 3, "votedForNodeId": None}, 4, "behind"),
    ],
)
def test_a_lost_vote_is_named(meta: object, term: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        journal.check_meta(meta, term)
