"""
One table: ours beside beanstalkd and Tarantool.

    make bench
    python -m benchmarks.peers [--only beanstalkd] [--seconds 20]

Each server is driven by 50 bare connections from one process, each with one request under way; ours
comes once more at the end, so that the machine's drift in between is seen.

| column | what it measures |
| --- | --- |
| enqueue | puts a second at 50 connections |
| consume | take → ack of what was put, 50 connections |
| cycle | put → take → ack at 50 connections |
| late | arrival at a waiting consumer less due time |
| redelivery | SIGKILL of the consumer until another has its task, median of 20 |
| memory | of a ready task with 100 bytes, by each server's own figure; beanstalkd: resident |
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.connections import PAYLOAD, Broken
from benchmarks.peers import server
from benchmarks.peers.row import Row, print_table
from benchmarks.targets import Missing


def one_row(name: str, folder: Path, seconds: float) -> Row:
    """
    The row of that name.

    Raises: Missing, Broken.
    """
    print(f"{name} …", file=sys.stderr, flush=True)
    with machine.own_folder(folder) as inside, server.started(name, inside) as target:
        return machine.run(server.measure(target, seconds))


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    names = list(server.SERVERS)
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
                rows.append(one_row(name, folder, options.seconds))
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


def shown_version(name: str, version: str) -> str:
    return version if name.lower() in version.lower() else f"{name} {version}"


if __name__ == "__main__":
    main()
