"""Holds the folder of one valkey-server: its settings, log, socket, and the right to run it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidewarden.clock import Clock
from tidewarden.errors import ConfigError
from tidewarden.store.child_process import FolderLock, how_ended, start_child
from tidewarden.store.preflight import LISTPACKS

from . import log_repair
from .binary import OLDEST, find_binary

log = logging.getLogger("tidewarden.store")

SOCKET_PATH_BYTES_MAX = 107
LOG_BYTES_MAX = 16 * 1024 * 1024
_DAMAGED = re.compile(r" # Bad file format reading the append only file (\S+\.incr\.aof):")
Setting = tuple[str, str]
"""A setting's name, and the rest of its line, quoted where that is needed: see :func:`quoted`."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Holds one start of a server."""

    process: asyncio.subprocess.Process
    log_path: Path
    log_from: int
    """The offset in its log at which this start begins."""

    def damaged_file(self) -> str:
        """Return which file of its log the server has refused as damaged; empty: none."""
        found = [_DAMAGED.search(line) for line in self._lines()[-1:]]
        return found[0][1] if found and found[0] else ""

    def _lines(self) -> list[str]:
        with self.log_path.open("rb") as file:
            file.seek(self.log_from)
            return file.read(65_536).decode(errors="replace").strip().splitlines()

    def why_ended(self, error: BaseException | None = None) -> str:
        """
        Word why the server ended, by its last log line, which says more than a refused connection.
        """
        lines = self._lines()
        # Its warnings (of the host's settings, say) are no reason to end.
        told = [line for line in lines if " # " in line and " # WARNING " not in line] or lines
        last = told[-1].strip() if told else "nothing"
        if not told and error is not None:
            last = f"{type(error).__name__}: {error}"
        ended = how_ended(self.process.returncode)
        return f"valkey-server {ended}; it said: {last} (all of it: {self.log_path})"


class ServerFolder:
    """Holds the folder of one valkey-server, which only the holder of its locks may start."""

    def __init__(
        self,
        path: Path,
        binary: str,
        oldest: tuple[int, int] = OLDEST,
        *,
        replaceable: bool = False,
    ) -> None:
        """
        Args:
            path: made when absent, by :meth:`take`.
            binary: ``store.binary``; with ``oldest`` as :func:`find_binary` takes them.
            replaceable: whether the store goes on with an empty folder when it was removed, as one
                of several does. The right to it is then held beside it, too.
        """
        self.path = path.absolute()
        # the lock in the folder is what versions before this one know of, and moves along with it
        beside = (FolderLock(self.path, beside=True),) if replaceable else ()
        self._locks = (*beside, FolderLock(self.path))
        self._binary, self._oldest = binary, oldest

    @property
    def socket_path(self) -> Path:
        """
        Return the path of the Unix socket.

        It is ``s`` in the folder, or, as the kernel takes no path above 107 bytes, a short one in
        ``/tmp`` that follows from the folder's name.
        """
        path = self.path / "s"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:20]
        return Path(f"/tmp/tidewarden-{os.getuid()}") / name

    @property
    def log_path(self) -> Path:
        """Return the file that has the server's log."""
        return self.path / "valkey.log"

    def usual_settings(self) -> list[Setting]:
        """Return the settings with which every store of ours is started, alone or not."""
        return [
            ("unixsocket", quoted(str(self.socket_path))),
            ("unixsocketperm", "600"),
            ("dir", quoted(str(self.path))),
            ("daemonize", "no"),
            ("logfile", '""'),
            ("save", '""'),
            ("appendonly", "yes"),
            # nobody else comes for a copy (see snapshot) meanwhile
            ("repl-diskless-sync-delay", "0"),
            ("maxmemory-policy", "noeviction"),
            *((name, str(value)) for name, value in LISTPACKS.items()),
        ]

    @property
    def is_taken(self) -> bool:
        """Return whether the folder is taken, and the files that say so were not removed since."""
        return all(lock.is_held for lock in self._locks)

    async def take(self, clock: Clock) -> None:
        """
        Take the right to start the server here, and make the folder if it is not there.

        Raises: FolderInUse, ConfigError: see :meth:`FolderLock.acquire`.
        """
        self.release()
        try:
            for lock in self._locks:
                await lock.acquire(clock)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the right to start the server back; harmless when it is not held."""
        for lock in self._locks:
            lock.release()

    def mend_log(self) -> bool:
        """
        Mend the log where a full disk has damaged it, and return whether: see :mod:`log_repair`.
        """
        try:
            zeros = log_repair.mend(self.path)
        except OSError as error:  # the server meets with it, too, and says so
            log.warning("%s: the log cannot be looked at: %s", self.path, error.strerror or error)
            return False
        if zeros:
            log.warning(
                "%s: a full disk had left %d zeros in the store's log, which were mended; if it was"
                " full more than once, something of what was written in between may be missing",
                *(self.path, zeros),
            )
        return zeros > 0

    async def spawn(self, settings: Iterable[Setting]) -> ServerProcess:
        """
        Start the server with these settings; it inherits the locks.

        Raises:
            ConfigError: the binary is none, or the socket's folder is not ours.
            OSError: a full disk, no more processes.
        """
        binary = await find_binary(self._binary, self._oldest)
        if self.socket_path.parent != self.path:
            _own_private_folder(self.socket_path.parent)
        file = self.path / "valkey.conf"
        lines = "".join(f"{name} {value}\n" for name, value in settings)
        _write_private(file, f"# Written by Tidewarden at each start; changes are lost.\n{lines}")
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.path / "valkey.log.1")
        with self.log_path.open("ab") as output:
            log_from = output.tell()
            process = await start_child(
                [str(binary), str(file)], output=output, keep_fds=[lock.fd for lock in self._locks]
            )
        return ServerProcess(process, self.log_path, log_from)


def quoted(text: str) -> str:
    """Quote ``text`` as one word of a valkey configuration file, whatever bytes are in it."""
    plain = (
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in os.fsencode(text)
    )
    return '"' + "".join(plain) + '"'


def _write_private(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def _own_private_folder(folder: Path) -> None:
    """Make ``folder`` in a public place, or make sure that it is ours and closed to others."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise ConfigError(
            [
                f"{folder}: must be a folder of this user alone (0700); remove it, or use a shorter"
                " data folder"
            ]
        )
