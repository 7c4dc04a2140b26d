"""
One table: ours beside beanstalkd, Tarantool, Celery, RQ, Dramatiq, arq, huey, taskiq and SAQ.

    make bench
    python -m benchmarks.peers [--only beanstalkd,rq] [--seconds 20] [--death-seconds 5]

*Servers* (tidewarden, beanstalkd, Tarantool) are driven by 50 bare connections from one process,
each with one request under way; ours comes once more at the end, so that the machine's drift in
between is seen. *Libraries* run as their users have them: one worker of their own by their defaults
(50 jobs at a time where they are asynchronous), a producer, and a Valkey of their own with the
settings of ours; each is installed once into an environment of its own under .bench-venv.
``tidewarden worker`` is ours measured as they are, by the client and the worker of its SDK at a
node.

| column | servers | libraries |
| --- | --- | --- |
| enqueue | puts a second at 50 connections | from one producer, 50 under way where it is asynchronous |
| consume | take → ack of what was put, 50 connections | the worker drains what was put, a function that does nothing |
| cycle | put → take → ack at 50 connections | a task is put whenever fewer than 50 are unfinished |
| late | arrival at a waiting consumer less due time | beginning of the run less due time |
| redelivery | SIGKILL of the consumer until another has its task, median of 20 | SIGKILL of the worker with all its processes, once |
| memory | of a ready task with 100 bytes: the engine's figure; tuples and indexes; beanstalkd: resident | the store's figure |

A word in a cell says why there is no figure: ``>6 s: 1 h`` is not within six seconds, by its
defaults after an hour; ``lost``: the library keeps no copy while a task runs. Late by less than
nothing is early: RQ's scheduler counts whole seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.connections import PAYLOAD, Broken
from benchmarks.peers import environments, library, server
from benchmarks.peers.row import Row, print_table
from benchmarks.targets import Missing

FASTEST_LIMIT = 5.0


def one_row(name: str, folder: Path, seconds: float, death_s: float) -> Row:
    """
    The row of that name.

    Raises: Missing, Broken.
    """
    print(f"{name} …", file=sys.stderr, flush=True)
    with machine.own_folder(folder) as inside:
        if name in server.SERVERS:
            with server.started(name, inside) as target:
                return machine.run(server.measure(target, seconds))
        if name == environments.WORKER.name:
            return library.measure_worker(inside, seconds, death_s)
        found = next(one for one in environments.LIBRARIES if one.name == name)
        return library.measure(found, inside, seconds, death_s)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    first, *others = server.SERVERS
    names = [
        first,
        environments.WORKER.name,
        *others,
        *(one.name for one in environments.LIBRARIES),
    ]
    parser = machine.arguments("ours beside every peer")
    parser.add_argument(
        "--only",
        default="",
        help=f"some peers, by commas, ours always beside: {', '.join(names[1:])}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=16.0,
        help="measuring time of one peer, without starting up",
    )
    parser.add_argument(
        "--death-seconds", type=float, default=6.0, help="how long a redelivery is waited for"
    )
    options = parser.parse_args(argv)
    wanted = [name for name in options.only.split(",") if name] or names[1:]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(names[1:])}")
    rows: list[Row] = []
    absent: dict[str, str] = {}
    began = time.monotonic()
    with machine.own_folder(options.folder) as folder:
        for name in [names[0], *(name for name in wanted if name != names[0]), names[0]]:
            try:
                rows.append(one_row(name, folder, options.seconds, options.death_seconds))
            except (Missing, Broken) as problem:
                absent[name] = str(problem).removeprefix(f"{name} is ").removeprefix(f"{name}: ")
        versions = {row.name: row.version for row in rows}
        machine.print_machine(
            folder, ", ".join(shown_version(name, text) for name, text in versions.items())
        )
    print(f"payload {len(PAYLOAD)} bytes; {time.monotonic() - began:.0f} s in all")
    if len(rows) > 1 and rows[-1].name == names[0]:
        rows[-1].name += " again"
    print_table(rows, absent)
    theirs = {one.name for one in environments.LIBRARIES}
    fastest = max(
        (row for row in rows if row.name in theirs and not isinstance(row.cycle, str)),
        key=lambda row: row.cycle,
        default=None,
    )
    if fastest is not None and rows[0].name == names[0]:
        ratio = float(rows[0].cycle) / float(fastest.cycle)
        limit = machine.against(FASTEST_LIMIT, ratio, least=True, unit=" ×")
        print(f"\ncycle: {ratio:.1f} × that of the fastest Python queue, {fastest.name}; {limit}")


def shown_version(name: str, version: str) -> str:
    return version if name.lower() in version.lower() else f"{name} {version}"


if __name__ == "__main__":
    main()
