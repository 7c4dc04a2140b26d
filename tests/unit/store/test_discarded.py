"""Data that are set aside: kept only if they are gone from the store, and two of them."""

from __future__ import annotations

from pathlib import Path

from tidewarden.store.embedded.discarded import listed, set_aside, settle


def log_of(folder: Path, base: int, text: str) -> None:
    """What a server has, after its log got that base: the files before are gone."""
    log = folder / "appendonlydir"
    log.mkdir(exist_ok=True)
    for file in log.iterdir():
        file.unlink()
    (log / f"a.aof.{base}.base.rdb").write_text(text)
    (log / f"a.aof.{base}.incr.aof").write_text(text)
    (log / "a.aof.manifest").write_text(
        f"file a.aof.{base}.base.rdb seq {base} type b\nfile a.aof.{base}.incr.aof seq 1 type i\n"
    )


def test_what_the_store_still_has_is_dropped(tmp_path: Path) -> None:
    log_of(tmp_path, 1, "own")
    place = set_aside(tmp_path, 3, 9, "n0.a", 1000)
    assert place is not None
    assert (place / "a.aof.1.incr.aof").read_text() == "own"
    assert listed(tmp_path) == []  # it is not known yet whether it is gone
    assert settle(tmp_path) == []
    assert not place.exists()


def test_what_a_whole_copy_has_replaced_is_kept_and_listed(tmp_path: Path) -> None:
    log_of(tmp_path, 1, "own")
    place = set_aside(tmp_path, 3, 9, "n0.a", 1000)
    log_of(tmp_path, 2, "the primary's")
    assert settle(tmp_path) == [(place, True)]
    assert settle(tmp_path) == []
    (one,) = listed(tmp_path)
    facts = {name: one[name] for name in ("path", "view", "seq", "member", "at_ms")}
    assert facts == {"path": str(place), "view": 3, "seq": 9, "member": "n0.a", "at_ms": 1000}
    assert one["bytes"] > 6
    assert (Path(one["path"]) / "a.aof.1.incr.aof").read_text() == "own"


def test_two_are_kept(tmp_path: Path) -> None:
    for turn in range(4):
        log_of(tmp_path, turn, "own")
        set_aside(tmp_path, turn, 0, "n0.a", 1000 + turn)
        log_of(tmp_path, turn + 1, "the primary's")
        settle(tmp_path)
    assert [one["view"] for one in listed(tmp_path)] == [2, 3]


def test_the_same_data_are_set_aside_once(tmp_path: Path) -> None:
    log_of(tmp_path, 1, "own")
    assert set_aside(tmp_path, 3, 9, "n0.a", 1000) == set_aside(tmp_path, 3, 9, "n0.a", 2000)


def test_of_an_attempt_that_was_cut_short_nothing_stays(tmp_path: Path) -> None:
    log_of(tmp_path, 1, "own")
    place = set_aside(tmp_path, 3, 9, "n0.a", 1000)
    assert place is not None
    (place / "note.json").write_text("{")
    log_of(tmp_path, 2, "the primary's")
    assert settle(tmp_path) == []
    assert not place.exists()


def test_a_store_without_a_log_has_nothing(tmp_path: Path) -> None:
    assert set_aside(tmp_path, 0, 0, "n0.a", 1000) is None
    assert settle(tmp_path) == listed(tmp_path) == []


def test_what_nobody_misses_is_told_from_what_somebody_may(tmp_path: Path) -> None:
    log_of(tmp_path, 1, "own")
    place = set_aside(tmp_path, 3, 9, "n0.a", 1000, missed=False)
    log_of(tmp_path, 2, "the primary's")
    assert settle(tmp_path) == [(place, False)]
