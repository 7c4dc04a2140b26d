"""
put → take → ack on a Redis Cluster: 1, 2 and 4 shards on as many primaries.

    python -m benchmarks.shards [--seconds 12] [--connections 400] [--counts 1,2,4]

For each number a cluster of so many primaries, a shard's slot on each, and a lone node, driven as
benchmarks/cycle.py does; a single server (redis://) before them. Many connections, for a cluster is
for much load: what a script call costs by itself is shared by the requests that came together, and
shards divide those among them.

On a machine with fewer cores than there are processes the rates say nothing of a cluster; what a
cycle costs each of them does. From that is computed, and said to be, what would be possible with a
core for each: an engine's primary can do as many cycles a second as its share of a cycle allows,
and fronts are added until that is reached.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from benchmarks import engines, machine
from benchmarks.connections import PAYLOAD, WARM_S, Broken, Cycle, Round, rate_of
from benchmarks.machine import median
from benchmarks.peers import tidewarden
from benchmarks.ports import free_ports
from benchmarks.targets import Target, running
from tidewarden import __version__
from tidewarden.queue.partitioning import prefix_of
from tidewarden.store.redis_cluster.slots import slot_of

ROUNDS = 2


@contextlib.contextmanager
def node_on(folder: Path, engine: engines.Engine, shards: int) -> Iterator[Target]:
    """A lone node on that engine, with the benchmark's queue of so many shards."""
    base = free_ports(5)
    settings = {
        "node.base_port": base,
        "node.data_dir": folder / f"node-{shards}-{len(engine.ports)}",
        "log.level": "warning",
    }
    command = [
        sys.executable,
        "-m",
        "tidewarden",
        "node",
        *tidewarden.setting_words({**settings, "store.url": engine.url}),
    ]
    with running(command, base, folder, f"node-{base}") as process:
        while not tidewarden.is_ready(base + 1):
            time.sleep(0.05)
        with redis.Redis(port=base, retry=None) as client:
            client.execute_command("Q.CONFIG", tidewarden.QUEUE, "SET", "shards", shards)
        pids = {"front": process.pid} | {
            f"engine {n}": engine.processes[p].pid for n, p in enumerate(engine.ports, 1)
        }
        yield tidewarden.at("127.0.0.1", base, pids)


@contextlib.contextmanager
def single(folder: Path) -> Iterator[engines.Engine]:
    """One server by itself."""
    with contextlib.ExitStack() as stack:
        made = engines.Engine(folder, stack, engines.free_bus_ports(1))
        made.spawn(made.ports[0], *engines.FAST, *engines.PACKED)
        made.url = f"redis://127.0.0.1:{made.ports[0]}"
        yield made


@contextlib.contextmanager
def spread(engine: engines.Engine) -> Iterator[None]:
    """
    Place shard n on primary n, because with so few of them names would decide by luck.

    No slot has a key yet.
    """
    for n, port in enumerate(engine.ports):
        slot = slot_of(prefix_of("tidewarden", tidewarden.QUEUE, n))
        for asked in [port, *(other for other in engine.ports if other != port)]:
            engine.say(
                asked, "CLUSTER", "SETSLOT", slot, "NODE", engine.say(port, "CLUSTER", "MYID")
            )
    yield


def measured(target: Target, connections: int, each_s: float) -> list[Round]:
    return [machine.run(rate_of(target, Cycle, connections, each_s)) for _ in range(ROUNDS)]


def report(name: str, rounds: list[Round], first: float) -> float:
    """One line; the cycles a second that its engines could do with a core for each (computed)."""
    cpu = {part: median([one.cpu_us[part] for one in rounds]) for part in rounds[0].cpu_us}
    shares = [us for part, us in cpu.items() if part.startswith("engine")]
    rate = median([one.rate for one in rounds])
    bound = 1e6 / max(shares)
    share = sum(shares) / sum(cpu.values())
    each = " + ".join(f"{us:.0f}" for us in shares)
    growth = f"{bound / first:>6.2f}" if first else f"{'':6}"
    print(
        f"{name:24} {rate:>8,.0f}  {cpu['front']:>6.0f}  {sum(shares):>6.0f} = {each:22}"
        f" {share:>6.0%}  {bound:>9,.0f}  {growth}  {bound * cpu['front'] / 1e6:>5.1f}"
    )
    return bound


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("put → take → ack with shards on the primaries of a Redis Cluster")
    parser.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        help="length of all rounds together, without starting up",
    )
    parser.add_argument("--connections", type=int, default=400, help="each waiting for its answer")
    parser.add_argument("--counts", default="1,2,4", help="of shards, and of primaries")
    options = parser.parse_args(argv)
    counts = [int(word) for word in options.counts.split(",")]
    each_s = max(0.3, options.seconds / (ROUNDS * (len(counts) + 1)) - WARM_S)
    with machine.own_folder(options.folder) as folder:
        machine.print_machine(folder, f"tidewarden {__version__}")
        print(f"payload {len(PAYLOAD)} bytes, {options.connections} connections\n")
        head = (
            f"{'front':>6}  {'engines, µs per cycle':31} {'share':>6}  {'computed':>9} "
            f" {'growth':>6}  {'cores':>5}"
        )
        print(f"{'':24} {'cycles/s':>8}  {head}")
        first = 0.0
        try:
            with single(folder) as engine, node_on(folder, engine, 1) as target:
                report("a single server", measured(target, options.connections, each_s), 0)
            for count in counts:
                with (
                    engines.cluster(folder, count) as engine,
                    spread(engine),
                    node_on(folder, engine, count) as target,
                ):
                    bound = report(
                        f"{count} shards, {count} primaries",
                        measured(target, options.connections, each_s),
                        first,
                    )
                first = first or bound
        except Broken as broken:
            raise SystemExit(str(broken)) from None
    print(
        "\ncomputed: cycles a second of the engines with a core for each primary, its growth over"
        " the cluster of one, and the"
    )
    print(
        "cores of fronts that would keep them busy; measured: this machine's rate, and processor"
        " time per cycle."
    )


if __name__ == "__main__":
    main()
