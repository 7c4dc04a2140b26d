"""
The log's file on a disk that is full: an entry is added whole or not at all, and the process lives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.inspect import close_file

from tidewarden.raft import journal, pysync  # noqa: F401  # pysync has the log's class use our files
from tidewarden.raft.log_file import LogFile


def entries(log: Any) -> list[tuple[bytes, int, int]]:
    return [log[number] for number in range(len(log))]


def fill(log: Any, first: int, count: int) -> None:
    for index in range(first, first + count):
        log.add(b"command %d " % index * 8, index, 1)
    log.sync()


@pytest.mark.thorough
def test_what_finds_no_room_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "raft.journal"
    log = LogFile(str(file))
    fill(log, 1, 20)
    before = entries(log)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            fill(log, 21, 1000)
    log.sync()
    added = len(log)
    assert entries(log)[:20] == before
    assert journal.last_term(file.read_bytes()) == 1
    fill(log, added + 1, 100)
    close_file(log)
    again = LogFile(str(file))
    assert [index for _, index, _ in entries(again)] == list(range(1, added + 101))
    close_file(again)


def test_a_file_that_stock_has_made_with_holes_is_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "raft.journal"
    log = LogFile(str(file))
    fill(log, 1, 3)
    close_file(log)
    with file.open("r+b") as raw:
        raw.truncate(2**20)
    close_file(LogFile(str(file)))
    assert file.stat().st_blocks * 512 >= 2**20


# Arguments: a folder on a small disk. Fills the disk, then adds entries until there is no room.
FULL = """\
import sys
from pathlib import Path
from tidewarden.raft import pysync
from tidewarden.raft.log_file import LogFile
folder = Path(sys.argv[1])
log = LogFile(str(folder / "raft.journal"))
try:
    with (folder / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
try:
    for index in range(1, 100_000):
        log.add(b"x" * 100, index, 1)
except OSError as error:
    print(error.errno, len(log))
"""


@pytest.mark.thorough
def test_a_full_disk_ends_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    number, _ = done.stdout.split()
    assert number == "28"
