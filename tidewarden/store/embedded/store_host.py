"""
Runs one store of several that replicate: starts it, restarts it, and stops it; it decides no role.

**A store starts as nobody.** It is a replica of an address where nobody is, lets no clients in, and
waits until its node says what it is to be: an empty store that came up as a primary would empty its
replicas, and an old one would serve. Each start draws a word, its incarnation, which the server
announces in the place of its address: so a primary's list of its replicas says which *starts* have
acknowledged what.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from tidewarden.clock import Clock, sleep
from tidewarden.config.settings import Store
from tidewarden.errors import StoreDown
from tidewarden.store.child_process import how_ended, kill_group, stop_child
from tidewarden.store.redis_py import NoBackoff, Redis, RedisError, Retry

from . import damaged_log, discarded, lineage, stop_notice
from .control_link import CONTROL
from .credentials import DAEMON, REPLICA, StoreCredentials
from .server_folder import ServerFolder, ServerProcess, Setting
from .server_watch import ServerWatch

log = logging.getLogger("tidewarden.store")

BACKOFF_S_FIRST = 0.05
"""
The pause after a lone crash; the cluster elects another primary in a few hundredths of a second.
"""
STOP_GRACE_S = 20.0
ANSWER_S_MAX = 30.0
LOOK_S = 1.0
"""Seconds between two looks whether the folder is still there."""
FUNCTIONS_FROM = (7, 0)
"""The first version of a server whose replicas have functions and read-only scripts."""
NOBODY = "127.0.0.1 1"
"""The address at which a store looks for its primary until its node has named one."""


class StoreHost:
    """
    Runs one valkey-server, a replica of nobody at first, with its data in ``folder``.

    Call everything in one event loop of the main thread.
    """

    def __init__(
        self,
        folder: Path,
        config: Store,
        credentials: StoreCredentials,
        clock: Clock,
        *,
        node: str,
        host: str = "127.0.0.1",
        port: int = 0,
        on_event: Callable[[str], None] | None = None,
        boot_id: Callable[[], str] = lineage.boot_id,
    ) -> None:
        """
        Args:
            folder: the store's own folder; made when absent. Data of a store that ran alone are
                taken as they are.
            config: ``[store]``: binary, fsync, maxmemory_bytes.
            node: name of the node whose store it is.
            port: TCP port on ``host`` beside the Unix socket; 0: none.
            on_event: told of restarts, a sentence each; they are logged as well.
            boot_id: says which boot of the host this is.
        """
        self.incarnation = ""
        """The word of the start that runs, or ran last; empty before the first."""
        self._files = ServerFolder(folder, config.binary, FUNCTIONS_FROM, replaceable=True)
        self.folder = self._files.path
        self._config = config
        self._credentials = credentials
        self._clock = clock
        self._node = node
        self._listen = (host, port)
        self._watch = ServerWatch(clock, BACKOFF_S_FIRST, on_event)
        self._boot_id = boot_id
        self._server: ServerProcess | None = None

    @property
    def restarts(self) -> int:
        """Return how often the store was started again after it had ended."""
        return self._watch.restarts

    @property
    def pid(self) -> int | None:
        """Return the process id of the valkey-server, or None when there is none."""
        process = self._server.process if self._server else None
        return process.pid if process and process.returncode is None else None

    @property
    def socket_path(self) -> Path:
        """Return the path of the Unix socket: see :attr:`ServerFolder.socket_path`."""
        return self._files.socket_path

    async def start(self) -> None:
        """
        Take the folder's lock and start the server; it may load its data for long after.

        Raises:
            FolderInUse: another process runs the store of this folder.
            ConfigError: the folder cannot be written, or the binary is none.
            StoreDown: the server ended before it answered; the message has its last words.
        """
        assert self._server is None, "started twice"
        await self._files.take(self._clock)
        try:
            await self._launch()
        except BaseException as error:
            if isinstance(error, StoreDown) and damaged_log.told(self.folder):
                log.error("%s", error)  # its node, which runs then, may allow it to begin empty
                return
            self._files.release()
            raise

    async def run(self) -> None:
        """Start the server again whenever it ends, with growing pauses, until cancelled."""

        async def ended() -> str:
            if self._server is None:  # a start failed for a reason of ours, and this begins anew
                return "store does not run"
            gone = await self._ended_or_gone(self._server)
            server, self._server = self._server, None
            if gone:
                return f"{self.folder} was removed while the store ran, which was ended"
            self._note_damage(server)
            returncode = server.process.returncode or 0
            # what it logged last is no reason where somebody killed it
            return f"store {how_ended(returncode)}" if returncode < 0 else server.why_ended()

        async def launch() -> str:
            await self._launch()
            return f"store runs again (pid {self.pid})"

        await self._watch.run(ended, launch)

    async def _ended_or_gone(self, server: ServerProcess) -> bool:
        """Return when the server has ended, and whether because its folder was removed."""
        ending = asyncio.ensure_future(server.process.wait())
        try:
            while not (await asyncio.wait({ending}, timeout=LOOK_S))[0]:
                if not self._files.is_taken:
                    # what it writes goes nowhere, and another may have begun there
                    kill_group(server.process)
                    await ending
                    return True
            return False
        finally:
            ending.cancel()

    async def stop(self) -> None:
        """
        Stop the server, which brings its log to disk, and release the folder.

        Cancel :meth:`run` first. Harmless when nothing runs.
        """
        if self._server is not None:
            process, self._server = self._server.process, None
            if not await stop_child(process, self._clock, STOP_GRACE_S):
                log.warning("the store did not stop within %.0f s and was killed", STOP_GRACE_S)
            elif process.returncode == 0:
                self._note_clean_end()
        self._files.release()

    async def prepare_stop(self, limit_s: float) -> None:
        """
        Have the node, if one runs, hand the primary over, and the store leave the set.

        The node is another process, or it would have done so. Returns when it has, or ``limit_s``
        later.
        """
        try:
            async with asyncio.timeout(limit_s):
                if not await self._has_node():
                    return
                stop_notice.give(self.folder)
                while stop_notice.is_given(self.folder):
                    await sleep(self._clock, 0.02)
        except TimeoutError:
            log.warning("the node did not prepare for the store's stop within %g s", limit_s)
        except (RedisError, OSError) as error:
            log.warning("the store stops without its node's knowing: %s", error)

    async def _has_node(self) -> bool:
        """Return whether a node gives this store orders. Raises: RedisError, OSError."""
        async with Redis(
            unix_socket_path=str(self.socket_path),
            username=DAEMON,
            password=self._credentials.daemon,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            # No socket_timeout: redis-py then sends under asyncio.wait_for, which on Python 3.11
            # can lose a cancel.
            socket_timeout=None,
            decode_responses=True,
        ) as client:
            return CONTROL in [one["name"] for one in await client.client_list()]

    def kill(self) -> None:
        """Kill the server at once; :meth:`stop` is still to be called."""
        if self._server is not None:
            kill_group(self._server.process)

    def _note_clean_end(self) -> None:
        try:
            lineage.end_cleanly(self.folder)
        except OSError as error:
            log.warning(
                "that the store ended in order could not be written to %s: %s; after a reboot of"
                " the host it begins anew as a replica",
                self.folder,
                error.strerror or error,
            )

    async def _launch(self) -> None:
        """Start the server and see that it listens, or leave none behind."""
        if not self._files.is_taken:
            await self._files.take(self._clock)
        incarnation = secrets.token_hex(8)
        try:
            stop_notice.take_away(self.folder)
            await asyncio.to_thread(self._see_to_log)
            await asyncio.to_thread(lineage.begin, self.folder, incarnation, self._boot_id())
            server = await self._files.spawn(self._settings(incarnation))
        except OSError as error:  # a full disk, no more processes: later there may be room
            raise StoreDown(
                f"valkey-server could not be started in {self.folder}: {error.strerror or error}"
            ) from None
        try:
            await self._answers(server)
        except BaseException:
            kill_group(server.process)
            await server.process.wait()
            self._note_damage(server)
            raise
        self._server, self.incarnation = server, incarnation

    def _see_to_log(self) -> None:
        """
        Set a log aside that could not be read, where the node allows it; mend another.

        Raises: OSError.
        """
        if damaged_log.is_given_up(self.folder):
            # killed in between, nothing of the log is there at the next start
            known = lineage.read(self.folder)
            member = f"{self._node}.{known.incarnation if known else ''}"
            place = discarded.set_damaged_aside(self.folder, member, self._clock.unix_ms())
            log.warning("the log that could not be read was set aside in %s", place)
        damaged_log.forget(self.folder)
        if self._files.mend_log():
            lineage.mark_syncing(self.folder)  # something may be missing

    def _note_damage(self, server: ServerProcess) -> None:
        """Note that the server has refused its log, if it has: what is left is no member's."""
        name = server.damaged_file()
        if not name:
            return
        try:
            # who mends it by hand cuts off what was acknowledged
            lineage.mark_syncing(self.folder)
            damaged_log.tell(self.folder, self.folder / "appendonlydir" / name)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.folder, error.strerror or error)

    async def _answers(self, server: ServerProcess) -> None:
        """Return when the server takes connections, although it may still load its data."""
        until = self._clock.monotonic() + ANSWER_S_MAX
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(str(self.socket_path))
                writer.close()
                return
            if server.process.returncode is not None:
                raise StoreDown(server.why_ended())
            if self._clock.monotonic() > until:
                raise StoreDown(
                    f"valkey-server did not listen within {ANSWER_S_MAX:.0f} s (its log:"
                    f" {server.log_path})"
                )
            await sleep(self._clock, 0.01)

    def _settings(self, incarnation: str) -> list[Setting]:
        host, port = self._listen
        return [
            *self._files.usual_settings(),
            ("bind", host),
            ("port", str(port)),
            *(("user", line) for line in self._credentials.acl_lines()),
            ("masteruser", REPLICA),
            ("masterauth", self._credentials.replica),
            ("replicaof", NOBODY),
            ("replica-announce-ip", f"{self._node}.{incarnation}"),
            ("replica-announce-port", str(port)),
            ("appendfsync", self._config.fsync),
            ("aof-use-rdb-preamble", "yes"),
            # what it has is kept until the whole of what comes has been received
            ("repl-diskless-load", "disabled"),
            ("repl-diskless-sync", "yes"),
            # How long a replica may be away and still needs only what it missed. Memory is taken as
            # the backlog fills. Without the second, an hour alone would end its history's name.
            ("repl-backlog-size", "256mb"),
            ("repl-backlog-ttl", "0"),
            # a replica that loads for long while much is written must not be dropped for that
            ("client-output-buffer-limit", "replica 1gb 0 0"),
            ("repl-timeout", "5"),
            ("repl-ping-replica-period", "1"),
            ("replica-read-only", "yes"),
            ("replica-serve-stale-data", "yes"),
            ("replica-ignore-maxmemory", "yes"),
            # SIGTERM waits that long for replicas that lag
            ("shutdown-timeout", "3"),
            # more than 0 would refuse what a promoted store writes first
            ("min-replicas-to-write", "0"),
            ("maxmemory", str(self._config.maxmemory_bytes)),
        ]
