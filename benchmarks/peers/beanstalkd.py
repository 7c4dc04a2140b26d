"""beanstalkd (C): the fastest queue with delays, leases and release on disconnect that we know."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.connections import Board, Broken, Connection
from benchmarks.ports import free_ports
from benchmarks.targets import Target, binary_of, resident_bytes, running

LEASE_S = 600
PIPELINED = 200


class BeanstalkdConnection(Connection):
    """put, reserve, delete. It counts delays in whole seconds."""

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.buffer = b""
        self.plain_put = self.put_request(board.payload, 0)

    @staticmethod
    def put_request(payload: bytes, delay_ms: int) -> bytes:
        assert delay_ms % 1000 == 0, "beanstalkd counts delays in whole seconds"
        return b"put 0 %d %d %d\r\n%s\r\n" % (delay_ms // 1000, LEASE_S, len(payload), payload)

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        plain = payload is None and not delay_ms
        self.transport.write(
            self.plain_put
            if plain
            else self.put_request(self.board.payload if payload is None else payload, delay_ms)
        )

    def take(self) -> None:
        self.transport.write(b"reserve\r\n")

    def ack(self, task: Any) -> None:
        self.transport.write(b"delete %s\r\n" % task)

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        if data.startswith(b"RESERVED"):
            head, ended, body = data.partition(b"\r\n")
            _, task, size = head.split() if ended else (b"", b"", b"")
            if not ended or len(body) < int(size) + 2:
                self.buffer = data
                return
            self.buffer = b""
            self.was_taken(task, body[:-2])
        elif not data.endswith(b"\r\n"):
            self.buffer = data
        else:
            self.buffer = b""
            if data.startswith(b"INSERTED"):
                self.was_put()
            elif data == b"DELETED\r\n":
                self.was_acked()
            else:
                self.fail(data)


@contextlib.contextmanager
def started(folder: Path, *, fsync: bool = False) -> Iterator[Target]:
    """
    A beanstalkd in memory; ``fsync``: with a log in ``folder``, on disk before each answer.

    Raises: Missing.
    """
    binary = binary_of("beanstalkd", "beanstalkd")
    port = free_ports(1)
    command = [binary, "-l", "127.0.0.1", "-p", str(port)]
    if fsync:
        log = folder / "beanstalkd-log"
        log.mkdir(exist_ok=True)
        command += ["-b", str(log), "-f", "0"]
    version = subprocess.run(
        [binary, "-v"], capture_output=True, text=True, check=False
    ).stdout.strip()
    with running(command, port, folder, "beanstalkd") as process:
        yield Target(
            "beanstalkd",
            "127.0.0.1",
            port,
            {"engine": process.pid},
            BeanstalkdConnection,
            version=f"{version}, {'-b -f 0' if fsync else 'no log'}",
        )


def memory_bytes(target: Target) -> int:
    """Resident memory: it has no figure of its own."""
    return resident_bytes(target.pids["engine"])


def fill(target: Target, count: int, payload: bytes, delay_s: int) -> None:
    """
    Put ``count`` tasks through one pipelined connection.

    Raises: Broken.
    """
    request = BeanstalkdConnection.put_request(payload, delay_s * 1000)
    with (
        socket.create_connection((target.host, target.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        for begin in range(0, count, PIPELINED):
            number = min(PIPELINED, count - begin)
            connection.sendall(request * number)
            for _ in range(number):
                answer = answers.readline()
                if not answer.startswith(b"INSERTED"):
                    raise Broken(f"beanstalkd: {answer!r}")
