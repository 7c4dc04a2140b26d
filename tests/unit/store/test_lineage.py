"""Which starts of a store are its whole continuation, and what is on disk of that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tidewarden.store.embedded import lineage
from tidewarden.store.embedded.lineage import KEPT_MAX, Lineage, continued

BEFORE = Lineage("boot 1", ("a", "b"), clean=False, place="7")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store's folder with data."""
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").touch()
    return tmp_path


def test_a_start_on_the_same_boot_continues() -> None:
    found = continued(BEFORE, "c", "boot 1", "7", whole=True)
    assert found == Lineage("boot 1", ("a", "b", "c"), clean=False, place="7")
    assert found.incarnation == "c"
    assert found.continues == ("a", "b")


@pytest.mark.parametrize(
    ("before", "boot", "place", "whole"),
    [
        pytest.param(None, "boot 1", "7", True, id="the first start"),
        pytest.param(BEFORE, "boot 2", "7", True, id="another boot"),
        pytest.param(BEFORE, "boot 1", "7", False, id="data that are not whole"),
        pytest.param(BEFORE, "boot 1", "8", True, id="a copy of the folder"),
        pytest.param(
            Lineage("boot 1", ("a",), clean=True, place="7"),
            "boot 1",
            "8",
            True,
            id="a copy of a folder at rest",
        ),
        pytest.param(
            Lineage("", ("a",), clean=False, place="7"), "", "7", True, id="unknown boots"
        ),
        pytest.param(
            Lineage("boot 1", ("a",), clean=True, place="7"),
            "boot 2",
            "7",
            False,
            id="an orderly end in the midst of a sync",
        ),
    ],
)
def test_what_may_have_lost_something_begins_anew(
    before: Lineage | None, boot: str, place: str, whole: bool
) -> None:
    assert continued(before, "c", boot, place, whole=whole).incarnations == ("c",)


def test_an_orderly_end_outlives_a_boot() -> None:
    before = Lineage("boot 1", ("a",), clean=True, place="7")
    found = continued(before, "c", "boot 2", "7", whole=True)
    assert found == Lineage("boot 2", ("a", "c"), clean=False, place="7")


def test_the_newest_starts_are_kept() -> None:
    many = tuple(str(number) for number in range(KEPT_MAX + 5))
    found = continued(Lineage("boot", many, False, "7"), "c", "boot", "7", whole=True)
    assert found.continues == many[-KEPT_MAX:]


def test_on_disk_starts_follow_each_other(folder: Path) -> None:
    assert lineage.read(folder) is None
    assert lineage.begin(folder, "a", "boot 1").incarnations == ("a",)
    assert lineage.begin(folder, "b", "boot 1").incarnations == ("a", "b")
    assert lineage.begin(folder, "c", "boot 2").incarnations == ("c",)
    lineage.end_cleanly(folder)
    assert lineage.begin(folder, "d", "boot 3").incarnations == ("c", "d")
    assert lineage.begin(folder, "e", "boot 4").incarnations == ("e",), "clean was said of c alone"
    assert lineage.read(folder) == Lineage("boot 4", ("e",), False, lineage.place_of(folder))


def test_a_sync_that_was_not_over_begins_anew_and_once(folder: Path) -> None:
    lineage.begin(folder, "a", "boot")
    lineage.mark_syncing(folder)
    lineage.end_cleanly(folder)
    assert lineage.begin(folder, "b", "boot").incarnations == ("b",)
    assert lineage.begin(folder, "c", "boot").incarnations == ("b", "c")


def test_a_sync_that_is_over_leaves_nothing(folder: Path) -> None:
    lineage.begin(folder, "a", "boot")
    lineage.mark_syncing(folder)
    lineage.mark_syncing(folder)
    lineage.clear_syncing(folder)
    lineage.clear_syncing(folder)
    assert lineage.begin(folder, "b", "boot").incarnations == ("a", "b")


def test_a_start_that_was_killed_before_its_lineage_was_written_finds_the_marker_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage.begin(folder, "a", "boot")
    lineage.mark_syncing(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            lineage.begin(folder, "b", "boot")
    assert lineage.begin(folder, "c", "boot").incarnations == ("c",)


def test_data_that_are_gone_are_continued_by_nobody(folder: Path) -> None:
    lineage.begin(folder, "a", "boot")
    (folder / "appendonlydir" / "appendonly.aof.manifest").unlink()
    assert lineage.begin(folder, "b", "boot").incarnations == ("b",)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"boot_id": "boot"}', '{"boot_id": "boot", "incarnations": []}', "7"],
)
def test_what_cannot_be_read_is_no_lineage(folder: Path, text: str) -> None:
    (folder / "lineage.json").write_text(text)
    assert lineage.read(folder) is None
    assert lineage.begin(folder, "b", "boot").incarnations == ("b",)


def test_a_copy_that_took_the_folders_place_begins_anew(folder: Path) -> None:
    """Also one that got the number of the folder that was removed, as file systems do."""
    lineage.begin(folder, "a", "boot")
    lineage.end_cleanly(folder)
    copy = folder / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy2(file, copy / file.name)
            file.unlink()
    for file in copy.iterdir():
        shutil.copy2(file, folder / file.name)
    assert lineage.begin(folder, "b", "boot").incarnations == ("b",)
    moved = folder.rename(folder.with_name("moved"))
    assert lineage.begin(moved, "c", "boot").incarnations == ("b", "c"), "moved, it is itself"


def test_this_host_has_a_boot() -> None:
    assert lineage.boot_id() == lineage.boot_id()
    assert len(lineage.boot_id()) == 36
