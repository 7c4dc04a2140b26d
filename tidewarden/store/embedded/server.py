"""
Runs the embedded store: a valkey-server that belongs to its daemon.

The daemon starts it, watches it, restarts it after a crash, and stops it.

**Every start gets a new view.** Lease numbers begin with the view, so numbers that a crash took
from the counters cannot come back and be given twice. To make sure that no client takes a lease
before the view is on disk, the server starts with a password that only this object knows; the view
is raised with ``appendfsync always``; only then does the server learn the password that its clients
have. Until then they are refused (``LOADING``, ``WRONGPASS``) and must try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Store
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.store.child_process import how_ended, kill_group, stop_child
from tidewarden.store.preflight import EMBEDDED, FORMATS, FSYNC_KEY
from tidewarden.store.redis_py import (
    BusyLoadingError,
    NoBackoff,
    Redis,
    RedisConnectionError,
    RedisError,
    ResponseError,
    Retry,
)

from .credentials import store_password
from .server_folder import ServerFolder, ServerProcess, Setting
from .server_watch import ServerWatch

__all__ = ["EmbeddedStore", "store_password"]

log = logging.getLogger("tidewarden.store")

SILENCE_S_MAX = 30.0
STOP_GRACE_S = 20.0
BACKOFF_S_FIRST = 0.2


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
        self._files = ServerFolder(folder, config.binary)
        self.folder = self._files.path
        self.view = 0
        """The number of the running start; 0 before the first."""
        self._config = config
        self._cluster_name = cluster_name
        self._password = password
        self._clock = clock
        self._listen = (host, port)
        self._watch = ServerWatch(clock, BACKOFF_S_FIRST, on_event)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def restarts(self) -> int:
        """Return how often the store was started again after it had ended."""
        return self._watch.restarts

    @property
    def url(self) -> str:
        """
        Return the address and password, as redis-py's ``from_url`` reads them.

        A secret: keep it out of logs.
        """
        return f"unix://:{quote(self._password, safe='')}@{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """Return the process id of the valkey-server, or None when there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def socket_path(self) -> Path:
        """Return the path of the Unix socket: see :attr:`ServerFolder.socket_path`."""
        return self._files.socket_path

    async def start(self) -> str:
        """
        Take the folder's lock, start the server and return its :attr:`url` once clients may come.

        Raises:
            ConfigError: another daemon has the folder, the binary is none, or the data is of a
                newer format.
            StoreDown: the server ended or fell silent; the message has the last lines of its log.
        """
        assert self._process is None, "started twice"
        await self._files.take(self._clock)
        try:
            await self._launch()
        except BaseException:
            self._files.release()
            raise
        return self.url

    async def run(self) -> None:
        """
        Watch the server and start it again when it ends, with growing pauses, until cancelled.
        """

        async def ended() -> str:
            if self._process is None:  # a start failed for a reason of ours, and this begins anew
                return "store does not run"
            returncode = await self._process.wait()
            self._process = None
            return f"store {how_ended(returncode)}"

        async def launch() -> str:
            await self._launch()
            return f"store serves again (pid {self.pid}, view {self.view})"

        await self._watch.run(ended, launch)

    async def stop(self) -> None:
        """
        Stop the server, which flushes its log to disk, and release the folder.

        Cancel :meth:`run` first. Harmless when nothing runs.
        """
        if self._process is not None:
            if not await stop_child(self._process, self._clock, STOP_GRACE_S):
                log.warning("the store did not stop within %.0f s and was killed", STOP_GRACE_S)
            self._process = None
        self._files.release()

    async def _launch(self) -> None:
        """
        Start the server and bring it to the point where clients may come, or leave none behind.
        """
        startup_password = secrets.token_urlsafe(32)
        try:
            await asyncio.to_thread(self._files.mend_log)
            server = await self._files.spawn(self._settings(startup_password))
        except OSError as error:  # a full disk, no more processes: later there may be room
            raise StoreDown(
                f"valkey-server could not be started in {self.folder}: {error.strerror or error}"
            ) from None
        process = server.process
        try:
            view = await self._open_for_clients(process, startup_password)
        except BaseException as error:
            ran = process.returncode is None
            kill_group(process)
            await process.wait()
            if ran and isinstance(error, (ResponseError, TimeoutError)):
                raise StoreDown(_refusal(error, server)) from None
            if isinstance(error, (RedisError, OSError, TimeoutError)):
                raise StoreDown(server.why_ended(error)) from None
            raise
        self._process, self.view = process, view

    def _settings(self, startup_password: str) -> list[Setting]:
        host, port = self._listen
        return [
            *self._files.usual_settings(),
            ("bind", host),
            ("port", str(port)),
            ("requirepass", startup_password),
            ("replica-announce-ip", EMBEDDED),
            ("appendfsync", self._config.fsync),
            # until the view is raised: data above the limit must be no hindrance to a start
            ("maxmemory", "0"),
        ]

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
        """
        Return when the server answers; it may load for as long as it needs, but not be silent.
        """
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


def _refusal(error: BaseException, server: ServerProcess) -> str:
    """Word why a running server was ended: its answer, or that it did not answer."""
    said = (
        f"refused its start: {error}"
        if str(error)
        else f"did not answer within {SILENCE_S_MAX:.0f} s"
    )
    return f"valkey-server {said} (its log: {server.log_path})"
