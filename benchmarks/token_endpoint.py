"""
A token endpoint that costs next to nothing: what is left of a refresh's time is the refresher's.

    python -m benchmarks.token_endpoint PORT FILE [LIFE]

It answers every POST with a new pair of 64 characters each, good for ``LIFE`` seconds (3600), looks
at nothing of the request but where it ends, and keeps the number of its answers in ``FILE`` (8
bytes, little-endian). The scripted provider of the tests would take more time than what is
measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.ports import free_ports
from benchmarks.targets import cpu_s, running

LENGTH = b"content-length:"
BODY = b'{"access_token":"a%063d","token_type":"Bearer","expires_in":%d,"refresh_token":"r%063d"}'
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control:"
    b" no-store\r\nContent-Length: %d\r\n\r\n"
)


class Grants(asyncio.Protocol):
    """One connection."""

    def __init__(self, count: mmap.mmap, life_s: int) -> None:
        self.count = count
        self.life_s = life_s
        self.head = HEAD % len(BODY % (0, life_s, 0))
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(LENGTH)
            length = int(head[at + len(LENGTH) :].partition(b"\r\n")[0]) if at >= 0 else 0
            if len(data) < end + 4 + length:
                break
            data = data[end + 4 + length :]
            number = int.from_bytes(self.count[:8], "little") + 1
            self.count[:8] = number.to_bytes(8, "little")
            self.transport.write(self.head + BODY % (number, self.life_s, number))
        self.rest = data


async def serve(port: int, file: Path, life_s: int) -> None:
    """Answer on 127.0.0.1 until ended."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as count:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Grants(count, life_s), "127.0.0.1", port)
        await server.serve_forever()


class Endpoint:
    """The server in a process of its own."""

    def __init__(self, port: int, pid: int, count: mmap.mmap) -> None:
        self.url = f"http://127.0.0.1:{port}/token"
        self.pid = pid
        self._count = count

    def answered(self) -> int:
        """How many requests it has answered."""
        return int.from_bytes(self._count[:8], "little")

    def used_s(self) -> float:
        """Its processor time."""
        return cpu_s(self.pid)


@contextlib.contextmanager
def started(folder: Path, life_s: int = 3600) -> Iterator[Endpoint]:
    """One on a free port, ended with the block."""
    port, file = free_ports(1), folder / "answered"
    file.write_bytes(bytes(8))
    command = [sys.executable, "-m", "benchmarks.token_endpoint", str(port), str(file), str(life_s)]
    with (
        running(command, port, folder, "endpoint") as process,
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ) as count,
    ):
        yield Endpoint(port, process.pid, count)


if __name__ == "__main__":
    uvloop.run(
        serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3600)
    )
