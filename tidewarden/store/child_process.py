"""
Starts child processes that cannot outlive us, and locks a data folder against a second daemon.

A signal handler is not enough to leave no process behind: we may be killed with SIGKILL. So a child
asks the kernel for a signal at its parent's death (Linux's PR_SET_PDEATHSIG). It must ask for
itself, between fork and exec; Python's ``preexec_fn`` is unsafe where there are threads, so a few
lines of Python ask and then become the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tidewarden.clock import Clock, sleep
from tidewarden.errors import ConfigError

LEFTOVER_WAIT_S = 5.0
"""How long a new daemon waits for the last children of a killed one to be gone."""

# Arguments: parent's pid, program, its arguments. A parent that died before the question was asked
# sends no signal any more, hence the look at getppid.
_BECOME = """\
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(0)
os.umask(0o077)
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


async def start_child(
    argv: Sequence[str],
    *,
    output: IO[bytes],
    keep_fds: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> asyncio.subprocess.Process:
    """
    Start ``argv`` in a session of its own, where Ctrl-C does not reach it.

    The kernel kills the child when this process dies, by SIGKILL, because another signal could be
    sat out. Writes that a store which syncs once a second has answered need not be in the kernel's
    hands by then: while a sync is under way the store puts its writes off, for two seconds at most,
    and answers. A write that must not be lost waits for the disk (see
    :mod:`tidewarden.store.durability.fsync_commit`).

    Call it from a thread that lives as long as the process does: the kernel means the thread when
    it says parent.

    Args:
        argv: the program by absolute path, and its arguments.
        output: where its standard output and error go.
        keep_fds: file descriptors it inherits, a folder's lock for instance.
        environ: its environment; ``None`` is ours.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-c", _BECOME, str(os.getpid())),
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=tuple(keep_fds),
        start_new_session=True,
        env=dict(environ) if environ is not None else None,
    )


async def stop_child(process: asyncio.subprocess.Process, clock: Clock, grace_s: float) -> bool:
    """
    End a child: SIGTERM, at most ``grace_s`` seconds, then SIGKILL for its whole group.

    Returns: whether it ended by itself. Ended children are no error.
    """
    if process.returncode is not None:
        return True
    # Not by the process object: asyncio's looks first whether it has ended, and takes its status
    # from whoever waits for it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
        # one that was stopped with SIGSTOP could not hear the first
        os.kill(process.pid, signal.SIGCONT)
    ended = asyncio.ensure_future(process.wait())
    limit = asyncio.ensure_future(sleep(clock, grace_s))
    try:
        await asyncio.wait({ended, limit}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return True
        kill_group(process)
        await ended
        return False
    finally:
        limit.cancel()
        ended.cancel()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to a child and to the processes that it started itself."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # Before the child's setsid its group is still ours, and killpg finds none.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def how_ended(returncode: int | None) -> str:
    """Word an exit status: ``ended with status 1``, ``was killed by SIGKILL``."""
    if returncode is None:
        return "still runs"
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


class FolderInUse(ConfigError):
    """Another process that lives has the folder's lock."""

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(
            [f"data folder {folder}: in use by process {pid}; stop that one or name another folder"]
        )
        self.pid = pid
        """The process that took the lock; its children may write in the folder, too."""


class FolderLock:
    """
    Grants the right to use a folder.

    It is an exclusive ``flock`` on the file ``lock`` in it, which names its holder's pid; or, where
    the folder itself may be removed, on a file beside it.

    Hand :attr:`fd` to children that write there: the lock then lasts until the last of them is
    gone, and a daemon started after a SIGKILL waits for them instead of running beside them.
    """

    def __init__(self, folder: Path, *, beside: bool = False) -> None:
        self.folder = folder
        self._path = folder.with_name(f"{folder.name}.lock") if beside else folder / "lock"
        self.fd = -1

    @property
    def is_held(self) -> bool:
        """
        Return whether the lock is held on the file that is there now, not on one that was removed.
        """
        if self.fd < 0:
            return False
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # a disk that fails is no other's folder
        return os.path.samestat(there, os.fstat(self.fd))

    async def acquire(self, clock: Clock) -> None:
        """
        Take the lock; wait at most ``LEFTOVER_WAIT_S`` when only children of a dead holder have it.

        Raises:
            FolderInUse: a living process holds it; its pid is named.
            ConfigError: the folder cannot be made or written.
        """
        path = self._path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                [f"data folder {self.folder}: cannot be written ({error.strerror})"]
            ) from None
        try:
            until = clock.monotonic() + LEFTOVER_WAIT_S
            while not _try_lock(fd):
                pid = _read_pid(fd)
                if pid and _alive(pid):
                    raise FolderInUse(self.folder, pid)
                if clock.monotonic() > until:
                    raise ConfigError(
                        [
                            f"data folder {self.folder}: processes of a daemon that died still hold"
                            f" {path}; see them with: fuser -v {path}"
                        ]
                    )
                await sleep(clock, 0.1)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise ConfigError(
                    [f"data folder {self.folder}: cannot be written ({error.strerror})"]
                ) from None
            raise
        self.fd = fd

    def release(self) -> None:
        """Release the lock; harmless when it is not held."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A killed process that nobody has waited for yet (a container without init) answers too, but
    # holds nothing.
    with contextlib.suppress(OSError):
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    return True
