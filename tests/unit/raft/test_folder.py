"""A Raft folder is taken by one process at a time, and not begun with files that cannot be read."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pysyncobj.journal
import pytest
from support.inspect import close_file

from tidewarden.errors import ConfigError
from tidewarden.raft import folder, wire


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A folder as the library leaves it in term 4."""
    journal = pysyncobj.journal.FileJournal(str(tmp_path / folder.JOURNAL))
    journal.setCurrentTerm(4, "127.0.0.1:7422")
    journal.add(b"\x01", 1, 0)
    journal.add(b"\x01", 2, 4)
    close_file(journal)
    return tmp_path


def test_whole_files_and_none_at_all_are_accepted(used: Path) -> None:
    folder.check(used)
    with gzip.open(used / folder.DUMP, "wb") as dump:
        dump.write(pickle.dumps(({"epoch": 1}, (b"", 1, 1), (b"", 2, 1), {wire.TCPNode("h:1")}), 2))
    folder.check(used)
    for file in used.iterdir():
        file.unlink()
    folder.check(used)


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        (folder.JOURNAL, b"garbage", "journal: cannot be trusted: 7 bytes"),
        (folder.JOURNAL, None, "journal: cannot be trusted: it is missing"),
        (folder.META, b"", "meta: cannot be trusted"),
        (folder.META, b"garbage", "meta: cannot be trusted"),
        (
            folder.META,
            None,
            "meta: cannot be trusted: it is missing, though the journal has reached term 4",
        ),
        (folder.META, pickle.dumps(Path("/")), "meta: cannot be trusted: pathlib.* is not allowed"),
        (folder.DUMP, b"garbage", "dump: cannot be trusted"),
        (folder.DUMP, gzip.compress(b"garbage"), "dump: cannot be trusted"),
    ],
    ids=[
        "journal",
        "no journal",
        "empty meta",
        "meta",
        "no meta",
        "hostile meta",
        "dump",
        "packed dump",
    ],
)
def test_an_unreadable_file_is_named_with_the_way_out(
    used: Path, file: str, content: bytes | None, match: str
) -> None:
    if content is None:
        (used / file).unlink()
    else:
        (used / file).write_bytes(content)
    with pytest.raises(ConfigError, match=match) as caught:
        folder.check(used)
    assert f"move {folder.JOURNAL}" in str(caught.value)


def test_a_file_cut_at_any_length_is_refused(used: Path) -> None:
    for file, least in ((folder.META, 0), (folder.JOURNAL, 1)):
        whole = (used / file).read_bytes()
        end = len(whole) if file == folder.META else 40 + 25 * 2
        for length in range(least, end):
            (used / file).write_bytes(whole[:length])
            with pytest.raises(ConfigError):
                folder.check(used)
        (used / file).write_bytes(whole)
    folder.check(used)


def test_a_journal_without_a_byte_is_a_new_members(tmp_path: Path) -> None:
    (tmp_path / folder.JOURNAL).touch()
    folder.check(tmp_path)
    assert not (tmp_path / folder.JOURNAL).exists()


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "deep" / "n0"
    descriptor = folder.take(path)
    yield path
    os.close(descriptor)


def test_a_folder_is_made_and_taken_once(taken: Path) -> None:
    with pytest.raises(ConfigError, match=f"{taken}, in use by another node"):
        folder.take(taken)


def test_a_folder_that_was_left_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        os.close(folder.take(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"node\.data_dir: found .*file.*allowed: a folder"):
        folder.take(tmp_path / "file" / "n0")


def test_a_folder_has_a_mark_of_its_own(tmp_path: Path) -> None:
    """By which a node that is started again is told from another of the same name."""
    marks = []
    for name in ("a", "b"):
        os.close(folder.take(tmp_path / name))
        marks.append(folder.mark(tmp_path / name))
        os.close(folder.take(tmp_path / name))
        assert folder.mark(tmp_path / name) == marks[-1]
    assert len(set(marks)) == 2
    assert folder.mark(tmp_path / "none") == "", "it goes without where it cannot be written"
