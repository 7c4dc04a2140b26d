"""Tarantool with a short queue of our own in Lua (queue.lua), driven over its binary protocol."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.connections import Board, Broken, Connection
from benchmarks.ports import free_ports
from benchmarks.targets import Target, binary_of, running

SCRIPT = Path(__file__).with_name("queue.lua")
TAKE_WAIT_S = 600
GREETING_BYTES = 128
HEADER_BYTES = 23  # of every answer: a map of status, sync and schema version, each of fixed size
TYPE, SYNC, FUNCTION, ARGUMENTS, DATA, PROBLEM = 0x00, 0x01, 0x22, 0x21, 0x30, 0x31
CALL = 0x0A
PUT, TAKE, ACK = range(3)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[int, Any]).decode


def call(function: str, *arguments: Any) -> bytes:
    """The request that calls a function of the script."""
    body = _encode({TYPE: CALL, SYNC: 1}) + _encode({FUNCTION: function, ARGUMENTS: arguments})
    return b"\xce" + struct.pack(">I", len(body)) + body


class TarantoolConnection(Connection):
    """put, take, ack of queue.lua."""

    TAKE_REQUEST = call("take", TAKE_WAIT_S)

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.buffer = b""
        self.greeted = False
        self.plain_put = call("put", board.payload.decode(), 0)
        self.asked = PUT

    def opened(self) -> None:
        """It greets first."""

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        self.asked = PUT
        plain = payload is None and not delay_ms
        text = (self.board.payload if payload is None else payload).decode()
        self.transport.write(self.plain_put if plain else call("put", text, delay_ms))

    def take(self) -> None:
        self.asked = TAKE
        self.transport.write(self.TAKE_REQUEST)

    def ack(self, task: Any) -> None:
        self.asked = ACK
        self.transport.write(call("ack", task))

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        if not self.greeted:
            if len(data) < GREETING_BYTES:
                self.buffer = data
                return
            self.greeted, data = True, data[GREETING_BYTES:]
            self.begin()
        if len(data) < 5 or len(data) < 5 + int.from_bytes(data[1:5], "big"):
            self.buffer = data
            return
        self.buffer = b""
        reply = _decode(data[5 + HEADER_BYTES :])
        if PROBLEM in reply:
            self.fail(reply[PROBLEM])
            return
        found = reply[DATA]
        if self.asked == PUT:
            self.was_put()
        elif self.asked == TAKE:
            if found and found[0] is not None:
                self.was_taken(found[0], found[1].encode())
            else:
                self.take()
        elif found == [True]:
            self.was_acked()
        else:
            self.fail(reply)


@contextlib.contextmanager
def started(folder: Path, *, fsync: bool = False, wal: str = "write") -> Iterator[Target]:
    """
    Start a Tarantool with its data in ``folder``.

    ``wal`` is its ``wal_mode``: ``write`` (its default, and nearest to our append-only file:
    written, not waited for) or ``none``. ``fsync``: on disk before each answer, whatever ``wal``
    says.

    Raises: Missing.
    """
    binary = binary_of("tarantool", "tarantool")
    port = free_ports(1)
    data = folder / "tarantool"
    data.mkdir()
    mode = "fsync" if fsync else wal
    surroundings = os.environ | {
        "BENCH_LISTEN": f"127.0.0.1:{port}",
        "BENCH_FOLDER": str(data),
        "BENCH_WAL": mode,
    }
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    with running([binary, str(SCRIPT)], port, folder, "tarantool-log", surroundings) as process:
        yield Target(
            "tarantool",
            "127.0.0.1",
            port,
            {"engine": process.pid},
            TarantoolConnection,
            version=f"{told.splitlines()[0]}, queue.lua, wal_mode {mode}",
        )


def ask(target: Target, function: str, *arguments: Any) -> Any:
    """
    Call a function of the script and wait for what it returns.

    Raises: Broken.
    """
    with (
        socket.create_connection((target.host, target.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        answers.read(GREETING_BYTES)
        connection.sendall(call(function, *arguments))
        size = int.from_bytes(answers.read(5)[1:], "big")
        reply = _decode(answers.read(size)[HEADER_BYTES:])
    if PROBLEM in reply:
        raise Broken(f"tarantool: {reply[PROBLEM]}")
    return reply.get(DATA)


def memory_bytes(target: Target) -> int:
    """Tuples and indexes."""
    return sum(ask(target, "memory"))
