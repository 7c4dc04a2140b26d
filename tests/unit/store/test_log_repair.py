"""Zeros between the commands of a store's log are taken out; nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewarden.store.embedded.log_repair import mend, refused

COMMANDS = (
    b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n",
    b"#TS:1700000000\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$6\r\n\0\0*1\r\n\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*2\r\n$4\r\nINCR\r\n$0\r\n\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
)
WHOLE = b"".join(COMMANDS)
BOUNDARIES = [sum(map(len, COMMANDS[:count])) for count in range(len(COMMANDS) + 1)]


def file_of(folder: Path, data: bytes) -> Path:
    file = folder / "appendonly.aof.2.incr.aof"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("at", range(len(WHOLE) + 1))
def test_zeros_are_taken_out_between_commands_alone(tmp_path: Path, at: int) -> None:
    with_zeros = WHOLE[:at] + bytes(5000) + WHOLE[at:]
    file = file_of(tmp_path, with_zeros)
    assert mend(file) == (5000 if at in BOUNDARIES else 0)
    assert file.read_bytes() == (WHOLE if at in BOUNDARIES else with_zeros)
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_that_was_full_several_times(tmp_path: Path) -> None:
    file = file_of(tmp_path, b"".join(bytes(one) + COMMANDS[one] for one in range(6)) * 2)
    assert mend(file) == 30
    assert file.read_bytes() == WHOLE * 2


@pytest.mark.parametrize("kept", range(1, len(WHOLE)))
def test_a_last_command_that_was_cut_short_stays(tmp_path: Path, kept: int) -> None:
    file = file_of(tmp_path, bytes(3) + WHOLE[:kept])
    assert mend(file) == 3
    assert file.read_bytes() == WHOLE[:kept]


@pytest.mark.parametrize("at", BOUNDARIES[:-1])
def test_a_log_that_is_damaged_otherwise_is_left_alone(tmp_path: Path, at: int) -> None:
    data = bytes(3) + WHOLE[:at] + b"garbage\r\n" + WHOLE[at:]
    file = file_of(tmp_path, data)
    assert mend(file) == 0
    assert file.read_bytes() == data


BAD = "1:S 27 Nov 2026 00:07:46.928 # Bad file format reading the append only file x.8.incr.aof: m"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        pytest.param(f"1:S * DB loaded\n{BAD}ake a backup of it\n", "x.8.incr.aof", id="format"),
        pytest.param(
            "1:M # Error reading the RDB base file x.1.base.rdb, AOF loading aborted",
            "x.1.base.rdb",
            id="base",
        ),
        pytest.param(
            "1:M # Unrecoverable error reading the append only file x.1.incr.aof: I/O error",
            "x.1.incr.aof",
            id="disk",
        ),
        pytest.param(f"{BAD}\n2:S * Ready to accept connections unix\n", "", id="mended since"),
        pytest.param("1:M # Failed listening on port 1, aborting.", "", id="another reason"),
        pytest.param("", "", id="nothing was said"),
    ],
)
def test_what_the_server_said_last_names_the_file(tmp_path: Path, said: str, name: str) -> None:
    log = tmp_path / "valkey.log"
    assert refused(log) == ""
    log.write_text("a" * 9000 + "\n" + said)
    assert refused(log) == name
