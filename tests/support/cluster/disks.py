"""
Disks for live tests: slow ones (an LD_PRELOAD of ours delays fsync, fdatasync and msync) and full
ones (a small tmpfs).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE_NAME = "tidewarden-test-"
SOURCE = Path(__file__).with_name("slow_disk.c")


def missing_compiler() -> str:
    """Why no disk can be slow here; empty when it can."""
    return "" if shutil.which("gcc") else "no gcc on PATH (Debian: gcc)"


def missing_mounts(folder: Path) -> str:
    """Why no tmpfs can be mounted here; empty when it can."""
    if os.geteuid() != 0:
        return "mounting a tmpfs needs root"
    probe = folder / "probe"
    probe.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "none", str(probe)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"no tmpfs: {done.stderr.strip()}"
    subprocess.run(["umount", str(probe)], check=True)
    return ""


def build(folder: Path) -> Path:
    """Compile the library that delays."""
    library = folder / "slow_disk.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    return library


def forget_the_dead() -> None:
    """Unmount what a run that was killed left behind; its process id is in the name."""
    for line in Path("/proc/mounts").read_text().splitlines():
        source, folder, *_ = line.split(" ")
        if (
            source.startswith(SOURCE_NAME)
            and not Path(f"/proc/{source.removeprefix(SOURCE_NAME)}").exists()
        ):
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


class SlowDisk:
    """How slow one process's disk is. ``environ`` is for its start."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self._file.write_bytes(struct.pack("i", 0))
        self._synced = file.with_name(file.name + ".synced")
        self.environ = {
            "LD_PRELOAD": str(library),
            "SLOW_DISK": str(file),
            "SLOW_DISK_SYNCED": str(self._synced),
        }

    def delay(self, ms: int) -> None:
        """Every sync takes so many milliseconds longer from now on; 0: none."""
        with self._file.open("r+b") as file:  # in place: the process has it mapped
            file.write(struct.pack("i", ms))

    def cut_the_power(self, folder: Path) -> None:
        """The process has ended: whatever it wrote there behind its last sync is gone."""
        told = struct.iter_unpack("qq", self._synced.read_bytes())
        length = dict(told)
        for path in folder.rglob("*.incr.aof"):
            os.truncate(path, length.get(path.stat().st_ino, 0))


class SmallDisk:
    """A tmpfs at ``folder`` that can be filled to the last byte."""

    def __init__(self, folder: Path, size_bytes: int = 16 * 2**20) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        forget_the_dead()
        source = f"{SOURCE_NAME}{os.getpid()}"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", source, str(folder)], check=True
        )
        self._ballast = folder / "ballast"

    def fill(self, free_bytes: int = 0) -> None:
        """Not a byte is left, or so many are."""
        with self._ballast.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            file.truncate(file.tell() - free_bytes)

    def free(self) -> None:
        """There is room again."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
