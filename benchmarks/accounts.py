"""Nodes that refresh tokens, as ``tidewarden up`` runs them, and many accounts in their store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.targets import child_of, cpu_s, engine_url
from benchmarks.up import running_up
from tidewarden import __version__
from tidewarden.clock import SystemClock
from tidewarden.config.load import Vault as VaultSettings
from tidewarden.config.provider import queue_of
from tidewarden.node.product_scripts import product_scripts
from tidewarden.queue.partitioning import prefix_of
from tidewarden.store import StoreConnection
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.vault.key_store import KeyStore
from tidewarden.tokens.vault.keyring import Keyring
from tidewarden.tokens.vault.vault import Place, Vault, open_vault

CLUSTER, PROVIDER, CLIENT = "tidewarden", "bench", "c0"
QUEUE = queue_of(PROVIDER, CLIENT)
READY_S = 900.0  # ten million accounts take their time to load
BATCH = 200
UNDER_WAY_MAX = 32  # calls of the store

HEAD = '[log]\nlevel = "warning"\n'
SECTION = """
[providers.{name}]
token_url = "{url}"
client_id = "c0"
client_secret = "not a secret"
rotation = "single_use"
refreshers = {refreshers}
"""


@dataclass
class Fleet:
    """Running nodes, their store, and the folder of both."""

    folder: Path
    ports: list[int]
    pids: dict[str, int]
    """By part: ``node``, or ``node 0`` …, and ``store``."""
    ready_s: float
    """From the start of the processes until every node served."""
    url: str = ""

    def used_s(self) -> dict[str, float]:
        """Processor time of each part."""
        return {part: cpu_s(pid) for part, pid in self.pids.items()}

    def store(self) -> redis.Redis:
        """A connection to the store."""
        return redis.Redis.from_url(self.url, socket_timeout=None, retry=None)

    def version(self) -> str:
        """Ours and the store's."""
        with self.store() as store:
            info = store.info("server")
        return (
            f"tidewarden {__version__} on {info.get('server_name', 'redis')}"
            f" {info.get('valkey_version') or info['redis_version']}"
        )


@contextlib.contextmanager
def fleet_up(
    folder: Path,
    *,
    nodes: int = 1,
    refreshers: int = 256,
    token_url: str = "",
    providers: Sequence[str] = (PROVIDER,),
) -> Iterator[Fleet]:
    """
    Run ``tidewarden up`` with its data in ``folder``.

    Without ``token_url`` there is no provider, and nothing is refreshed.

    ``refreshers``: of each provider; 0: as many as a node makes of it by itself.
    """
    config = folder / "config.toml"
    section = SECTION if refreshers else SECTION.replace("refreshers = {refreshers}\n", "")
    sections = [
        section.format(name=name, url=token_url, refreshers=refreshers)
        for name in providers
        if token_url
    ]
    config.write_text(HEAD + "".join(sections))
    words = ("--config", str(config), "--stores", "1")
    with running_up(folder, nodes, *words, limit_s=READY_S) as up:
        pids = {
            ("node" if nodes == 1 else f"node {n}"): _pid(port, up.secret)
            for n, port in enumerate(up.ports)
        }
        store = child_of(up.process.pid, "valkey")
        assert store is not None
        pids["store"] = store
        yield Fleet(folder, up.ports, pids, up.ready_s, engine_url(up.data))


def _pid(port: int, secret: str) -> int:
    with redis.Redis(
        port=port, username="admin", password=secret, retry=None, protocol=3
    ) as client:
        return int(client.execute_command("R.STATUS")[b"pid"])


class Loader:
    """
    Puts accounts into the store by the product's own script, sealed as the nodes seal them.

    In one event loop; close it.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._clock = SystemClock()
        self._keyring = Keyring(VaultSettings(), fleet.folder / "up" / "secrets" / "vault.key", {})
        self._link = StoreConnection(fleet.url, "loader", self._clock)
        self._scripts = product_scripts()
        self._vault: Vault

    async def start(self) -> None:
        """Connect and open the vault, which a node has made."""
        await self._link.start()
        await self._scripts.use_library(self._link, True)
        self._vault = await open_vault(
            self._keyring, KeyStore(self._link.call, CLUSTER), self._clock
        )

    async def load(
        self,
        names: list[str],
        due_ms: Callable[[int], int],
        *,
        life_ms: int = 300_000,
        provider: str = PROVIDER,
    ) -> None:
        """
        Put accounts of these names.

        ``due_ms`` gives when the n-th is refreshed, unix milliseconds; its access token lives
        ``life_ms`` longer.
        """
        queue = queue_of(provider, CLIENT)
        now_ms = self._clock.unix_ms()
        batch: list[Any] = []
        under_way: list[Any] = []
        for number, name in enumerate(names):
            due = due_ms(number)
            row = self._row(provider, name, now_ms, due, due + life_ms)
            batch += (name, 0, 0, row.pack(), due, due + life_ms, "")
            if len(batch) >= 7 * BATCH:
                under_way.append(self._put(queue, batch))
                batch = []
            if len(under_way) >= UNDER_WAY_MAX:
                await under_way.pop(0)
        for call in (*under_way, *([self._put(queue, batch)] if batch else ())):
            await call

    def _put(self, queue: str, args: list[Any]) -> Any:
        keys = (prefix_of(CLUSTER, queue, 0), f"{{{CLUSTER}}}:view")
        return self._scripts.run(self._link, "tokens.put", keys, (0, "bench.1", *args))

    def _row(
        self, provider: str, name: str, now_ms: int, due_ms: int, expires_at_ms: int
    ) -> AccountRow:
        token = f"{name:r>64}"
        mark = self._vault.fingerprint(provider, name, token)
        seal = self._vault.seal
        return AccountRow(
            grant=1,
            generation=1,
            stored_ms=now_ms,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            origin=mark,
            current=mark,
            access=seal(f"{name:a>64}".encode(), Place(provider, name, "access", 1, 1)),
            refresh=seal(token.encode(), Place(provider, name, "refresh", 1, 1)),
        )

    async def stop(self) -> None:
        """Disconnect."""
        await self._link.stop()


def name_of(number: int) -> str:
    """The name of the n-th account: 16 characters, in no order."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"
