"""
Measures put → take → ack per second beside beanstalkd and Tarantool.

Each connection waits for each answer.

    python -m benchmarks.cycle [--seconds 40] [--connections 1,50,200] [--fsync | --durability
    quorum | --url redis://host:port]

Starts a lone node on its embedded store and the peers, each on a free port, and drives all from
this one process by the same client: uvloop, bare protocols, one request under way on a connection.
Rounds take turns, because a shared machine's speed drifts; the ratio of the medians is the figure,
the rates alone are not. Ours writes its append-only file (fsync every second), Tarantool its log
(``--wal none``: not), beanstalkd keeps none.

With ``--fsync`` every write is on disk before its answer: ours with ``store.fsync = "always"`` and
the queue's durability ``fsync``, beanstalkd with ``-b … -f 0``, Tarantool with ``wal_mode =
fsync``.

With ``--durability quorum`` (or ``one``) ours runs on a primary with two replicas on this machine,
and the peer is a plain node on its embedded store: what it costs that every answer waits for both
replicas.

With ``--url`` an already running node is measured instead (its default user, or the URL's; queue
``bench.cycle``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis

from benchmarks import machine
from benchmarks.connections import PAYLOAD, WARM_S, Broken, Cycle, Round, rate_of
from benchmarks.machine import median
from benchmarks.peers import beanstalkd, tarantool, tidewarden
from benchmarks.peers import replicated as on_replicas
from benchmarks.targets import Target, parts_of, start_peers

LIMIT_CONNECTIONS = 50
# Of a peer's rate, at 50 connections: in memory, and with every write on disk.
LIMITS = {False: {"beanstalkd": 0.5, "tarantool": 1.5}, True: {"beanstalkd": 3.0}}
PLAIN_LIMIT = {"plain": 0.4}  # of the plain node's rate, with durability quorum
AIM = 0.6
ROUNDS = 3


def node_at(url: str) -> Target:
    """
    A node that runs already; its processor time counts when it runs on this machine.

    Raises: SystemExit: it does not answer as a node.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 7420
    auth = (unquote(parts.username or "default"), unquote(parts.password)) if parts.password else ()
    try:
        with socket.create_connection((host, port), 5) as connection:
            requests = [("AUTH", *auth)] if auth else []
            reader = hiredis.Reader()
            reply: object = None
            for request in [*requests, ("R.STATUS",)]:
                connection.sendall(hiredis.pack_command(request))
                while (reply := reader.gets()) is False:
                    reader.feed(connection.recv(65_536))
    except OSError as error:
        raise SystemExit(f"{host}:{port} does not answer: {error}") from None
    if not isinstance(reply, list):
        raise SystemExit(f"{host}:{port} answers R.STATUS with {reply!r}")
    status = dict(zip(reply[::2], reply[1::2], strict=True))
    pid = int(status[b"pid"])
    local = host in ("127.0.0.1", "localhost", "::1") and Path(f"/proc/{pid}").exists()
    return tidewarden.at(host, port, parts_of(pid) if local else {}, auth)


async def measure(
    targets: list[Target], counts: list[int], seconds: float
) -> dict[int, dict[str, list[Round]]]:
    """Rounds in turn: every target once, then again, at each number of connections."""
    each = max(0.2, seconds / (len(counts) * len(targets) * ROUNDS) - WARM_S)
    found: dict[int, dict[str, list[Round]]] = {}
    for count in counts:
        found[count] = {target.name: [] for target in targets}
        for number in range(ROUNDS):
            # The order turns too: what runs second finds the machine as the first left it.
            for target in targets if number % 2 == 0 else targets[::-1]:
                found[count][target.name].append(await rate_of(target, Cycle, count, each))
    return found


def report(found: dict[int, dict[str, list[Round]]], limits: dict[str, float]) -> None:
    print(f"\n{'connections':>11}  {'':10}  {'cycles/s':>8}  {'rounds':26}  processor µs per cycle")
    for count, by_name in found.items():
        medians: dict[str, float] = {}
        for name, rounds in by_name.items():
            medians[name] = median([round_.rate for round_ in rounds])
            parts = {
                part: median([round_.cpu_us[part] for round_ in rounds])
                for part in rounds[0].cpu_us
            }
            shown = ", ".join(f"{part} {value:.0f}" for part, value in parts.items())
            rates = " ".join(f"{round_.rate:,.0f}" for round_ in rounds)
            print(f"{count:>11}  {name:10}  {medians[name]:>8,.0f}  {rates:26}  {shown}")
        ours = medians.pop("tidewarden")
        for name, rate in medians.items():
            ratio = ours / rate
            limit = ""
            if count == LIMIT_CONNECTIONS and name in limits:
                aim = f", aim {AIM}" if limits[name] == LIMITS[False]["beanstalkd"] else ""
                limit = machine.against(limits[name], ratio, least=True, aim=aim)
            print(f"{'':11}  {'ratio':10}  {ratio:>8.2f}  of {name:23}  {limit}")


def replicated(options: Any) -> None:
    """Ours on replicated servers beside a plain node."""
    counts = [int(word) for word in options.connections.split(",")]
    with machine.own_folder(options.folder) as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(on_replicas.started(folder, options.durability))
        plain = stack.enter_context(tidewarden.started(folder, name="plain"))
        machine.print_machine(folder, ours.version, f"{plain.version}, plain")
        try:
            found = machine.run(
                measure([ours, dataclasses.replace(plain, name="plain")], counts, options.seconds)
            )
        except Broken as broken:
            raise SystemExit(str(broken)) from None
        report(found, PLAIN_LIMIT)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("put → take → ack per second, beside beanstalkd and Tarantool")
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="length of the whole run, without starting up"
    )
    parser.add_argument(
        "--connections", default="1,50,200", help="numbers of connections, in order"
    )
    parser.add_argument(
        "--fsync",
        action="store_true",
        help="every write is on disk before its answer, here and there",
    )
    parser.add_argument(
        "--wal", choices=("write", "none"), default="write", help="Tarantool's log, without --fsync"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="of our node, on one port (node.processes)"
    )
    parser.add_argument(
        "--url",
        default="",
        help="measure this node instead of starting one: redis://[user:secret@]host[:port]",
    )
    parser.add_argument(
        "--durability", choices=("one", "quorum"), default="", help="on a primary with two replicas"
    )
    options = parser.parse_args(argv)
    if options.durability:
        return replicated(options)
    if (options.fsync or options.processes > 1) and options.url:
        parser.error(
            "--fsync and --processes are how a node is started; with --url it runs already"
        )
    counts = [int(word) for word in options.connections.split(",")]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        if options.fsync and machine.file_system(folder) in ("tmpfs", "ramfs"):
            parser.error(
                f"{folder} lies in memory, where fsync costs nothing: name another place with"
                " --folder"
            )
        ours = (
            node_at(options.url)
            if options.url
            else stack.enter_context(
                tidewarden.started(folder, fsync=options.fsync, processes=options.processes)
            )
        )
        peers = start_peers(
            stack,
            lambda: beanstalkd.started(folder, fsync=options.fsync),
            lambda: tarantool.started(folder, fsync=options.fsync, wal=options.wal),
        )
        machine.print_machine(folder, *(target.version for target in (ours, *peers)))
        durable = (
            "every write on disk before its answer"
            if options.fsync
            else "ours on disk within a second"
        )
        print(f"payload {len(PAYLOAD)} bytes; {durable}")
        try:
            report(
                machine.run(measure([ours, *peers], counts, options.seconds)), LIMITS[options.fsync]
            )
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
