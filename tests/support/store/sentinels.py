"""A primary, a replica and three sentinels of one make, on free ports, started for a test."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from support.store.servers import BECOME, StoreServer

from benchmarks.ports import free_ports

SERVICE = "main"
DOWN_MS = 1500  # a primary that has been silent for so long is held for down


@dataclass
class SentinelSet:
    """``ports`` of the two data servers, the primary first; ``sentinels``: of the sentinels."""

    folder: Path
    binary: str
    password: str = ""
    certificate: tuple[str, str] | None = None
    """Files of a certificate and its key: all speak TLS and nothing else."""
    ports: list[int] = field(default_factory=list)
    sentinels: list[int] = field(default_factory=list)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def url(self, service: str = SERVICE) -> str:
        """As store.url has it."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        password = quote(self.password, safe="")
        user = f":{password}@" if password else ""
        options = [f"sentinel_password={password}"] if password else []
        options += [f"ssl_ca_certs={self.certificate[0]}"] if self.certificate else []
        scheme, query = (
            "rediss" if self.certificate else "redis",
            "?" * bool(options) + "&".join(options),
        )
        return f"{scheme}+sentinel://{user}{hosts}/{service}{query}"

    def start(self) -> None:
        """Start all, and return when a failover would be possible."""
        first = free_ports(5)
        self.ports, self.sentinels = [first, first + 1], [first + 2, first + 3, first + 4]
        for port in self.ports:
            (self.folder / str(port)).mkdir()
            self._serve(port)
            # a replica that finds nobody tries again a second later
            wait(lambda port=port: self._whole(port))
        ids = {port: secrets.token_hex(20) for port in self.sentinels}
        for port in self.sentinels:
            home = self.folder / str(port)
            home.mkdir()
            lines = [
                f"sentinel myid {ids[port]}",
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.ports[0]} 2",
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}",
                f"sentinel failover-timeout {SERVICE} 3000",
                f"sentinel known-replica {SERVICE} 127.0.0.1 {self.ports[1]}",
                *(
                    f"sentinel known-sentinel {SERVICE} 127.0.0.1 {p} {ids[p]}"
                    for p in self.sentinels
                    if p != port
                ),
            ]
            if self.password:
                lines += [
                    f"requirepass {self.password}",
                    f"sentinel auth-pass {SERVICE} {self.password}",
                ]
            (home / "sentinel.conf").write_text("\n".join(lines) + "\n")
            self._spawn(
                port, [str(home / "sentinel.conf"), "--sentinel", "--dir", str(home)], first=True
            )
        wait(lambda: all(map(self._ready, self.sentinels)))
        # on a busy machine they may have found it silent already
        if self.primary() != self.ports[0]:
            self.ports.reverse()

    def _serve(self, port: int) -> None:
        """Start a data server: a replica of the first of the ports, unless it is that one."""
        auth = (
            ["--requirepass", self.password, "--masterauth", self.password] if self.password else []
        )
        of = ["--replicaof", "127.0.0.1", str(self.ports[0])] if port != self.ports[0] else []
        home = self.folder / str(port)
        fast = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--save", ""]
        self._spawn(port, ["--unixsocket", str(home / "s"), "--dir", str(home), *fast, *auth, *of])

    def kill_primary(self) -> None:
        """SIGKILL to who is the primary now. From then on ``ports`` begins with the other one."""
        port = self.primary()
        self.processes[port].kill()
        self.processes[port].wait(60)
        self.ports.sort(key=lambda one: one == port)

    def revive(self) -> None:
        """
        After :meth:`kill_primary` and its failover: start the dead one again, as a replica, and
        wait for :meth:`calm`.
        """
        wait(lambda: self.primary() == self.ports[0] and self._role(self.ports[0])[0] == "master")
        self._serve(self.ports[1])
        self.calm()

    def calm(self) -> None:
        """
        Wait until one is the primary, for the sentinels too, and the other its replica that has
        everything.
        """

        def settled() -> bool:
            self.ports.sort(key=lambda port: port != self.primary())
            return self._role(self.ports[0])[0] == "master" and self._whole(self.ports[1])

        wait(settled, 60)

    def _role(self, port: int) -> list[Any]:
        try:
            return list(self.client(port).execute_command("ROLE"))
        except redis.RedisError:
            return [""]

    def _spawn(self, port: int, options: list[str], *, first: bool = False) -> None:
        listen = tls_options(port, *self.certificate) if self.certificate else ["--port", str(port)]
        own = [*listen, "--bind", "127.0.0.1"]
        words = [*options, *own] if first else [*own, *options]
        self.processes[port] = subprocess.Popen(  # it dies with us, also when we are killed
            [sys.executable, "-ISc", BECOME, str(os.getpid()), self.binary, *words],
            stdout=subprocess.DEVNULL,
        )

    def _whole(self, port: int) -> bool:
        """
        Whether it answers, and a replica has what was written after its link said "connected": what
        is written from then on may come a second later, and is lost with a primary that is killed
        before.
        """
        try:
            client = self.client(port)
            if port == self.ports[0]:
                return bool(client.ping())
            role = client.execute_command("ROLE")
            if role[0] != "slave" or role[3] != "connected":
                return False
            mark = secrets.token_hex(8)
            self.client(self.ports[0]).set("probe", mark, px=60_000)
            wait(lambda: client.get("probe") == mark)
        except redis.RedisError:
            return False
        return True

    def _ready(self, port: int) -> bool:
        try:
            client = self.client(port)
            (replica,) = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
            facts = pairs(replica)
            whole = facts["flags"] == "slave" and facts["master-link-status"] == "ok"
            return whole and bool(client.execute_command("SENTINEL", "CKQUORUM", SERVICE))
        except (redis.RedisError, ValueError):
            return False

    def client(self, port: int) -> Any:
        """A client of one of the five."""
        secured: dict[str, Any] = (
            {"ssl": True, "ssl_ca_certs": self.certificate[0]} if self.certificate else {}
        )
        return redis.Redis(
            host="127.0.0.1",
            port=port,
            password=self.password or None,
            decode_responses=True,
            **secured,
        )

    def primary(self) -> int:
        """The port of the primary that most sentinels name."""
        named = []
        for port in self.sentinels:
            with contextlib.suppress(redis.RedisError):
                named.append(
                    int(
                        self.client(port).execute_command(
                            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE
                        )[1]
                    )
                )
        return max(set(named), key=named.count)

    def server(self, port: int) -> StoreServer:
        """For the audit."""
        path = str(self.folder / str(port) / "s")
        return StoreServer(path, f"unix://{path}")

    def send(self, port: int, number: signal.Signals) -> None:
        """A signal to one of the five."""
        self.processes[port].send_signal(number)

    def stop(self) -> None:
        """End what was started here."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(60)


def tls_options(port: int, cert: str, key: str) -> list[str]:
    """
    Of a server that speaks TLS at this port, to other servers as well, and asks nobody for a
    certificate.
    """
    return [
        "--port", "0", "--tls-port", str(port), "--tls-replication", "yes", "--tls-cert-file", cert, "--tls-key-file", key,
        "--tls-ca-cert-file", cert, "--tls-auth-clients", "no",
    ]  # fmt: skip


def pairs(flat: Any) -> dict[str, str]:
    """A flat reply, or what redis-py made of it, as a dictionary."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def wait(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Return when ``condition()`` is true."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"not within {limit_s} s"
        time.sleep(0.02)


@contextlib.contextmanager
def sentinel_set(
    binary: str, folder: Path, password: str = "", certificate: tuple[str, str] | None = None
) -> Iterator[SentinelSet]:
    """Five servers for a test."""
    made = SentinelSet(folder, binary, password, certificate)
    try:
        made.start()
        yield made
    finally:
        made.stop()
