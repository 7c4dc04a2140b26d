"""Raft files that cannot be trusted are told from whole ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pysyncobj.journal
import pytest
from support.inspect import close_file

from tidewarden.raft import files, journal


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    """
    A journal as the library writes it: terms 0, 1, 1, 4, one entry of which was cut off again.
    """
    path = tmp_path / "raft.journal"
    file = pysyncobj.journal.FileJournal(str(path))
    for index, term in enumerate([0, 1, 1, 4, 9], start=1):
        file.add(b"x" * index * 40, index, term)
    file.deleteEntriesFrom(4)
    close_file(file)
    return path.read_bytes()


def test_a_journal_of_the_library_is_read_whole(written: bytes) -> None:
    assert journal.last_term(written) == 4


def test_an_empty_journal_of_the_library_has_no_term(tmp_path: Path) -> None:
    file = pysyncobj.journal.FileJournal(str(tmp_path / "j"))
    close_file(file)
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
    storer = files.MetaStorer(str(tmp_path / "m"))
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


def test_every_state_that_a_power_cut_can_leave_is_a_whole_journal(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    file = pysyncobj.journal.FileJournal(str(path))
    assert type(file) is files.FileJournal
    on_disk: list[bytes] = []
    flush = file.flush
    file.flush = lambda: (flush(), on_disk.append(path.read_bytes()))
    for index, term in enumerate([0, 1, 1, 4, 9], start=1):
        file.add(b"x" * index * 400, index, term)
        if index != 4:  # which comes together with the next
            file.sync()
            assert journal.last_term(on_disk[-1]) == term  # before anybody hears of it
    synced = len(on_disk)
    file.sync()
    assert len(on_disk) == synced, "there was nothing to sync"
    file.add(b"y", 6, 9)
    file.deleteEntriesFrom(2)
    assert journal.last_term(on_disk[-1]) == 1
    for data in on_disk:
        journal.last_term(data)
    close_file(file)


def test_term_and_vote_are_on_the_disk_before_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        steps.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    file = pysyncobj.journal.FileJournal(str(tmp_path / "raft.journal"))
    steps.clear()
    file.setCurrentTerm(3, "n1:1")
    assert steps == ["file", "replace", "folder"]
    file.setRaftCommitIndex(7)
    for _ in range(3):
        file.setRaftCommitIndex(7)
        file.onOneSecondTimer()
    # nothing is written again that did not change
    assert steps == ["file", "replace", "folder"] * 2
    close_file(file)
    file = pysyncobj.journal.FileJournal(str(tmp_path / "raft.journal"))
    assert (file.getCurrentTerm(), file.getVotedForNodeId(), file.getRaftCommitIndex()) == (
        3,
        "n1:1",
        7,
    )
    close_file(file)
