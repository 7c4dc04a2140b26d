"""
Measures a node with 3,000 providers of 10 accounts each, beside one provider with as many accounts.

    python -m benchmarks.providers [--providers 3000] [--each 10] [--seconds 20]

Both in one run, each under ``tidewarden up`` with a store of its own, and an endpoint of ours that
costs nothing:

- *start*: from the start of the processes until the node serves, with an empty store, and again
  with all accounts in it;
- *import*: all accounts fall due together; from then until all are fresh, refreshes a second,
  processor µs a refresh;
- *rest*: all are fresh and nobody asks: processor ms a second of node and store, memory of both;
- *asked*: ``T.STATS``, ``GET /v1/providers``, ``/metrics`` (time, size, and how many token series
  it has), and all pages of ``T.LIST``.

The ratios of one run count. What tells of each provider by itself (``T.STATS``, ``/v1/providers``,
``/metrics``) cannot be as short for 3,000 of them as for one: for these the limit is a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from benchmarks import machine, token_endpoint
from benchmarks.accounts import Fleet, Loader, fleet_up, name_of
from benchmarks.connections import Broken
from benchmarks.machine import median
from benchmarks.targets import resident_bytes
from benchmarks.token_endpoint import Endpoint

LIMIT_RATIO = 1.5
LIMIT_ASKED_S = 2.0
"""What tells of every provider: Prometheus waits ten seconds, and an operator less."""
STUCK_S = 600.0
# Until takes that found nothing wait for longer: what follows an import is no rest.
SETTLE_S = 125.0
ASKED = 3
PAGE = 1000
RATIOS = (
    "start, empty (s)",
    "start, full (s)",
    "until all are fresh (s)",
    "node µs a refresh",
    "store µs a refresh",
    "node at rest (ms/s)",
    "store at rest (ms/s)",
    "node memory (MiB)",
    "store memory (MiB)",
    "T.LIST, all pages (s)",
)
TIMES = ("T.STATS (s)", "GET /v1/providers (s)", "GET /metrics (s)")


@dataclass
class Shape:
    """So many providers of so many accounts each, and what was found."""

    providers: int
    each: int
    folder: Path
    found: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of the providers."""
        return [f"p{number:04}" for number in range(self.providers)]

    @property
    def accounts(self) -> int:
        """Of all providers."""
        return self.providers * self.each


async def fill(shape: Shape, fleet: Fleet, endpoint: Endpoint) -> None:
    """Put all accounts, due together, and wait until all are fresh."""
    loader, found = Loader(fleet), shape.found
    await loader.start()
    answered = endpoint.answered()
    # loading takes a part of a millisecond each
    due_ms = int(time.time() * 1000 + 5_000 + shape.accounts)
    try:
        for number, name in enumerate(shape.names):
            names = [name_of(number * shape.each + one) for one in range(shape.each)]
            await loader.load(names, lambda _: due_ms, provider=name)
    finally:
        await loader.stop()
    late_s = time.time() - due_ms / 1000
    if late_s > 0:
        print(f"loading took {late_s:.1f} s longer than was thought", flush=True)
    await asyncio.sleep(max(0.0, -late_s))
    used, began = fleet.used_s(), time.perf_counter()
    while (done := endpoint.answered() - answered) < shape.accounts:
        if time.perf_counter() - began > STUCK_S:
            found["refreshes missing"] = shape.accounts - done
            break
        await asyncio.sleep(0.05)
    found["until all are fresh (s)"] = passed_s = time.perf_counter() - began
    found["refreshes a second"] = done / passed_s
    for part, spent in fleet.used_s().items():
        found[f"{part} µs a refresh"] = (spent - used[part]) / max(1, done) * 1e6


async def rest(shape: Shape, fleet: Fleet, seconds: float) -> None:
    """Nobody asks for anything."""
    await asyncio.sleep(SETTLE_S)
    used, began = fleet.used_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    passed_s = time.perf_counter() - began
    for part, spent in fleet.used_s().items():
        shape.found[f"{part} at rest (ms/s)"] = (spent - used[part]) / passed_s * 1000
        shape.found[f"{part} memory (MiB)"] = resident_bytes(fleet.pids[part]) / 2**20


def ask(shape: Shape, fleet: Fleet) -> None:
    """What operators and their programs ask."""
    secret = (fleet.folder / "up" / "secrets" / "admin.secret").read_text().strip()
    with redis.Redis(
        port=fleet.ports[0],
        username="admin",
        password=secret,
        retry=None,
        protocol=3,
        socket_timeout=120,
    ) as client:
        shape.found["T.STATS (s)"] = timed(lambda: client.execute_command("T.STATS"))
        shape.found["GET /v1/providers (s)"] = timed(lambda: got(fleet, secret, "/v1/providers"))
        scraped: list[bytes] = []
        shape.found["GET /metrics (s)"] = timed(
            lambda: scraped.append(got(fleet, secret, "/metrics"))
        )
        shape.found["/metrics (KiB)"] = len(scraped[-1]) / 1024
        shape.found["/metrics, series of accounts"] = scraped[-1].count(
            b"\ntidewarden_tokens_accounts{"
        )
        shape.found["T.LIST, all pages (s)"] = timed(lambda: listed(client, shape.accounts), 1)


def timed(work: Callable[[], Any], times: int = ASKED) -> float:
    """The median of some."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def got(fleet: Fleet, secret: str, path: str) -> bytes:
    """The body of an answer of the HTTP door."""
    url = f"http://127.0.0.1:{fleet.ports[0] + 1}{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer admin:{secret}"})
    with urllib.request.urlopen(request, timeout=120) as response:
        body: bytes = response.read()
    return body


def listed(client: redis.Redis, accounts: int) -> None:
    """All pages. Raises: Broken: accounts are missing."""
    after, met = "", set()
    while True:
        found = client.execute_command(
            "T.LIST", "COUNT", PAGE, *(("AFTER", after) if after else ())
        )
        page, after = (found[b"accounts"], found[b"after"]) if isinstance(found, dict) else found
        met.update(one[b"account"] for one in page)
        if not after:
            break
    if len(met) != accounts:
        raise Broken(f"T.LIST shows {len(met):,} of {accounts:,} accounts")


def measure(shape: Shape, endpoint: Endpoint, seconds: float) -> str:
    """All of one shape; the versions."""
    shape.folder.mkdir()
    with fleet_up(
        shape.folder, refreshers=0, token_url=endpoint.url, providers=shape.names
    ) as fleet:
        shape.found["start, empty (s)"] = fleet.ready_s
        machine.run(fill(shape, fleet, endpoint))
        machine.run(rest(shape, fleet, seconds))
        ask(shape, fleet)
        versions = fleet.version()
    with fleet_up(
        shape.folder, refreshers=0, token_url=endpoint.url, providers=shape.names
    ) as fleet:
        shape.found["start, full (s)"] = fleet.ready_s
    return versions


def report(few: Shape, many: Shape) -> None:
    """A row for each figure, one shape beside the other."""
    heads = [f"{shape.providers:,} × {shape.each:,}" for shape in (few, many)]
    print(f"\n{'':32}  {heads[0]:>12}  {heads[1]:>12}")
    for name in {**few.found, **many.found}:
        one, other = few.found.get(name, 0.0), many.found.get(name, 0.0)
        limit = ""
        if name in RATIOS:
            ratio = other / one if one else float("inf")
            limit = (
                f"{ratio:>8.2f} ×; {machine.against(LIMIT_RATIO, ratio, least=False, unit=' ×')}"
            )
        elif name in TIMES:
            limit = f"{'':>10}  {machine.against(LIMIT_ASKED_S, other, least=False, unit=' s')}"
        print(f"{name:32}  {one:>12,.2f}  {other:>12,.2f}  {limit}")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("many providers of few accounts, beside one of many")
    parser.add_argument("--providers", type=int, default=3000)
    parser.add_argument("--each", type=int, default=10, help="accounts of each")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rest")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(machine.own_folder(options.folder))
        few = Shape(1, options.providers * options.each, folder / "one")
        many = Shape(options.providers, options.each, folder / "many")
        try:
            endpoint = stack.enter_context(token_endpoint.started(folder))
            for shape in (few, many):
                versions = measure(shape, endpoint, options.seconds)
            machine.print_machine(folder, versions)
            report(few, many)
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
