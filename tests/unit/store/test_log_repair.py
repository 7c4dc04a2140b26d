"""Zeros between the commands of a store's log become remarks; nothing else is touched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidewarden.store.embedded import damaged_log, log_repair
from tidewarden.store.embedded.log_repair import ZEROS_MIN, mend

COMMANDS = (
    b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n",
    b"#TS:1700000000\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$16\r\n\r\n\0\0\0\0\0\0\0\0*1\r\n\r\n\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*2\r\n$4\r\nINCR\r\n$0\r\n\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
)
WHOLE = b"".join(COMMANDS)
BOUNDARIES = [sum(map(len, COMMANDS[:count])) for count in range(len(COMMANDS) + 1)]
REMARKS = re.compile(rb"(?:# {0,1021}\n)+")


def file_of(folder: Path, data: bytes) -> Path:
    """A log of a base and two increments, of which the server writes to the one with that data."""
    log = folder / "appendonlydir"
    log.mkdir()
    (log / "a.aof.manifest").write_text(
        "file a.aof.2.base.rdb seq 2 type b\n"
        "file a.aof.9.incr.aof seq 9 type i\nfile a.aof.10.incr.aof seq 10 type i\n"
    )
    for name in ("a.aof.2.base.rdb", "a.aof.9.incr.aof"):
        (log / name).write_bytes(bytes(100))
    file = log / "a.aof.10.incr.aof"
    file.write_bytes(data)
    return file


def mended(file: Path, length: int) -> bytes:
    """What a server reads then; it is as long as before."""
    data = file.read_bytes()
    assert len(data) == length
    return REMARKS.sub(b"", data)


@pytest.mark.parametrize("at", range(len(WHOLE) + 1))
@pytest.mark.parametrize("zeros", [5000, ZEROS_MIN - 1])
def test_zeros_are_mended_between_commands_alone(tmp_path: Path, at: int, zeros: int) -> None:
    with_zeros = WHOLE[:at] + bytes(zeros) + WHOLE[at:]
    file = file_of(tmp_path, with_zeros)
    if at in BOUNDARIES and zeros >= ZEROS_MIN:
        assert mend(tmp_path) == zeros
        assert mended(file, len(with_zeros)) == WHOLE
        assert mend(tmp_path) == 0
    else:
        assert mend(tmp_path) == 0
        assert file.read_bytes() == with_zeros
    assert (file.parent / "a.aof.9.incr.aof").read_bytes() == bytes(100)


@pytest.mark.parametrize("zeros", [8, 9, 10, 511, 512, 513, 514, 1023, 1024, 1025, 1537])
def test_any_length_is_mended(tmp_path: Path, zeros: int) -> None:
    file = file_of(tmp_path, WHOLE + bytes(zeros) + WHOLE)
    assert mend(tmp_path) == zeros
    assert mended(file, 2 * len(WHOLE) + zeros) == 2 * WHOLE
    assert max(map(len, file.read_bytes().split(b"\n"))) < 1024


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 100])
def test_zeros_in_several_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(log_repair, "CHUNK_BYTES", 10 + chunk_bytes)
    data = b"".join(bytes(20 + one) + COMMANDS[one] for one in range(6)) * 2
    file = file_of(tmp_path, data)
    assert mend(tmp_path) == len(data) - 2 * len(WHOLE)
    assert mended(file, len(data)) == WHOLE * 2


@pytest.mark.parametrize("kept", range(len(WHOLE)))
def test_a_last_command_that_was_cut_short_stays(tmp_path: Path, kept: int) -> None:
    data = bytes(9) + WHOLE[:kept]
    file = file_of(tmp_path, data)
    assert mend(tmp_path) == 9
    assert mended(file, len(data)) == WHOLE[:kept]


@pytest.mark.parametrize("at", BOUNDARIES[:-1])
def test_a_log_that_is_damaged_otherwise_is_left_alone(tmp_path: Path, at: int) -> None:
    data = bytes(9) + WHOLE[:at] + b"garbage\r\n" + WHOLE[at:]
    file = file_of(tmp_path, data)
    assert mend(tmp_path) == 0
    assert file.read_bytes() == data


def test_nothing_to_mend(tmp_path: Path) -> None:
    assert mend(tmp_path) == 0
    file = file_of(tmp_path, b"")
    assert mend(tmp_path) == 0
    file.unlink()
    assert mend(tmp_path) == 0


def test_a_log_that_somebody_mended_is_not_set_aside(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"garbage")
    assert not damaged_log.give_up(tmp_path)
    damaged_log.tell(tmp_path, file)
    assert damaged_log.told(tmp_path) == str(file)
    assert not damaged_log.is_given_up(tmp_path)
    assert damaged_log.give_up(tmp_path)
    assert damaged_log.told(tmp_path) == ""
    assert damaged_log.is_given_up(tmp_path)
    file.write_bytes(WHOLE)
    assert not damaged_log.is_given_up(tmp_path)
    damaged_log.forget(tmp_path)
    damaged_log.forget(tmp_path)
    assert list(tmp_path.iterdir()) == [file.parent]
