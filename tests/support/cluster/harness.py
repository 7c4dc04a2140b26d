"""
Whole clusters for the live tests: a valkey-server, node processes with real configuration files,
and what is seen of them.

:meth:`Cluster.close` ends exactly the processes that were started here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from support.cluster.node_process import Node, shown
from support.cluster.processes import (
    ADMIN,
    CALM,
    CLUSTER,
    LIMIT_S,
    START_S,
    STILL,
    SYNCED,
    TROUBLE,
    Valkey,
    free_base_port,
    spawn,
    until,
    until_async,
)
from support.store.proxy import Proxy

from tidewarden.config.load import hash_generated

__all__ = [
    "ADMIN", "CALM", "CLUSTER", "LIMIT_S", "START_S", "STILL", "SYNCED", "TROUBLE", "Cluster", "Node", "Valkey", "background", "closing", "cluster",
    "cluster_of_module", "free_base_port", "serving", "spawn", "until", "until_async",
]  # fmt: skip


class Cluster:
    """
    Three nodes (by default) on one valkey-server.

    Args: ``extra``: TOML put at the end of every node's configuration. ``proxied``: a proxy between
    each node and the store. ``store``: settings of the valkey-server. ``changes``: as of
    :meth:`config_text`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        extra: str = "",
        proxied: bool = False,
        store: dict[str, str] | None = None,
        **changes: str,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = secrets.token_urlsafe(16)
        self._store_options = store
        self.valkey = self.make_store()
        self.valkey.start()
        self.proxies: dict[str, Proxy] = {}
        (folder / "cluster.key").write_text(secrets.token_urlsafe(32))
        (folder / "vault.key").write_text(base64.b64encode(secrets.token_bytes(32)).decode())
        for name in ("cluster.key", "vault.key"):
            (folder / name).chmod(0o600)
        bases: list[int] = []
        while len(bases) < nodes:
            base = free_base_port()
            if base not in bases and base != self.valkey.port:
                bases.append(base)
        self.members = {f"n{i}": base for i, base in enumerate(bases)}
        self.nodes: dict[str, Node] = {}
        for name, base in self.members.items():
            if proxied:
                self.proxies[name] = self.make_proxy(name)
            text = (
                self.config_text(name, self.proxies[name].port if proxied else 0, **changes) + extra
            )
            self.nodes[name] = self.make_node(name, base, text)

    # What a cluster of another kind makes otherwise.

    def host(self, name: str) -> str:
        """Where that node listens."""
        return "127.0.0.1"

    def make_store(self) -> Valkey:
        return Valkey(self.folder / "store", self._store_options)

    def make_proxy(self, name: str) -> Proxy:
        return Proxy(self.valkey.port)

    def make_node(self, name: str, base: int, text: str) -> Node:
        return Node(name, self.folder / name, base, text, self.secret)

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        """A node's configuration; ``changes`` override ``section__key``, as TOML text."""
        settings: dict[str, dict[str, str]] = {
            "cluster": {
                "secret_file": json.dumps(str(self.folder / "cluster.key")),
                "members": (
                    "{"
                    + ", ".join(f'{n} = "{self.host(n)}:{p}"' for n, p in self.members.items())
                    + "}"
                ),
            },
            "node": {
                "name": f'"{name}"',
                "host": f'"{self.host(name)}"',
                "base_port": str(self.members.get(name, 0)),
                "data_dir": json.dumps(str(self.folder / name)),
            },
            "store": {"url": json.dumps(self.valkey.url(store_port))},
            "vault": {"key_file": json.dumps(str(self.folder / "vault.key"))},
        }
        for key, value in changes.items():
            section, _, setting = key.partition("__")
            settings.setdefault(section, {})[setting] = value
        lines = []
        for section, pairs in settings.items():
            lines += [f"[{section}]", *(f"{setting} = {value}" for setting, value in pairs.items())]
        lines += [
            "[[users]]",
            f'name = "{ADMIN}"',
            f'secret_hash = "{hash_generated(self.secret)}"',
            "",
        ]
        return "\n".join(lines)

    def heal(self) -> Node:
        """Have every node run and serve, and one lead; the leader."""
        for node in self.nodes.values():
            if node.stopped:
                node.thaw()
            if not node.running:
                node.start()
        for node in self.nodes.values():
            until(node.ready, START_S, what=f"{node.name} serves")
        return self.leader()

    def alive(self) -> list[Node]:
        """The nodes that run and are not stopped."""
        return [node for node in self.nodes.values() if node.running and not node.stopped]

    def statuses(self) -> dict[str, dict[str, Any]]:
        """R.STATUS of every node that answers."""
        found = {}
        for node in self.alive():
            with contextlib.suppress(*TROUBLE):
                found[node.name] = node.status()
        return found

    def sweeper(self, above: int = 0) -> tuple[Node, int] | None:
        """The node that sweeps under an epoch above ``above``, and that epoch."""
        for name, status in self.statuses().items():
            if status["sweeping"] and status["role"] == "leader" and int(status["epoch"]) > above:
                return self.nodes[name], int(status["epoch"])
        return None

    def leader(self, limit_s: float = LIMIT_S) -> Node:
        """The one node that all who answer call leader, once it sweeps."""

        def agreed() -> Node | None:
            seen = self.statuses()
            leaders = {status["leader"] for status in seen.values()}
            leading = [
                name
                for name, status in seen.items()
                if status["role"] == "leader" and status["sweeping"]
            ]
            return self.nodes[leading[0]] if len(leading) == 1 and leaders == {leading[0]} else None

        node: Node = until(agreed, limit_s, what="one leader, and it sweeps")
        return node

    def others(self, *nodes: Node) -> list[Node]:
        """The nodes that run, without these."""
        return [node for node in self.alive() if node not in nodes]

    # The store's keys.

    def audit(self, queue: str, shards: int = 1) -> Counter[str]:
        """
        How many tasks lie where; fails when one is in no place or in two, or an index or record has
        no task.
        """
        total: Counter[str] = Counter()
        with self.valkey.client() as store:
            for shard in range(shards):
                total += audit_shard(store, f"{{{CLUSTER}:{queue}:{shard}}}")
        return total

    def dump(self, queue: str, shard: int = 0) -> dict[str, bytes]:
        """Every key of a shard with its serialized value."""
        with self.valkey.client() as store:
            names = sorted(store.scan_iter(f"{{{CLUSTER}:{queue}:{shard}}}:*", count=1000))
            return {name.decode(): store.dump(name) or b"" for name in names}

    def claims(self) -> list[tuple[int, str]]:
        """Every epoch under which a node says that it led, and as whom, by the nodes' logs."""
        return [
            (int(found[1]), found[2])
            for node in self.nodes.values()
            for line in node.messages()
            if (found := CLAIM.search(line))
        ]

    def defects(self) -> list[str]:
        """What no node may ever log: a trace, an exception that nobody looked at."""
        lines = [line for node in self.nodes.values() for line in node.log().splitlines()]
        return [
            shown(line)
            for line in lines
            if '"trace"' in line or "never retrieved" in line or "never awaited" in line
        ]

    def close(self, show: bool) -> None:
        """End every process; ``show``: print the ends of their logs, a test has failed."""
        for node in self.nodes.values():
            if show:
                print(f"\n--- {node.name} ({'runs' if node.running else 'ended'}), {node.folder}")
                for line in (
                    node.output.read_text("utf-8", "replace").splitlines()[-60:]
                    if node.output.exists()
                    else ()
                ):
                    print(shown(line))
            node.close()
        self.valkey.kill()
        for proxy in self.proxies.values():
            proxy.close()


CLAIM = re.compile(r"leading under epoch (\d+) as (\S+)")
Made = TypeVar("Made", bound=Cluster)

# Everything of a shard in one moment: ids with a body, ids with tries, then each index and what is
# in it.
_LOOK = """\
local indexes, bodies = {}, {}
for _, name in ipairs(redis.call('KEYS', KEYS[1] .. ':*')) do
  local kind = string.sub(name, #KEYS[1] + 2)
  if string.match(kind, '^delayed') or string.match(kind, '^ready:') or string.match(kind, '^leased:') or kind == 'buried' then
    indexes[#indexes + 1] = {kind, redis.call('ZRANGE', name, 0, -1)}
  elseif string.match(kind, '^tasks') then
    for _, id in ipairs(redis.call('HKEYS', name)) do bodies[#bodies + 1] = id end
  end
end
return {bodies, redis.call('HKEYS', KEYS[1] .. ':tries'), indexes}
"""


def audit_shard(store: redis.Redis, prefix: str) -> Counter[str]:
    """See :meth:`Cluster.audit`."""
    bodies, tries, indexes = store.eval(_LOOK, 1, prefix)
    places: dict[bytes, list[str]] = {}
    for kind, ids in indexes:
        for task_id in ids:
            places.setdefault(task_id, []).append(kind.decode())
    assert not {task_id: where for task_id, where in places.items() if len(where) > 1}, (
        "a task in two places"
    )
    assert set(bodies) - places.keys() == set(), "tasks that lie nowhere"
    assert places.keys() - set(bodies) == set(), "places without a task"
    assert set(tries) - set(bodies) == set(), "tries of no task"
    assert store.hget(f"{prefix}:counts", "strays") is None, "a script met a stray"
    return Counter(where[0].partition(":")[0] for where in places.values())


@contextlib.contextmanager
def cluster(request: pytest.FixtureRequest, folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster that serves. Its logs are shown when a test failed while it ran."""
    with serving(request, Cluster(folder, **options)) as made:
        yield made


@contextlib.contextmanager
def serving(request: pytest.FixtureRequest, made: Made) -> Iterator[Made]:
    """As :func:`cluster`, of one that is made but not started."""
    with closing(request, made):
        made.heal()
        yield made


@contextlib.contextmanager
def closing(request: pytest.FixtureRequest, made: Made) -> Iterator[Made]:
    """Likewise, of one that the caller starts."""
    failed = request.session.testsfailed
    well = False
    try:
        yield made  # raises what a test raised that has a cluster of its own
        defects = made.defects()
        assert not defects, "\n".join(defects)
        well = True
    finally:
        made.close(show=not well or request.session.testsfailed > failed)


def cluster_of_module(**options: Any) -> Any:
    """A fixture: one such cluster for all tests of a module."""

    @pytest.fixture(scope="module")
    def nodes(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Cluster]:
        with cluster(request, tmp_path_factory.mktemp("nodes"), **options) as made:
            yield made

    return nodes


@contextlib.asynccontextmanager
async def background(*jobs: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """
    Coroutines that run beside the body; one that fails is raised at its end, the rest are
    cancelled.
    """
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield tasks
    finally:
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()  # more than once: on Python 3.11 asyncio.wait_for can lose a cancel
            await asyncio.wait(left, timeout=1)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
