"""
A Redis Cluster of one make on free ports, started for a test: primaries, each with as many replicas
as wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from support.store.sentinels import tls_options, wait
from support.store.servers import BECOME
from support.store.shard_audit import Snapshot, audit

from benchmarks.ports import free_ports
from tidewarden.store.redis_cluster.slots import SLOTS, slot_of

TIMEOUT_MS = 2000  # cluster-node-timeout: a server that has been silent for so long is suspected
AUDITS = 5  # snapshots in which a fault has to be before it counts


@dataclass
class ClusterSet:
    """
    ``ports`` of all servers: first the primaries, then the replicas of each in turn; ``spare`` ones
    have no slots.
    """

    folder: Path
    binary: str
    primaries: int = 3
    replicas: int = 0
    spare: int = 0
    password: str = ""
    options: tuple[str, ...] = ()
    certificate: tuple[str, str] | None = None
    """Files of a certificate and its key: all speak TLS and nothing else."""
    surroundings: dict[int, dict[str, str]] = field(default_factory=dict)
    """More environment variables, by the server's number."""
    ports: list[int] = field(default_factory=list)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    clients: dict[int, Any] = field(default_factory=dict)

    def url(self) -> str:
        """As store.url has it: two of the servers."""
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        hosts = f"{user}127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[-1]}"
        return (
            f"rediss+cluster://{hosts}?ssl_ca_certs={self.certificate[0]}"
            if self.certificate
            else f"redis+cluster://{hosts}"
        )

    def start(self) -> None:
        """Start all, and return when every server knows who has which slot."""
        count = self.primaries * (1 + self.replicas)
        first = free_ports(count + self.spare, also=10_000)  # where a server's bus is
        self.ports = list(range(first, first + count + self.spare))
        for port in self.ports:
            self.spawn(port)
        for port in self.ports:
            wait(lambda port=port: self._answers(port))
        first = self.ports[0]
        for epoch, port in enumerate(self.ports, 1):
            self.say(port, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
            if port != first:
                self.say(port, "CLUSTER", "MEET", "127.0.0.1", first)
        for i in range(self.primaries):
            begin, end = i * SLOTS // self.primaries, (i + 1) * SLOTS // self.primaries
            # ADDSLOTSRANGE is of 7.0
            self.say(self.ports[i], "CLUSTER", "ADDSLOTS", *range(begin, end))
        wait(lambda: all(self._knows(port, len(self.ports)) for port in self.ports))
        for n, port in enumerate(self.ports[self.primaries : count]):
            self.say(port, "CLUSTER", "REPLICATE", self.id_of(self.ports[n % self.primaries]))
        wait(lambda: all(self.settled(port) for port in self.ports))

    def spawn(self, port: int) -> None:
        """Start the server of a port; again, when it has ended."""
        home = self.folder / str(port)
        home.mkdir(exist_ok=True)
        auth = (
            ["--requirepass", self.password, "--masterauth", self.password] if self.password else []
        )
        listen = ["--port", str(port)]
        if self.certificate:
            listen = [*tls_options(port, *self.certificate), "--tls-cluster", "yes"]
        self.processes[port] = subprocess.Popen(  # it dies with us, also when we are killed
            [
                sys.executable, "-ISc", BECOME, str(os.getpid()), self.binary, *listen, "--bind", "127.0.0.1",
                "--dir", str(home), "--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", str(TIMEOUT_MS),
                "--cluster-require-full-coverage", "no", "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0",
                "--cluster-replica-validity-factor", "0", *auth, *self.options,
            ],
            stdout=subprocess.DEVNULL, env={**os.environ, **self.surroundings.get(self.ports.index(port), {})},
        )  # fmt: skip

    def _answers(self, port: int) -> bool:
        try:
            return bool(self.client(port).ping())
        except redis.RedisError:
            return False

    def _knows(self, port: int, count: int) -> bool:
        info = self.info(port)
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == count

    def info(self, port: int) -> dict[str, str]:
        """CLUSTER INFO."""
        raw = self.say(port, "CLUSTER", "INFO")
        if isinstance(raw, dict):
            return raw
        return dict(line.split(":", 1) for line in raw.splitlines() if ":" in line)

    def settled(self, port: int) -> bool:
        """
        Whether every replica is known to this one, and itself, if it is one, has all that its
        primary has.
        """
        try:
            known = {one for _, _, _, rest in self.owners(port) for one in rest}
            if len(known) != self.primaries * self.replicas:
                return False
            role = self.say(port, "ROLE")
            return role[0] == "master" or role[3] == "connected"
        except redis.RedisError:
            return False

    def client(self, port: int) -> Any:
        """A client of one of the servers, which follows nobody."""
        if port not in self.clients:
            secured = {"ssl": True, "ssl_ca_certs": self.certificate[0]} if self.certificate else {}
            self.clients[port] = redis.Redis(
                host="127.0.0.1",
                port=port,
                password=self.password or None,
                decode_responses=True,
                **secured,
            )
        return self.clients[port]

    def say(self, port: int, *words: Any) -> Any:
        """A command to one of the servers, its reply as it comes."""
        client = self.client(port)
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*words)
            reply = connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        finally:
            client.connection_pool.release(connection)
        return reply

    def id_of(self, port: int) -> str:
        """The server's name in the cluster."""
        name: str = self.say(port, "CLUSTER", "MYID")
        return name

    def owners(self, asked: int) -> list[tuple[int, int, int, list[int]]]:
        """
        First slot, last slot, the primary's port and its replicas' by the word of the one that is
        ``asked``.
        """
        rows = self.say(asked, "CLUSTER", "SLOTS")
        return [
            (first, last, primary[1], [one[1] for one in rest])
            for first, last, primary, *rest in rows
        ]

    def owner(self, slot: int) -> int:
        """The port of the slot's primary, by the word of a server that runs."""
        for port in self.ports:
            if self.processes[port].poll() is not None:
                continue
            with contextlib.suppress(redis.RedisError):
                for first, last, primary, _ in self.owners(port):
                    if first <= slot <= last and self.processes[primary].poll() is None:
                        return primary
        return 0

    def kill(self, port: int) -> None:
        """SIGKILL."""
        self.processes[port].send_signal(signal.SIGKILL)
        self.processes[port].wait(60)

    # --- moving a slot as redis-cli --cluster reshard does, in steps

    def open_slot(self, slot: int, source: int, target: int) -> None:
        """From now on keys of the slot move."""
        self.say(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: int, target: int, most: int = 100_000) -> int:
        """Move at most so many keys; how many."""
        keys = self.say(source, "CLUSTER", "GETKEYSINSLOT", slot, most)
        for begin in range(0, len(keys), 100):
            part = keys[begin : begin + 100]
            auth = ["AUTH", self.password] if self.password else []
            self.say(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, *auth, "KEYS", *part)
        return len(keys)

    def close_slot(self, slot: int, source: int, target: int) -> None:
        """All keys are there: the slot is the target's."""
        name = self.id_of(target)
        self.say(target, "CLUSTER", "SETSLOT", slot, "NODE", name)
        self.say(source, "CLUSTER", "SETSLOT", slot, "NODE", name)

    def move_slot(self, slot: int, source: int, target: int, *, slowly_s: float = 0.0) -> None:
        """All of it. ``slowly_s``: the time between every two keys."""
        self.open_slot(slot, source, target)
        while self.move_keys(slot, source, target, 1 if slowly_s else 1000):
            time.sleep(slowly_s)
        self.close_slot(slot, source, target)

    async def move_whole(self, slot: int, source: int, target: int) -> None:
        """As Valkey 9 does it by itself, between primaries."""
        self.say(
            source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target)
        )
        async with asyncio.timeout(30):
            while await asyncio.to_thread(self.owner, slot) != target:
                await asyncio.sleep(0.02)

    # --- servers that come and go

    def join(self) -> int:
        """One more server, with no slots; its port, once every other knows it."""
        port = free_ports(1, also=10_000)
        self.ports.append(port)
        self.spawn(port)
        wait(lambda: self._answers(port))
        self.say(port, "CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        wait(lambda: all(self._knows(one, len(self.ports)) for one in self.ports))
        return port

    def leave(self, port: int) -> None:
        """
        As ``redis-cli --cluster del-node`` does it to one without slots: it runs on, and is a
        cluster of its own.
        """
        name = self.id_of(port)
        self.ports.remove(port)
        for one in self.ports:
            self.say(one, "CLUSTER", "FORGET", name)
        self.say(port, "CLUSTER", "RESET", "SOFT")

    def slots_of(self, port: int) -> list[tuple[int, int]]:
        """The first and last of each run of its slots."""
        return [(first, last) for first, last, primary, _ in self.owners(port) if primary == port]

    def used_slots(self, port: int) -> list[int]:
        """Those of its slots in which keys lie."""
        return sorted({slot_of(key) for key in self.client(port).scan_iter(count=1000)})

    def give_away(self, port: int, targets: list[int]) -> None:
        """All slots of a server to others: as Valkey 9 does it by itself, elsewhere key by key."""
        whole = "MIGRATESLOTS" in str(self.say(port, "CLUSTER", "HELP"))
        used = set(self.used_slots(port))
        for number, (first, last) in enumerate(self.slots_of(port)):
            target = targets[number % len(targets)]
            if whole:
                self.say(
                    port,
                    "CLUSTER",
                    "MIGRATESLOTS",
                    "SLOTSRANGE",
                    first,
                    last,
                    "NODE",
                    self.id_of(target),
                )
                wait(lambda first=first, target=target: self.owner(first) == target)
                continue
            for slot in range(first, last + 1):
                if slot in used:
                    self.move_slot(slot, port, target)
                else:
                    self.close_slot(slot, port, target)
        wait(
            lambda: all(
                not any(one[2] == port for one in self.owners(asked)) for asked in self.ports
            )
        )

    def audit(self) -> int:
        """
        Audit every shard where it lies, and that it lies nowhere else; how many there are.

        A snapshot takes several round trips, between which nodes that run may move a task: what is
        wrong has to be so in each of several snapshots.
        """
        for _ in range(AUDITS - 1):
            with contextlib.suppress(AssertionError):
                return self._audited()
        return self._audited()

    def _audited(self) -> int:
        seen: dict[str, int] = {}
        for port in self.ports:
            if self.processes[port].poll() is not None or self.say(port, "ROLE")[0] != "master":
                continue
            raw = redis.Redis(port=port, password=self.password or None)
            found = Snapshot(raw, "{*:*:*}:*")
            for prefix in {name.rpartition("}")[0] + "}" for name in found.names}:
                assert prefix not in seen, f"{prefix} lies at {seen[prefix]} and at {port}"
                seen[prefix] = port
                audit(found, prefix)
            raw.close()
        return len(seen)

    def stop(self) -> None:
        """End what was started here."""
        for client in self.clients.values():
            client.close()
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(60)


@contextlib.contextmanager
def cluster_set(binary: str, folder: Path, **options: Any) -> Iterator[ClusterSet]:
    """Servers for a test."""
    made = ClusterSet(folder, binary, **options)
    try:
        made.start()
        yield made
    finally:
        made.stop()
