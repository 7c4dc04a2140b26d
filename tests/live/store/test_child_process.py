"""Children and the folder lock, against small real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidewarden.clock import SystemClock
from tidewarden.errors import ConfigError
from tidewarden.store.child_process import FolderLock, how_ended, start_child, stop_child

CLOCK = SystemClock()


async def child_of(
    path: Path, program: str, *, keep_fds: list[int] | None = None
) -> asyncio.subprocess.Process:
    with path.open("wb") as output:
        return await start_child(
            [sys.executable, "-c", program], output=output, keep_fds=keep_fds or []
        )


async def test_a_child_has_a_group_of_its_own_and_files_for_its_owner(tmp_path: Path) -> None:
    program = (
        f"import os; open({str(tmp_path / 'made')!r}, 'w'); print(os.getpgid(0) == os.getsid(0) =="
        " os.getpid())"
    )
    process = await child_of(tmp_path / "out", program)
    assert await process.wait() == 0
    assert (tmp_path / "out").read_text() == "True\n"
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0


async def test_stop_asks_first_and_kills_after_the_grace(tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up',"
        " flush=True); time.sleep(60)"
    )
    for given, ends_itself in (
        ("import time; print('up', flush=True); time.sleep(60)", True),
        (program, False),
    ):
        process = await child_of(tmp_path / "out", given)
        async with asyncio.timeout(30):
            while not (tmp_path / "out").read_bytes():
                await asyncio.sleep(0.01)
        assert await stop_child(process, CLOCK, 20 if ends_itself else 0.2) is ends_itself
        assert process.returncode == (-15 if ends_itself else -9)
        assert await stop_child(process, CLOCK, 1), "stopped already"


def test_ends_in_words() -> None:
    assert how_ended(3) == "ended with status 3"
    assert how_ended(-9) == "was killed by SIGKILL"
    assert how_ended(-120) == "was killed by signal 120"
    assert how_ended(None) == "still runs"


async def test_a_lock_names_its_holder_and_can_be_given_back(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    await first.acquire(CLOCK)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()};"):
        await second.acquire(CLOCK)
    first.release()
    first.release()
    await second.acquire(CLOCK)
    second.release()


async def test_a_lock_is_lost_with_its_file(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert not first.is_held
    await first.acquire(CLOCK)
    assert first.is_held
    (tmp_path / "lock").unlink()
    assert not first.is_held
    await second.acquire(CLOCK)
    assert second.is_held
    assert not first.is_held, "the file that is there is another's"
    first.release()
    second.release()


async def test_a_lock_beside_a_folder_outlives_it(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first, second = FolderLock(folder, beside=True), FolderLock(folder, beside=True)
    await first.acquire(CLOCK)
    folder.mkdir(exist_ok=True)
    folder.rmdir()
    assert first.is_held
    with pytest.raises(ConfigError, match=f"{folder}: in use by process"):
        await second.acquire(CLOCK)
    first.release()


HOLDER = """
import asyncio, sys
from pathlib import Path
from tidewarden.clock import SystemClock
from tidewarden.store.child_process import FolderLock
async def main():
    lock = FolderLock(Path(sys.argv[1]))
    await lock.acquire(SystemClock())
    import subprocess
    child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[lock.fd], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
asyncio.run(main())
"""


async def test_children_of_a_dead_holder_are_waited_for(tmp_path: Path) -> None:
    held = subprocess.run(
        [sys.executable, "-c", HOLDER, str(tmp_path), "30"], check=True, stdout=subprocess.PIPE
    )
    lock = FolderLock(tmp_path)
    acquiring = asyncio.ensure_future(lock.acquire(CLOCK))
    await asyncio.sleep(0.2)
    assert not acquiring.done()
    os.kill(int(held.stdout), 9)
    await acquiring
    lock.release()


async def test_children_that_stay_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewarden.store.child_process.LEFTOVER_WAIT_S", 0.2)
    held = subprocess.run(
        [sys.executable, "-c", HOLDER, str(tmp_path), "30"], check=True, stdout=subprocess.PIPE
    )
    try:
        with pytest.raises(ConfigError, match="processes of a daemon that died still hold"):
            await FolderLock(tmp_path).acquire(CLOCK)
    finally:
        os.kill(int(held.stdout), 9)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/data: cannot be written"):
        await FolderLock(tmp_path / "file" / "data").acquire(CLOCK)


async def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\)"):
        await FolderLock(tmp_path).acquire(CLOCK)
