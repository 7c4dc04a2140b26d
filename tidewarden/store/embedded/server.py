"""
The embedded store: a valkey-server that its daemon runs.

The daemon starts it, watches it, restarts it after a crash, and stops it.

**Every start gets a new view.** Lease numbers begin with the view, so what a crash took from the
counters cannot come back as a number given twice. To make sure that nobody takes a lease before the
view is on disk, the server starts with a password that only this object knows; the view is raised
with ``appendfsync always``; only then does the server learn the password that its clients have.
Until then they are refused (``LOADING``, ``WRONGPASS``) and must try again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Store
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.store.child_process import (
    FolderLock,
    how_ended,
    kill_group,
    start_child,
    stop_child,
)
from tidewarden.store.preflight import FORMATS, FSYNC_KEY, LISTPACKS

from .binary import find_binary

log = logging.getLogger("tidewarden.store")

SOCKET_PATH_BYTES_MAX = 107
SILENCE_S_MAX = 30.0
STOP_GRACE_S = 20.0
BACKOFF_S_FIRST = 0.2
BACKOFF_S_MAX = 10.0
STEADY_S = 60.0
LOG_BYTES_MAX = 16 * 1024 * 1024


def store_password(cluster_secret: str) -> str:
    """Return the store's password, which every holder of the cluster secret can compute."""
    digest = hmac.new(
        cluster_secret.encode(), b"tidewarden store password 1", hashlib.sha256
    ).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class EmbeddedStore:
    """
    Runs one valkey-server with its data in ``folder``.

    Call everything in one event loop of the main thread.
    """

    def __init__(
        self,
        folder: Path,
        config: Store,
        cluster_name: str,
        password: str,
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            folder: the store's own folder; made when absent.
            config: ``[store]``: binary, fsync, maxmemory_bytes.
            cluster_name: keys begin with it.
            password: what clients must say once the store serves: see :func:`store_password`.
            port: TCP port on ``host`` beside the Unix socket; 0: none.
            on_event: told of restarts, a sentence each; they are logged as well.
        """
        self.folder = folder.absolute()
        self.view = 0
        """Number of the running start; 0 before the first."""
        self.restarts = 0
        self._config = config
        self._cluster_name = cluster_name
        self._password = password
        self._clock = clock
        self._listen = (host, port)
        self._on_event = on_event
        self._lock = FolderLock(self.folder)
        self._process: asyncio.subprocess.Process | None = None
        self._started = 0.0

    @property
    def url(self) -> str:
        """
        The address and password, as redis-py's ``from_url`` reads them.

        A secret: keep it out of logs.
        """
        return f"unix://:{quote(self._password, safe='')}@{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """The process id of the valkey-server, or None when there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def socket_path(self) -> Path:
        """
        Return the path of the Unix socket.

        It is ``s`` in the folder, or, as the kernel takes no path above 107 bytes, a short one in
        ``/tmp`` that follows from the folder's name.
        """
        path = self.folder / "s"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:20]
        return Path(f"/tmp/tidewarden-{os.getuid()}") / name

    async def start(self) -> str:
        """
        Take the folder's lock, start the server and return its :attr:`url` once clients may come.

        Raises:
            ConfigError: another daemon has the folder, the binary is none, or the data is of a
                newer format.
            StoreDown: the server ended or fell silent; the message has the last lines of its log.
        """
        assert self._process is None, "started twice"
        await self._lock.acquire(self._clock)
        try:
            await self._launch()
        except BaseException:
            self._lock.release()
            raise
        return self.url

    async def run(self) -> None:
        """
        Watch the server and start it again when it ends, with growing pauses, until cancelled.
        """
        backoff_s = BACKOFF_S_FIRST
        while True:
            if self._process is not None:
                returncode = await self._process.wait()
                self._process = None
                if self._clock.monotonic() - self._started > STEADY_S:
                    backoff_s = BACKOFF_S_FIRST
                self._event(f"store {how_ended(returncode)}; it starts again in {backoff_s:.1f} s")
            await sleep(self._clock, backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
            try:
                await self._launch()
            except (StoreDown, ConfigError) as error:
                self._event(f"store did not start: {error}; it is tried again in {backoff_s:.1f} s")
                continue
            self.restarts += 1
            self._event(f"store serves again (pid {self.pid}, view {self.view})")

    async def stop(self) -> None:
        """
        Stop the server, which flushes its log to disk, and release the folder.

        Cancel :meth:`run` first. Harmless when nothing runs.
        """
        if self._process is not None:
            if not await stop_child(self._process, self._clock, STOP_GRACE_S):
                log.warning("the store did not stop within %.0f s and was killed", STOP_GRACE_S)
            self._process = None
        self._lock.release()

    def _event(self, text: str) -> None:
        log.warning("%s", text)
        if self._on_event is not None:
            self._on_event(text)

    async def _launch(self) -> None:
        """
        Start the server and bring it to the point where clients may come, or leave none behind.
        """
        startup_password = secrets.token_urlsafe(32)
        log_path = self.folder / "valkey.log"
        try:
            process, log_from = await self._spawn(startup_password, log_path)
        except OSError as error:  # a full disk, no more processes: later there may be room
            raise StoreDown(
                f"valkey-server could not be started in {self.folder}: {error.strerror or error}"
            ) from None
        try:
            view = await self._open_for_clients(process, startup_password)
        except BaseException as error:
            ran = process.returncode is None
            kill_group(process)
            await process.wait()
            if ran and isinstance(error, (ResponseError, TimeoutError)):
                raise StoreDown(_refusal(error, log_path)) from None
            if isinstance(error, (RedisError, OSError, TimeoutError)):
                raise StoreDown(_why(process, error, log_path, log_from)) from None
            raise
        self._process, self.view = process, view
        self._started = self._clock.monotonic()

    async def _spawn(
        self, startup_password: str, log_path: Path
    ) -> tuple[asyncio.subprocess.Process, int]:
        """Start the server. Returns: it, and where in its log it begins."""
        binary = await find_binary(self._config.binary)
        if self.socket_path.parent != self.folder:
            _own_private_folder(self.socket_path.parent)
        settings = self.folder / "valkey.conf"
        _write_private(settings, self._settings(startup_password))
        if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
            log_path.replace(self.folder / "valkey.log.1")
        with log_path.open("ab") as output:
            log_from = output.tell()
            process = await start_child(
                [str(binary), str(settings)], output=output, keep_fds=[self._lock.fd]
            )
        return process, log_from

    def _settings(self, startup_password: str) -> str:
        host, port = self._listen
        lines = {
            "bind": host,
            "port": str(port),
            "unixsocket": _quoted(str(self.socket_path)),
            "unixsocketperm": "600",
            "requirepass": startup_password,
            "dir": _quoted(str(self.folder)),
            "daemonize": "no",
            "logfile": '""',
            "save": '""',
            "appendonly": "yes",
            # nobody else comes for a copy (see snapshot) meanwhile
            "repl-diskless-sync-delay": "0",
            "appendfsync": self._config.fsync,
            # until the view is raised: data above the limit must be no hindrance to a start
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            **{name: str(value) for name, value in LISTPACKS.items()},
        }
        return "# Written by Tidewarden at each start; changes are lost.\n" + "".join(
            f"{name} {value}\n" for name, value in lines.items()
        )

    async def _open_for_clients(
        self, process: asyncio.subprocess.Process, startup_password: str
    ) -> int:
        """Write the view and let clients in. Returns: the view."""
        client = Redis(
            unix_socket_path=str(self.socket_path),
            password=startup_password,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            # No socket_timeout: redis-py then sends under asyncio.wait_for, which on Python 3.11
            # can lose a cancel.
            socket_timeout=None,
            decode_responses=True,
        )
        try:
            await self._loaded(client, process)
            async with asyncio.timeout(SILENCE_S_MAX):
                return await self._raise_view(client)
        finally:
            with contextlib.suppress(RedisError, OSError):
                # cancelled half-way, it would leave the connection open
                await asyncio.shield(client.aclose())

    async def _raise_view(self, client: Redis) -> int:
        tag = f"{{{self._cluster_name}}}"
        await client.config_set("appendfsync", "always")
        stored = await client.get(f"{tag}:format")
        if stored is not None and stored not in FORMATS:
            raise ConfigError(
                [
                    f"data in {self.folder}: its format is {stored!s}, this version reads"
                    f" {' and '.join(FORMATS)}; use the version that wrote it, or name another data"
                    " folder"
                ]
            )
        if stored != FORMATS[-1]:
            await client.set(f"{tag}:format", FORMATS[-1])
        # Nodes ask for this, and not for the setting, which they change (see firm): and each by its
        # own configuration.
        await client.set(f"{tag}{FSYNC_KEY}", self._config.fsync)
        view = int(await client.incr(f"{tag}:view"))
        await client.config_set("appendfsync", self._config.fsync)
        # nodes load theirs; those of former versions would stay for ever
        await client.function_flush()
        await client.config_set("maxmemory", str(self._config.maxmemory_bytes))
        await client.config_set("requirepass", self._password)
        return view

    async def _loaded(self, client: Redis, process: asyncio.subprocess.Process) -> None:
        """Return when the server answers. Loading may take as long as it needs; silence may not."""
        silent_until = self._clock.monotonic() + SILENCE_S_MAX
        while True:
            try:
                async with asyncio.timeout(SILENCE_S_MAX):
                    await client.ping()
                return
            except BusyLoadingError:
                silent_until = self._clock.monotonic() + SILENCE_S_MAX
            except RedisConnectionError:
                if process.returncode is not None or self._clock.monotonic() > silent_until:
                    raise
            await sleep(self._clock, 0.02)


def _quoted(text: str) -> str:
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
    """
    Make ``folder`` in a place that everybody may write to, or make sure that it is ours and closed
    to others.
    """
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


def _refusal(error: BaseException, log_path: Path) -> str:
    """Why a server was ended that ran: what it answered, or that it did not."""
    said = (
        f"refused its start: {error}"
        if str(error)
        else f"did not answer within {SILENCE_S_MAX:.0f} s"
    )
    return f"valkey-server {said} (its log: {log_path})"


def _why(
    process: asyncio.subprocess.Process, error: BaseException, log_path: Path, log_from: int
) -> str:
    """Why a server ended: what it logged last says more than a refused connection."""
    with log_path.open("rb") as file:
        file.seek(log_from)
        lines = file.read(65_536).decode(errors="replace").strip().splitlines()
    # Its warnings (of the host's settings, say) are no reason to end.
    told = [line for line in lines if " # " in line and " # WARNING " not in line] or lines
    last = told[-1].strip() if told else f"{type(error).__name__}: {error}"
    return f"valkey-server {how_ended(process.returncode)}; it said: {last} (all of it: {log_path})"
