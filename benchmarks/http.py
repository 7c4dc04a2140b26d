"""
Measures put → take → ack per second over HTTP beside the same over RESP, and beside RabbitMQ's API.

    python -m benchmarks.http [--seconds 30] [--connections 1,50] [--polls 800]

One node on its embedded store answers at both doors, and the same client drives all from this one
process: uvloop, bare protocols, one request under way on a connection. Rounds take turns; the ratio
of the medians is the figure. RabbitMQ's management plugin has the only HTTP API of a queue that
Debian has: it publishes and gets, without leases, so a cycle there is two requests beside our
three. NATS and Faktory have none: NATS serves its figures over HTTP, Faktory a page.

Before that ``--polls`` takes wait over HTTP at the node, each on a connection of its own: what each
adds to the memory of the node's process, and how many of them a MiB holds.
"""

from __future__ import annotations

import asyncio
import contextlib

from benchmarks import machine
from benchmarks.connections import PAYLOAD, Board, Broken, Connection, Round, connected
from benchmarks.cycle import measure
from benchmarks.machine import median
from benchmarks.peers import rabbitmq_http, tidewarden, tidewarden_http
from benchmarks.targets import Target, resident_bytes, start_peers

SETTLE_S = 1.0
MIB = 1 << 20


class Poll(Connection):
    """A take that waits for a task that never comes."""

    ends_by_itself = False

    def begin(self) -> None:
        self.take()


async def polled(node: Target, count: int) -> int:
    """Bytes that so many long polls add to the front's memory. Raises: Broken."""
    board = Board()
    async with connected(node, Poll, Board(), 1):  # what the first of them loads
        await asyncio.sleep(SETTLE_S)
    before = resident_bytes(node.pids["front"])
    async with connected(node, Poll, board, count):
        await asyncio.sleep(SETTLE_S)
        if board.open < count:
            raise Broken(f"{count - board.open} of {count} long polls were refused")
        return resident_bytes(node.pids["front"]) - before


def report(found: dict[int, dict[str, list[Round]]]) -> None:
    print(f"\n{'connections':>11}  {'':10}  {'cycles/s':>8}  {'rounds':26}  processor µs per cycle")
    for count, by_name in found.items():
        rates = {name: median([one.rate for one in rounds]) for name, rounds in by_name.items()}
        for name, rounds in by_name.items():
            shown = ", ".join(
                f"{part} {median([one.cpu_us[part] for one in rounds]):.0f}"
                for part in rounds[0].cpu_us
            )
            each = " ".join(f"{one.rate:,.0f}" for one in rounds)
            print(f"{count:>11}  {name:10}  {rates[name]:>8,.0f}  {each:26}  {shown}")
        for name in sorted(rates.keys() - {"http"}):
            print(f"{'':11}  {'ratio':10}  {rates['http'] / rates[name]:>8.2f}  http of {name}")


def print_polls(count: int, added_bytes: int) -> None:
    each = added_bytes / count
    held = f"{MIB / max(1.0, each):,.0f} a MiB of the node's memory"
    print(f"{count} long polls: {each / 1024:.1f} KiB each, {held}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("put → take → ack per second over HTTP, beside RESP and RabbitMQ's")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of all rounds")
    parser.add_argument("--connections", default="1,50", help="numbers of connections, in order")
    parser.add_argument("--polls", type=int, default=800, help="long polls held at once; 0: none")
    options = parser.parse_args(argv)
    counts = [int(word) for word in options.connections.split(",")]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        resp = stack.enter_context(tidewarden.started(folder, name="resp"))
        http = tidewarden_http.beside(resp)
        peers = start_peers(stack, lambda: rabbitmq_http.started(folder))
        machine.print_machine(folder, *(target.version for target in (resp, *peers)))
        print(f"payload {len(PAYLOAD)} bytes; ours on disk within a second")
        targets = [http, tidewarden_http.named(resp, "resp"), *peers]
        try:
            if options.polls:
                print_polls(options.polls, machine.run(polled(http, options.polls)))
            report(machine.run(measure(targets, counts, options.seconds)))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
