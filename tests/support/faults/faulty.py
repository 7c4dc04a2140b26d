"""
A cluster that faults can be brought upon: links through proxies, nodes in namespaces, slow, small
and stepping parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.cluster.disks import SlowDisk, SmallDisk, build, missing_compiler, missing_mounts
from support.cluster.harness import Cluster, Node, Valkey
from support.providers.scripted_provider import ScriptedProvider
from support.store.proxy import Proxy, Way

from benchmarks.network import Network, missing_led
from benchmarks.network import missing as missing_network

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
MARGIN_S, LIFE_S = 16.5, 20
DISK_BYTES, LOG_BYTES = 32 * 2**20, 2**20
RAFT = 2
"""Raft's port, from a node's base."""


def absent(folder: Path) -> dict[str, str]:
    """What cannot be done here, and why: network, raft links, slow disk, small disk, clock."""
    clock = "" if FAKETIME else "libfaketime is not installed (Debian: faketime)"
    network = missing_network()
    found = {
        "network": network,
        "raft links": network or missing_led(),
        "slow disk": missing_compiler(),
        "small disk": missing_mounts(folder),
        "clock": clock,
    }
    return {part: problem for part, problem in found.items() if problem}


def of_clock(clock: Path, environ: dict[str, str]) -> dict[str, str]:
    """For the start of a process whose clock that file steps, beside the libraries it loads."""
    if FAKETIME is None:
        return {}
    return {
        "LD_PRELOAD": ":".join(filter(None, (str(FAKETIME), environ.get("LD_PRELOAD", "")))),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class FaultyNode(Node):
    """Its log is what it printed, which lies on a disk that is not filled."""

    def __init__(self, name: str, folder: Path, *rest: Any, **options: Any) -> None:
        super().__init__(name, folder, *rest, **options)
        self.output = folder.with_suffix(".output")

    def log(self) -> str:
        return self.output.read_text("utf-8", "replace") if self.output.exists() else ""


class FaultyCluster(Cluster):
    """
    Three nodes on one store that writes before it answers, with everything that can fail.

    ``synced``: it does; without, what must not be lost waits for the disk by a link of its own.
    ``network``: None where there can be none; then nodes stand on loopback. ``disks``: each node's
    data folder on a tmpfs of its own. ``absent``: what cannot be done here, and why.
    ``slow_disks``: whether a disk may be told to be slow, for which nodes have to be started as
    programs, with a library of ours; without, they start at a fifth of the cost. ``apart``: whether
    each node has a network namespace of its own, and ``led``: whether Raft's connections go through
    proxies there.
    """

    def __init__(
        self,
        folder: Path,
        provider: ScriptedProvider | None = None,
        *,
        extra: str = "",
        synced: bool = True,
        slow_disks: bool = True,
        apart: bool = True,
        led: bool = True,
        **options: Any,
    ) -> None:
        names = [f"n{number}" for number in range(options.pop("nodes", 3))]
        self.absent = absent(folder)
        if not slow_disks:
            self.absent["slow disk"] = "not wanted here"
        if not apart:
            self.absent["network"] = "not wanted here"
        if not led or not apart:
            self.absent["raft links"] = "not wanted here"
        self.network: Network | None = None if "network" in self.absent else Network(names)
        try:
            self._prepare(folder, names)
            self._fsync = "always" if synced else "everysec"
            self._provider = provider
            options = {
                "log__file_bytes": str(LOG_BYTES),
                "store__fsync": f'"{self._fsync}"',
            } | options
            super().__init__(folder, nodes=len(names), extra=extra, proxied=True, **options)
        except BaseException:
            self._dismantle()
            raise

    def _prepare(self, folder: Path, names: list[str]) -> None:
        self.slow: dict[str, SlowDisk] = {}
        self.disks: dict[str, SmallDisk] = {}
        if "slow disk" not in self.absent:
            library = build(folder)
            self.slow = {
                name: SlowDisk(library, folder / f"{name}.delay") for name in (*names, "store")
            }
        if "small disk" not in self.absent:
            self.disks = {name: SmallDisk(folder / name, DISK_BYTES) for name in names}
        self._clock = folder / "store.clock"
        self.step_clock(0)

    def step_clock(self, seconds: int) -> None:
        """The store's clock is so far from the machine's, from now on."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.rename(self._clock)

    # Its parts.

    def host(self, name: str) -> str:
        return self.network.addresses[name] if self.network else "127.0.0.1"

    def make_store(self) -> Valkey:
        environ = dict(self.slow["store"].environ) if self.slow else {}
        environ |= of_clock(self._clock, environ)
        return Valkey(self.folder / "store", {"appendfsync": self._fsync}, environ)

    def make_proxy(self, name: str) -> Proxy:
        return Proxy(
            self.valkey.port, listening=self.network.listening(name) if self.network else None
        )

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        text = super().config_text(name, store_port, **changes)
        if self._provider is None:
            return text
        port = self._provider.port
        if self.network:  # the provider's port, on the loopback of that namespace
            way = self.proxies[f"provider:{name}"] = Proxy(
                port, listening=self.network.listening(name)
            )
            port = way.port
        return text + self._provider.toml(port, MARGIN_S)

    def make_node(self, name: str, base: int, text: str) -> Node:
        place = self.network.namespace(name) if self.network else ""
        if self.network and "raft links" not in self.absent:
            port = base + RAFT
            listening, connect = self.network.led(name, port)
            proxy = self.proxies[f"raft:{name}"] = Proxy(port, listening=listening, connect=connect)
            proxy.of_peer = {
                self.host(one): {"up": Way(), "down": Way()} for one in self.members if one != name
            }
        slow = self.slow[name].environ if self.slow else {}
        return FaultyNode(
            name,
            self.folder / name,
            base,
            text,
            self.secret,
            host=self.host(name),
            namespace=place,
            environ=slow,
        )

    def between(self, source: str, target: str) -> list[Way]:
        """
        What one node says to another by Raft: on the connections that it made, and on those that
        the other made.
        """
        made, found = self.proxies[f"raft:{target}"], self.proxies[f"raft:{source}"]
        return [made.of_peer[self.host(source)]["up"], found.of_peer[self.host(target)]["down"]]

    # The end of faults.

    def calm(self) -> None:
        """No fault goes on any more; what is dead is started again."""
        if self.network:
            self.network.heal()
        for proxy in self.proxies.values():
            proxy.calm()
        for slow in self.slow.values():
            slow.delay(0)
        for disk in self.disks.values():
            disk.free()
        self.valkey.thaw()
        for node in self.nodes.values():
            if node.stopped:
                node.thaw()
            if not node.running:
                node.start()

    def close(self, show: bool) -> None:
        super().close(show)
        self._dismantle()

    def _dismantle(self) -> None:
        if self.network:
            self.network.close()
        for disk in getattr(self, "disks", {}).values():
            disk.close()
