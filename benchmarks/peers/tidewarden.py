"""Ours: a lone node on its embedded store, driven over RESP."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hiredis
import redis

from benchmarks.connections import Board, Connection
from benchmarks.ports import free_ports
from benchmarks.targets import (
    Target,
    engine_bytes,
    engine_url,
    fronts_of,
    parts_of,
    running,
)
from tidewarden import __version__

QUEUE = "bench.cycle"
TAKE_WAIT_MS = 600_000
PUT, TAKE, ACK, AUTH = range(4)


class TidewardenConnection(Connection):
    """Q.PUT, Q.TAKE, Q.ACK."""

    PUT_HEAD = ("Q.PUT", QUEUE)
    TAKE_REQUEST = hiredis.pack_command(("Q.TAKE", "WAIT", str(TAKE_WAIT_MS), "FROM", QUEUE))

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.reader = hiredis.Reader()
        self.plain_put = hiredis.pack_command((*self.PUT_HEAD, board.payload))
        self.asked = AUTH

    def opened(self) -> None:
        if self.auth:
            self.transport.write(hiredis.pack_command(("AUTH", *self.auth)))
        else:
            self.begin()

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        self.asked = PUT
        if payload is None and not delay_ms:
            self.transport.write(self.plain_put)
        else:
            words = (
                *self.PUT_HEAD,
                self.board.payload if payload is None else payload,
                "DELAY",
                str(delay_ms),
            )
            self.transport.write(hiredis.pack_command(words if delay_ms else words[:3]))

    def put_due(self, payload: bytes, delay_ms: int) -> float:
        self.asked = PUT
        at_ms = int(time.time() * 1000) + delay_ms
        self.transport.write(hiredis.pack_command((*self.PUT_HEAD, payload, "AT", str(at_ms))))
        return at_ms / 1000

    def take(self) -> None:
        self.asked = TAKE
        self.transport.write(self.TAKE_REQUEST)

    def ack(self, task: Any) -> None:
        self.asked = ACK
        self.transport.write(hiredis.pack_command(("Q.ACK", QUEUE, *task)))

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        reply = self.reader.gets()
        if reply is False:
            return
        asked = self.asked
        if isinstance(reply, hiredis.ReplyError):
            self.fail(reply)
        elif asked == TAKE:
            if reply:
                _, task_id, lease, payload, *_ = reply[0]
                self.was_taken((task_id, lease), payload)
            else:
                self.take()
        elif asked == PUT:
            self.was_put()
        elif asked == ACK:
            if reply == b"OK":
                self.was_acked()
            else:
                self.fail(reply)
        else:
            self.begin()


def setting_words(settings: dict[str, object]) -> list[str]:
    """Settings as words of our command line."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def is_ready(port: int) -> bool:
    """Whether a node says at its HTTP door that it serves."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def started(
    folder: Path,
    *,
    fsync: bool = False,
    name: str = "tidewarden",
    processes: int = 1,
    python: str = "",
) -> Iterator[Target]:
    """
    Start a lone node with its embedded store in ``folder``.

    ``fsync``: every write is on disk before its OK. ``processes``: of the node. ``python``: the
    interpreter of another installation to run instead of this folder's.
    """
    base = free_ports(5)
    data = folder / name
    settings: dict[str, object] = {
        "node.base_port": base,
        "node.data_dir": data,
        "log.level": "warning",
    }
    if fsync:
        settings["store.fsync"] = "always"
    if processes > 1:
        settings["node.processes"] = processes
    command = [python or sys.executable, "-m", "tidewarden", "node", *setting_words(settings)]
    surroundings = os.environ | {"PYTHONSAFEPATH": "1"} if python else None
    with running(command, base, folder, name, surroundings) as process:
        while len(fronts_of(process.pid)) < processes - 1 or not is_ready(base + 1):
            time.sleep(0.05)
        target = at("127.0.0.1", base, parts_of(process.pid))
        with redis.Redis(port=base, retry=None) as client:
            if fsync:
                client.execute_command("Q.CONFIG", QUEUE, "SET", "durability", "fsync")
            engine = engine_url(data)
            with redis.Redis.from_url(engine) as store:
                info = store.info("server")
        version = info.get("valkey_version") or info["redis_version"]
        yield dataclasses.replace(
            target,
            engine=engine,
            version=f"tidewarden {__version__} on {info.get('server_name', 'redis')} {version}",
        )


def at(host: str, port: int, pids: dict[str, int], auth: tuple[str, ...] = ()) -> Target:
    """A node that listens there."""
    return Target(
        "tidewarden",
        host,
        port,
        pids,
        TidewardenConnection,
        auth=auth,
        version=f"tidewarden {__version__}",
    )


def memory_bytes(target: Target) -> int:
    """What the engine says it uses."""
    return engine_bytes(target.engine)


def hops_of(stats: Mapping[str, Any]) -> int:
    """How often a store has read from a connection or written to one, by its INFO stats."""
    return int(stats["total_reads_processed"]) + int(stats["total_writes_processed"])


def purge(target: Target) -> None:
    """No task is left."""
    with redis.Redis(target.host, target.port, retry=None, socket_timeout=None) as client:
        client.execute_command("Q.PURGE", QUEUE)
