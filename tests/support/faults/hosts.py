"""
Three hosts for fault runs: on each a node, its store in a process of its own, a disk, a clock, and
a network namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis
from support.cluster.disks import SlowDisk, SmallDisk, build, missing_compiler, missing_mounts
from support.cluster.harness import Cluster, Node
from support.cluster.nursery import Child
from support.cluster.processes import LIMIT_S, TROUBLE, spawn, until
from support.faults.faulty import FAKETIME, LOG_BYTES, MARGIN_S, FaultyNode, of_clock
from support.providers.scripted_provider import ScriptedProvider
from support.store.proxy import Proxy

from benchmarks.network import Network
from benchmarks.network import missing as missing_network
from benchmarks.trios import power
from benchmarks.trios.trio import tree
from tidewarden.store.embedded.credentials import store_password

RAFT, STORE = 2, 3
"""Ports, from a node's base."""
DISK_BYTES = 512 * 2**20
WHOLE_S = 120.0


def absent(folder: Path, *, synced: bool) -> dict[str, str]:
    """
    What cannot be done here, and why.

    A power cut of all hosts at once asks for stores that sync what they acknowledge, and for a
    library that knows what was synced.
    """
    clock = "" if FAKETIME else "libfaketime is not installed (Debian: faketime)"
    everything = missing_compiler() or ("" if synced else "stores sync once a second")
    found = {
        "network": missing_network(),
        "small disk": missing_mounts(folder),
        "clock": clock,
        "synced disk": everything,
    }
    return {part: problem for part, problem in found.items() if problem}


class StoreProcess:
    """``tidewarden store`` of one node, and the valkey-server below it."""

    def __init__(
        self, name: str, config: Path, namespace: str, environ: dict[str, str], output: Path
    ) -> None:
        self.name = name
        self.output = output
        self._config = config
        self._namespace = namespace
        self._environ = environ
        self._process: Child | subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self._environ:  # such as LD_PRELOAD, which concerns only what is executed
            words = [sys.executable, "-m", "tidewarden", "store", "--config", str(self._config)]
            self._process = spawn(
                words, self.output, namespace=self._namespace, environ=self._environ
            )
        else:
            self._process = Child(self._config, self.output, self._namespace, verb="store")

    def processes(self) -> list[int]:
        """It, and what it started; the valkey-server is the last."""
        return tree(self._process.pid) if self._process is not None and self.running else []

    def server(self) -> int:
        """The valkey-server; 0: none runs just now."""
        for pid in self.processes()[1:]:
            with contextlib.suppress(OSError):
                if b"valkey-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return 0

    def send(self, how: signal.Signals) -> None:
        """A signal to the valkey-server alone, if there is one."""
        if pid := self.server():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def send_all(self, how: signal.Signals) -> None:
        """The same to all of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if self._process is None:
            return
        self.send_all(signal.SIGKILL)
        self._process.wait(LIMIT_S)


class Stores:
    """The stores as one: that of the newest view that any node has told of."""

    port = 0

    def __init__(self, cluster: HostCluster) -> None:
        self._cluster = cluster
        self._view = 0

    def url(self, port: int = 0) -> str:
        return "embedded"

    def start(self) -> None:
        """Each host starts its own."""

    def kill(self) -> None:
        """Each host ends its own."""

    def client(self, key: str = "") -> redis.Redis:
        """Of the primary. Raises: redis.ConnectionError: none of a view as new is known."""
        told = [one for one in self._cluster.statuses().values() if one.get("primary")]
        newest = max(told, key=lambda one: int(one["view"]), default=None)
        if newest is None or int(newest["view"]) < self._view:
            raise redis.ConnectionError("no node tells of the newest view")
        self._view = int(newest["view"])
        name = str(newest["primary"])
        secret = (self._cluster.folder / "cluster.key").read_text().strip()
        return redis.Redis(
            self._cluster.host(name),
            self._cluster.members[name] + STORE,
            password=store_password(secret),
        )


class HostCluster(Cluster):
    """
    Three hosts whose stores replicate.

    ``synced``: every store syncs what it acknowledges. ``disks``: slow, small and cut off from
    power; without, processes start at a fifth of the cost. ``absent``: what cannot be done here,
    and why.
    """

    def __init__(
        self,
        folder: Path,
        provider: ScriptedProvider,
        *,
        synced: bool,
        disks: bool = True,
        **options: Any,
    ) -> None:
        names = [f"n{number}" for number in range(3)]
        folder.mkdir(parents=True, exist_ok=True)
        self.absent = absent(folder, synced=synced)
        if not disks:
            self.absent |= dict.fromkeys(("synced disk", "clock"), "not wanted here")
        self.synced = synced
        self._provider = provider
        self.stores: dict[str, StoreProcess] = {}
        self.disks: dict[str, SmallDisk] = {}
        self.slow: dict[str, SlowDisk] = {}
        self.network: Network | None = None if "network" in self.absent else Network(names)
        try:
            self._prepare(folder, names)
            fsync = "always" if synced else "everysec"
            options = {"log__file_bytes": str(LOG_BYTES), "store__fsync": f'"{fsync}"'} | options
            super().__init__(folder, nodes=len(names), **options)
        except BaseException:
            self._dismantle()
            raise

    def _prepare(self, folder: Path, names: list[str]) -> None:
        if "synced disk" not in self.absent:
            library = build(folder)
            self.slow = {name: SlowDisk(library, folder / f"{name}.delay") for name in names}
        if "small disk" not in self.absent:
            self.disks = {name: SmallDisk(folder / name, DISK_BYTES) for name in names}
        for name in names:
            self._clock(folder, name).write_text("+0s\n")

    @staticmethod
    def _clock(folder: Path, name: str) -> Path:
        return folder / f"{name}.clock"

    def step_clock(self, name: str, seconds: int) -> None:
        """The clock of a host's store is so far from the machine's, from now on."""
        fresh = self.folder / f"{name}.clock.new"
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.rename(self._clock(self.folder, name))

    # Its parts.

    def host(self, name: str) -> str:
        return self.network.addresses[name] if self.network else "127.0.0.1"

    def make_store(self) -> Any:
        return Stores(self)

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        text = super().config_text(name, store_port, **changes)
        port = self._provider.port
        if self.network:  # the provider's port, on the loopback of that namespace
            way = self.proxies[f"provider:{name}"] = Proxy(
                port, listening=self.network.listening(name)
            )
            port = way.port
        return text + self._provider.toml(port, MARGIN_S)

    def make_node(self, name: str, base: int, text: str) -> Node:
        place = self.network.namespace(name) if self.network else ""
        made = FaultyNode(
            name,
            self.folder / name,
            base,
            text,
            self.secret,
            host=self.host(name),
            namespace=place,
        )
        output = self.folder / f"{name}.store.output"
        self.stores[name] = StoreProcess(name, made.config, place, self._environ(name), output)
        return made

    def _environ(self, name: str) -> dict[str, str]:
        """Of a store's process, for its disk and its clock."""
        environ = dict(self.slow[name].environ) if self.slow else {}
        if "clock" not in self.absent:
            environ |= of_clock(self._clock(self.folder, name), environ)
        return environ

    def heal(self) -> Node:
        self.revive()
        return super().heal()

    def revive(self) -> None:
        """
        As a supervisor: what has ended is started again, a store before its node.

        A node that finds none runs its store itself, and then neither disk nor clock is ours.
        """
        ended = [store for store in self.stores.values() if not store.running]
        for store in ended:
            store.start()
        for store in ended:
            until(store.server, what=f"the store of {store.name} is started")
        for node in self.nodes.values():
            if not node.running:
                node.start()

    # What is seen of it.

    def primary(self) -> str:
        """The node whose store takes writes, by the newest view; empty: nobody says."""
        told = [one for one in self.statuses().values() if one.get("primary")]
        newest = max(told, key=lambda one: int(one["view"]), default={"primary": ""})
        return str(newest["primary"])

    def whole(self) -> bool:
        """Whether every node tells that all stores are in sync."""
        seen = self.statuses().values()
        return len(seen) == len(self.nodes) and all(
            str(one.get("in_sync", "")).split() == sorted(self.nodes) for one in seen
        )

    def wait_whole(self) -> None:
        """A process that ended by itself is started again, as its supervisor would, and told of."""

        def whole() -> bool:
            ended = [
                one.name for one in (*self.stores.values(), *self.nodes.values()) if not one.running
            ]
            if ended:
                print(f"ended by itself: node or store of {', '.join(ended)}", flush=True)
                self.revive()
            return self.whole()

        until(whole, WHOLE_S, 0.1, what="all stores are in sync, by themselves")

    # Whole hosts.

    def store_folder(self, name: str) -> Path:
        return self.folder / name / "store"

    def kill_host(self, name: str) -> None:
        """SIGKILL to node and store at once: neither sees the other go."""
        pids = [*self.stores[name].processes(), *tree(self.nodes[name].pid)]
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
        self.stores[name].kill()
        self.nodes[name].kill()

    def freeze_host(self, name: str) -> None:
        """SIGSTOP."""
        self.stores[name].send_all(signal.SIGSTOP)
        self.nodes[name].freeze()

    def lose_disk(self, name: str) -> None:
        """Of a host that was killed: its store's folder is gone."""
        shutil.rmtree(self.store_folder(name), ignore_errors=True)

    def cut_power(self, name: str, synced: dict[int, int]) -> None:
        """
        Of a host that was killed: what its store had not synced is gone, and it has booted anew.

        ``synced``: lengths of the log's parts that are on disk, where no library knows better.
        """
        folder = self.store_folder(name)
        if name in self.slow:
            self.slow[name].cut_the_power(folder)
            power.reboot(folder)
        else:
            power.cut(folder, power.logs(folder) if self.synced else synced)

    # Links.

    def cut(self, source: str, target: str, port: int = 0) -> None:
        """
        What one host says to the other is lost; ``port``: RAFT or STORE, only of those connections.
        """
        assert self.network
        if not port:
            self.network.cut(source, target)
            return
        self.network.cut(
            source, target, served=self.members[source] + port, asked=self.members[target] + port
        )

    # The end of faults.

    def calm(self) -> None:
        """No fault goes on any more; what is dead is started again."""
        if self.network:
            self.network.heal()
        for slow in self.slow.values():
            slow.delay(0)
        for disk in self.disks.values():
            disk.free()
        for name, store in self.stores.items():
            self.step_clock(name, 0)
            store.send_all(signal.SIGCONT)
        for node in self.nodes.values():
            if node.stopped:
                node.thaw()
        self.revive()

    def defects(self) -> list[str]:
        lines = [
            f"{name}: {line}"
            for name, store in self.stores.items()
            for line in (
                store.output.read_text("utf-8", "replace") if store.output.exists() else ""
            ).splitlines()
            if '"trace"' in line or "Traceback" in line or "never retrieved" in line
        ]
        return super().defects() + lines

    def close(self, show: bool) -> None:
        if show:
            for name, store in self.stores.items():
                text = store.output.read_text("utf-8", "replace") if store.output.exists() else ""
                print(f"\n--- store of {name}\n" + "\n".join(text.splitlines()[-30:]))
        super().close(show)
        for store in self.stores.values():
            store.kill()
        self._dismantle()

    def _dismantle(self) -> None:
        if self.network:
            self.network.close()
        for disk in self.disks.values():
            disk.close()


def said(cluster: HostCluster) -> str:
    """What each node tells of the stores, for a run's output."""
    found = {}
    for name, status in cluster.statuses().items():
        with contextlib.suppress(*TROUBLE):
            found[name] = {key: status.get(key) for key in ("primary", "view", "in_sync", "leader")}
    return json.dumps(found)
