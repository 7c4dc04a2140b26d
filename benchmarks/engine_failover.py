"""
Kills an engine's primary under Sentinel and on a Redis Cluster.

Measures its own failover, and our first answer after it.

    python -m benchmarks.engine_failover [--kills 5] [--only sentinel|cluster]

Each kill: SIGKILL to the primary that has the queue, while a client puts to a node, one put after
the other, each until it is answered with OK. The engine's failover ends when the replica answers
ROLE with `master` and the engine says so: a sentinel names it, or itself as the owner of the slots.
The figure is our first OK after that, and its distance from it: what following costs on top of the
engine's own. With ``down-after-milliseconds`` and ``cluster-node-timeout`` of a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks import engines, machine
from benchmarks.engines import Engine, wait
from benchmarks.shards import node_on
from tidewarden import __version__
from tidewarden.queue.partitioning import prefix_of
from tidewarden.store.redis_cluster.slots import slot_of

LIMIT_S = 1.0
QUEUE = "bench.failover"
SLOT = slot_of(prefix_of("tidewarden", QUEUE, 0))


class Putter(threading.Thread):
    """Puts until stopped; when each OK came (monotonic seconds)."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.answered: list[float] = []
        self.refused = 0
        self.stopping = False

    def run(self) -> None:
        number = 0
        with redis.Redis(
            port=self._port,
            single_connection_client=True,
            socket_timeout=20,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            while not self.stopping:
                number += 1
                while not self.stopping:
                    try:
                        client.execute_command(
                            "Q.PUT", QUEUE, "x", "ID", f"{number}", "DELAY", 3_600_000
                        )
                    except redis.RedisError:
                        self.refused += 1
                        time.sleep(0.005)
                        continue
                    self.answered.append(time.monotonic())
                    break
                time.sleep(0.002)


def owner_of(engine: Engine) -> int:
    """The port of the primary that has the queue."""
    for port, process in engine.processes.items():
        if port in engine.sentinels or process.poll() is not None:
            continue
        with contextlib.suppress(redis.RedisError):
            told = named(engine, port) if engine.sentinels else has_slot(engine, port)
            if told and engine.say(port, "ROLE")[0] == "master":
                return port
    return 0


def named(engine: Engine, port: int) -> bool:
    """Whether a sentinel names this server as the primary."""
    words = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", engines.SERVICE
    return any(int(engine.say(one, *words)[1]) == port for one in engine.sentinels)


def has_slot(engine: Engine, port: int) -> bool:
    """Whether a server of a cluster says that the queue's slot is its own."""
    return any(
        a <= SLOT <= b and one[1] == port for a, b, one, *_ in engine.say(port, "CLUSTER", "SLOTS")
    )


def once(engine: Engine, node: int) -> tuple[float, float, int]:
    """
    Kill the primary once.

    Returns seconds to the engine's failover, seconds from the kill to our first OK, and how many
    puts failed.
    """
    victim = owner_of(engine)
    putter = Putter(node)
    putter.start()
    wait(lambda: len(putter.answered) > 20)
    engine.kill(victim)
    killed = time.monotonic()
    wait(lambda: owner_of(engine) not in (0, victim))
    failed_over = time.monotonic()
    wait(lambda: putter.answered[-1] > failed_over)
    putter.stopping = True
    putter.join()
    first = next(at for at in putter.answered if at > killed + 0.1)
    words = ["--replicaof", "127.0.0.1", str(owner_of(engine))] if engine.sentinels else []
    engine.spawn(victim, *engine.options, *words)
    wait(lambda: engines.whole(engine, victim))
    if engine.sentinels:
        wait(lambda: all(engines.ready(engine, port) for port in engine.sentinels))
    else:
        wait(lambda: all(victim in replicas(engine, port) for port in engine.ports))
    return failed_over - killed, first - killed, putter.refused


def replicas(engine: Engine, asked: int) -> set[int]:
    """The ports of the cluster's replicas, as one server knows them."""
    return {one[1] for _, _, _, *rest in engine.say(asked, "CLUSTER", "SLOTS") for one in rest}


def measured(
    name: str,
    folder: Path,
    start: Callable[[Path], contextlib.AbstractContextManager[Engine]],
    kills: int,
) -> None:
    """So many kills of one kind of engine; a line for each, and the figure."""
    inside = folder / name
    inside.mkdir()
    with start(inside) as engine, node_on(inside, engine, 1) as target:
        found = [once(engine, target.port) for _ in range(kills)]
    for own, first, refused in found:
        print(
            f"{name:9} failover {own:5.2f} s   first answer {first:5.2f} s   {first - own:+5.2f} s "
            f"  {refused} puts refused meanwhile"
        )
    behind = [first - own for own, first, _ in found]
    print(
        f"{name:9} first answer behind the engine's own failover: median"
        f" {machine.median(behind):.2f} s, max {max(behind):.2f} s"
    )
    print(f"{'':9} {machine.against(LIMIT_S, max(behind), least=False, unit=' s')}\n", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments(
        "an engine's primary is killed: its own failover, and our first answer"
    )
    parser.add_argument("--kills", type=int, default=5, help="of each kind of engine")
    parser.add_argument(
        "--only", choices=("sentinel", "cluster"), default=None, help="one kind alone"
    )
    options = parser.parse_args(argv)
    starts = {
        "sentinel": engines.under_sentinel,
        "cluster": lambda inside: engines.cluster(inside, 3, replicas=1),
    }
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder, f"tidewarden {__version__}")
        for name, start in starts.items():
            if options.only in (None, name):
                measured(name, folder, start, options.kills)


if __name__ == "__main__":
    main()
