"""
Three nodes and their store, as ``tidewarden up`` of any checkout runs them, by a faster clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import redis
import redis.asyncio

from benchmarks.connections import Broken
from benchmarks.ports import free_ports
from benchmarks.targets import child_of, cpu_s, engine_url, kill, process_of, resident_bytes

from .fast_clock import FastClock
from .provider import Book, Grant

NODES = 3
READY_S = 90.0
BATCH = 200
GIVEN_UP = ("dead", "lost_rotation", "stopped")
CONFIG = """
[log]
level = "{level}"
[events]
kept = 10_000_000
[raft]
pace = 4.0
"""


def toml(value: object) -> str:
    """A setting's value as TOML has it, which for these is JSON."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
        )
    return json.dumps(value)


def config_of(sections: Mapping[str, Mapping[str, object]], level: str = "info") -> str:
    """A whole configuration."""
    lines = [CONFIG.format(level=level)]
    for name, settings in sections.items():
        lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


class Cluster:
    """A running cluster. Its verbs go to the nodes in turn."""

    def __init__(self, tree: Path, folder: Path, base: int, up_pid: int) -> None:
        self.tree = tree
        self.folder = folder
        self.ports = [base + 10 * number for number in range(NODES)]
        self.ready_s = 0.0
        self._up_pid = up_pid
        self._turn = 0
        self.secret = (folder / "up" / "secrets" / "admin.secret").read_text().strip()
        self._clients = [
            redis.asyncio.Redis(
                port=port,
                username="admin",
                password=self.secret,
                socket_timeout=60,
                decode_responses=True,
            )
            for port in self.ports
        ]

    async def say(self, *words: Any) -> Any:
        """One verb, at the next node that answers."""
        for _ in range(2 * NODES):
            self._turn += 1
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                return await self._ask(self._turn % NODES, *words)
            await asyncio.sleep(0.1)
        raise Broken(f"no node answers {words[0]}")

    async def _ask(self, number: int, *words: Any) -> Any:
        return await self._clients[number].execute_command(*words)  # type: ignore[no-untyped-call]

    async def put(
        self, book: Book, grants: Iterable[Grant], provider_of: Callable[[Grant], str] | None = None
    ) -> None:
        """
        Import accounts with the tokens that they have.

        ``provider_of`` names the provider of each, if it is not the book's.
        """
        offset_ms = book.clock.unix_ms() - book.clock.now_s() * 1000
        rows = [
            (
                "T.PUT",
                f"{provider_of(grant) if provider_of else book.name}/{grant.name}",
                json.dumps(
                    {
                        "refresh_token": f"{grant.name}.{grant.number}",
                        "access_token": f"a-{grant.name}-{grant.number}",
                        "expires_at_ms": int(grant.expires_s * 1000 + offset_ms),
                    }
                ),
            )
            for grant in grants
        ]
        for begin in range(0, len(rows), BATCH):
            pipeline = self._clients[begin // BATCH % NODES].pipeline(transaction=False)
            for row in rows[begin : begin + BATCH]:
                pipeline.execute_command(*row)
            await pipeline.execute()

    async def accounts(self) -> list[dict[str, Any]]:
        """All of them, as T.LIST tells of them."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page, cursor = await self.say(
                "T.LIST", "COUNT", 1000, *(("AFTER", cursor) if cursor else ())
            )
            found += [one if isinstance(one, dict) else _dict_of(one) for one in page]
            if not cursor:
                return found

    async def metrics(self) -> str:
        """What a node's /metrics says."""
        headers = {"Authorization": f"Bearer admin:{self.secret}"}
        url = f"http://127.0.0.1:{self.ports[0] + 1}/metrics"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
            return await response.text()

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Every event that was sent: its kind and what stands in it."""
        with redis.Redis.from_url(engine_url(self.folder / "up")) as store:
            found = store.xrange("{tidewarden}:events")
        bodies = [json.loads(fields[b"event"]) for _, fields in found]
        return [(body["type"], body["data"]) for body in bodies]

    async def kill(self, number: int) -> None:
        """
        Send SIGKILL to a node. ``up`` starts it again after five seconds.

        One that does not answer is spared.
        """
        with contextlib.suppress(redis.RedisError, OSError):
            os.kill(int(_dict_of(await self._ask(number, "R.STATUS"))["pid"]), signal.SIGKILL)

    def pids(self) -> list[int]:
        """The nodes' and the store's processes."""
        found = []
        for port in self.ports:
            with redis.Redis(
                port=port, username="admin", password=self.secret, protocol=3
            ) as client:
                found.append(int(client.execute_command("R.STATUS")[b"pid"]))
        return [*found, *([store] if (store := child_of(self._up_pid, "valkey")) else [])]

    def used_s(self) -> float:
        """Processor time of nodes and store."""
        return sum(cpu_s(pid) for pid in self.pids())

    def resident_bytes(self) -> int:
        """Memory of the nodes and the store."""
        return sum(resident_bytes(pid) for pid in self.pids())

    def logged(self) -> Counter[str]:
        """Warnings and errors of the nodes' logs, by their words before the first colon."""
        said: Counter[str] = Counter()
        for path in self.folder.glob("up/n*/n?.log"):
            for line in path.read_text("utf-8", "replace").splitlines():
                with contextlib.suppress(ValueError, KeyError):
                    record = json.loads(line)
                    if record["level"].lower() in ("error", "critical"):
                        said[record["message"].partition(":")[0][:120]] += 1
        return said

    async def run_cli(self, *words: str) -> str:
        """``tidewarden WORDS`` of that checkout, at the first node; what it prints."""
        environ = os.environ | {
            "TIDEWARDEN_URL": f"redis://admin:{self.secret}@127.0.0.1:{self.ports[0]}"
        }
        command = (python_of(self.tree), "-m", "tidewarden", *words)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.tree,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return out.decode()

    async def close(self) -> None:
        """Disconnect."""
        for client in self._clients:
            await client.aclose()


def _dict_of(flat: Any) -> dict[str, Any]:
    """A map as RESP2 has it."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def python_of(tree: Path) -> str:
    """The interpreter of a checkout."""
    return str(tree / ".venv" / "bin" / "python")


@contextlib.asynccontextmanager
async def cluster_up(
    tree: Path, folder: Path, clock: FastClock | None, sections: Mapping[str, Mapping[str, object]]
) -> AsyncIterator[Cluster]:
    """
    ``tidewarden up`` of the checkout at ``tree``, its data in ``folder``.

    Raises: Broken: it does not become ready.
    """
    base, config = free_ports(10 * NODES), folder / "config.toml"
    config.write_text(config_of(sections))
    command = [
        python_of(tree),
        "-m",
        "tidewarden",
        "up",
        "--nodes",
        str(NODES),
        "--config",
        str(config),
    ]
    command += ["--base-port", str(base), "--data-dir", str(folder / "up")]
    if (tree / "tidewarden" / "cli" / "up" / "stores.py").exists():
        command += ["--stores", "1"]  # as earlier versions have it, and whose engine is looked at
    # PYTHONSAFEPATH: or what lies in this folder would be run, whichever tree is meant.
    environ = (
        os.environ
        | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        | (clock.environ if clock else {})
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    with process_of(command, folder, "up", environ, grace_s=60.0) as process:
        log = folder / "up.out"
        while b"READY" not in log.read_bytes():
            if process.poll() is not None or loop.time() > began + READY_S:
                raise Broken(f"tidewarden up did not become ready:\n{log.read_text()[-2000:]}")
            await asyncio.sleep(0.05)
        made = Cluster(tree, folder, base, process.pid)
        made.ready_s = loop.time() - began
        try:
            yield made
        finally:
            await made.close()
            kill(process)  # its children die with it, and nobody needs what they leave
