"""
Three nodes and their stores, as ``tidewarden up`` of any checkout runs them, by a faster clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import redis
import redis.asyncio

from benchmarks.connections import Broken
from benchmarks.targets import cpu_s, engine_url, kill, resident_bytes
from benchmarks.up import Up, running_up
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials

from .fast_clock import FastClock
from .provider import Book, Grant

NODES = 3
BATCH = 200
GIVEN_UP = ("dead", "lost_rotation", "stopped")
CONFIG = """
[log]
level = "info"
[events]
kept = 10_000_000
[raft]
pace = {pace}
"""
"""
All else is as users have it. Every event is kept, because they are counted in the end. Raft is as
on a slow machine: by a clock that runs twenty times as fast, the 20 ms for which this machine lets
a process wait are as long as an election.
"""
PACE_MIN, PACED_FACTOR = 4.0, 5.0


def toml(value: object) -> str:
    """A setting's value as TOML has it, which for these is JSON."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
        )
    return json.dumps(value)


def config_of(sections: Mapping[str, Mapping[str, object]], factor: float) -> str:
    """A whole configuration, for a clock that runs up to so many times as fast."""
    lines = [CONFIG.format(pace=max(PACE_MIN, factor / PACED_FACTOR))]
    for name, settings in sections.items():
        lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


class Cluster:
    """A running cluster. Its verbs go to the nodes in turn."""

    def __init__(self, tree: Path, folder: Path, up: Up) -> None:
        self.tree = tree
        self.folder = folder
        self.ports, self.secret, self.ready_s = up.ports, up.secret, up.ready_s
        self._up_pid = up.process.pid
        self._turn = 0
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
        with self._primary() as store:
            found: Any = store.xrange("{tidewarden}:events")
        bodies = [json.loads(fields[b"event"]) for _, fields in found]
        return [(body["type"], body["data"]) for body in bodies]

    @contextlib.contextmanager
    def _primary(self) -> Iterator[redis.Redis]:
        """The store that takes the writes. Raises: Broken: none does."""
        up, paths = self.folder / "up", sorted(self.folder.glob("up/n*/store/s"))
        if not paths:  # One store for all nodes.
            with redis.Redis.from_url(engine_url(up)) as store:
                yield store
            return
        secret = (up / "secrets" / "cluster.key").read_text().strip()
        password = StoreCredentials.of(secret).daemon
        for path in paths:
            with redis.Redis(
                unix_socket_path=str(path), username=DAEMON, password=password
            ) as store:
                if store.info("replication")["role"] == "master":
                    yield store
                    return
        raise Broken("none of the stores is the primary")

    async def kill(self, number: int) -> None:
        """
        Send SIGKILL to a node. ``up`` starts it again after five seconds.

        One that does not answer is spared.
        """
        with contextlib.suppress(redis.RedisError, OSError):
            os.kill(await self._node_pid(number), signal.SIGKILL)

    async def _node_pid(self, number: int) -> int:
        return int(_dict_of(await self._ask(number, "R.STATUS"))["pid"])

    async def node_pids(self) -> list[int]:
        """The processes of the nodes. Raises: redis.RedisError: one does not answer."""
        return [await self._node_pid(number) for number in range(len(self.ports))]

    def journals(self) -> list[Path]:
        """The files of the nodes' journals."""
        return sorted(self.folder.glob("up/n*/tokens.journal"))

    def pids(self, name: str = "") -> list[int]:
        """The processes of the nodes and stores; ``name``: those that are called so."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                called, _, rest = (folder / "stat").read_text().rpartition(")")
                if rest.split()[1] == str(self._up_pid) and name in called:
                    found.append(int(folder.name))
        return sorted(found)

    def used_s(self) -> float:
        """Processor time of nodes and stores."""
        return sum(cpu_s(pid) for pid in self.pids())

    def resident_bytes(self) -> int:
        """Memory of the nodes and the stores."""
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
    """The interpreter of a checkout; where it has no ``.venv``, the one that runs this."""
    own = tree / ".venv" / "bin" / "python"
    return str(own if own.exists() else sys.executable)


@contextlib.asynccontextmanager
async def cluster_up(
    tree: Path,
    folder: Path,
    clock: FastClock | None,
    sections: Mapping[str, Mapping[str, object]],
    *,
    factor: float = 1.0,
    one_store: bool = False,
) -> AsyncIterator[Cluster]:
    """
    ``tidewarden up`` of the checkout at ``tree``, its data in ``folder``.

    ``factor``: how many times as fast the clock is to run, at most.
    ``one_store``: for all nodes; else each has its own, as by default.

    Raises: Broken: it does not become ready.
    """
    config = folder / "config.toml"
    config.write_text(config_of(sections, factor))
    words = ["--config", str(config), *(["--stores", "1"] if one_store else [])]
    # PYTHONSAFEPATH: or what lies in this folder would be run, whichever tree is meant.
    environ = (
        os.environ
        | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        | (clock.environ if clock else {})
    )
    with running_up(folder, NODES, *words, python=python_of(tree), environ=environ) as up:
        made = Cluster(tree, folder, up)
        try:
            yield made
        finally:
            await made.close()
            kill(up.process)  # its children die with it, and nobody needs what they leave
