"""
Measures refreshes per second of one node or several, beside HTTP clients making the same POSTs.

    python -m benchmarks.refresh [--seconds 40] [--nodes 1] [--refreshers 256]

A token endpoint of its own (``benchmarks.token_endpoint``, too fast to matter, its processor time
printed) answers all of them. Ours is ``tidewarden up`` with an embedded store as users have it:
each refresh takes its task, has its intent on disk, asks, has the sealed answer in the journal on
disk, and writes it back, on disk again. The peers keep nothing of what they hear: httpx (32
requests under way, for its pool slows down with their number), and aiohttp with as many under way
as ours.

A round of ours is a batch of accounts that fall due together; it is timed from its first tenth to
its last. Rounds take turns, because a shared machine's speed drifts; the ratios of one run count,
and processor µs a refresh, the rates alone do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx

from benchmarks import machine, token_endpoint
from benchmarks.accounts import Fleet, Loader, fleet_up, name_of
from benchmarks.connections import Broken
from benchmarks.machine import median
from benchmarks.token_endpoint import Endpoint

LIMIT_RATE, AIM_RATE, LIMIT_RATIO = 1500, 2778, 0.5
OURS, BARE = "tidewarden", "aiohttp"
ROUNDS = 3
HTTPX_AT_ONCE = 32
FIRST = 2000  # accounts of the round that nobody counts
STUCK_S = 60.0
FORM = {
    "grant_type": "refresh_token",
    "refresh_token": "r" * 64,
    "client_id": "c0",
    "client_secret": "not a secret",
}
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
Post = Callable[[], Awaitable[bytes]]


@dataclass
class Round:
    """Requests a second, and processor µs of each part a request."""

    rate: float
    cpu_us: dict[str, float]


@contextlib.asynccontextmanager
async def by_aiohttp(url: str, at_once: int) -> AsyncIterator[Post]:
    """aiohttp alone."""
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def post() -> bytes:
            async with session.post(url, data=FORM, headers=HEADERS) as response:
                return await response.read()

        yield post


@contextlib.asynccontextmanager
async def by_httpx(url: str, at_once: int) -> AsyncIterator[Post]:
    """httpx."""
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=30) as client:

        async def post() -> bytes:
            return (await client.post(url, data=FORM, headers=HEADERS)).content

        yield post


CLIENTS = {"httpx": by_httpx, BARE: by_aiohttp}


async def client_round(name: str, endpoint: Endpoint, at_once: int, seconds: float) -> Round:
    """So many requests under way for so long, by a bare client in this process."""
    at_once = min(at_once, HTTPX_AT_ONCE) if name == "httpx" else at_once
    async with CLIENTS[name](endpoint.url, at_once) as post:
        until = 0.0

        async def ask() -> None:
            while time.perf_counter() < until:
                if b"access_token" not in await post():
                    raise Broken(f"{name} was not given a token")

        until = time.perf_counter() + min(0.5, seconds)
        await asyncio.gather(*(ask() for _ in range(at_once)))  # its connections are open now
        count, used_s, answering_s, began = (
            endpoint.answered(),
            time.process_time(),
            endpoint.used_s(),
            time.perf_counter(),
        )
        until = began + seconds
        await asyncio.gather(*(ask() for _ in range(at_once)))
        passed_s, count = time.perf_counter() - began, endpoint.answered() - count
        cpu = {"client": time.process_time() - used_s, "endpoint": endpoint.used_s() - answering_s}
    return Round(count / passed_s, {part: spent / count * 1e6 for part, spent in cpu.items()})


class Ours:
    """The nodes, and accounts that fall due together, round by round."""

    def __init__(self, fleet: Fleet, endpoint: Endpoint, loader: Loader) -> None:
        self.fleet = fleet
        self.endpoint = endpoint
        self.loader = loader
        self.loaded = 0
        self.rate = 1000.0
        self.loads_s = 0.0005

    async def round(self, count: int) -> Round:
        """
        Refresh so many accounts.

        Raises: Broken: they do not get through.
        """
        names = [name_of(self.loaded + number) for number in range(count)]
        self.loaded += count
        began, first = time.perf_counter(), self.endpoint.answered()
        due_ms = int(time.time() * 1000 + 500 + 2000 * count * self.loads_s)
        await self.loader.load(names, lambda _: due_ms)
        self.loads_s = (time.perf_counter() - began) / count
        since, used, answering_s = await self._after(first + count // 10)
        until, used_then, answering_then_s = await self._after(first + count * 9 // 10)
        done = count * 8 / 10
        await self._after(first + count)
        self.rate = done / (until - since)
        cpu = {part: used_then[part] - used[part] for part in used} | {
            "endpoint": answering_then_s - answering_s
        }
        return Round(self.rate, {part: spent / done * 1e6 for part, spent in cpu.items()})

    async def _after(self, answers: int) -> tuple[float, dict[str, float], float]:
        """The time and what was used by then, once the endpoint has given so many answers."""
        stuck = time.perf_counter() + STUCK_S
        while self.endpoint.answered() < answers:
            if time.perf_counter() > stuck:
                said = (self.fleet.folder / "up" / "n0" / "output.log").read_text()[-1500:]
                raise Broken(
                    f"{answers - self.endpoint.answered():,} refreshes are missing after"
                    f" {STUCK_S:g} s\n{said}"
                )
            await asyncio.sleep(0.005)
        return time.perf_counter(), self.fleet.used_s(), self.endpoint.used_s()


async def measure(
    fleet: Fleet, endpoint: Endpoint, at_once: int, seconds: float
) -> dict[str, list[Round]]:
    """Rounds in turn."""
    each = max(0.3, seconds / ((len(CLIENTS) + 1) * ROUNDS))
    found: dict[str, list[Round]] = {name: [] for name in (*CLIENTS, OURS)}
    loader = Loader(fleet)
    await loader.start()
    try:
        ours = Ours(fleet, endpoint, loader)
        await ours.round(FIRST)
        for number in range(ROUNDS):
            # The order turns too: what runs second finds the machine as the first left it.
            for name in list(found)[:: 1 if number % 2 == 0 else -1]:
                if sys.stderr.isatty():
                    print(
                        f"\r\033[Kround {number + 1}: {name}", end="", file=sys.stderr, flush=True
                    )
                one = (
                    await ours.round(max(FIRST, int(ours.rate * each)))
                    if name == OURS
                    else await client_round(name, endpoint, at_once, each)
                )
                found[name].append(one)
    finally:
        await loader.stop()
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
    return found


def report(found: dict[str, list[Round]]) -> None:
    """A row for each, then the limits."""
    print(f"\n{'':16}  {'a second':>8}  {'rounds':23}  processor µs each")
    rates = {name: median([one.rate for one in rounds]) for name, rounds in found.items()}
    for name, rounds in found.items():
        parts = {part: median([one.cpu_us[part] for one in rounds]) for part in rounds[0].cpu_us}
        shown = ", ".join(f"{part} {value:.0f}" for part, value in parts.items())
        print(
            f"{name:16}  {rates[name]:>8,.0f}  {' '.join(f'{one.rate:,.0f}' for one in rounds):23} "
            f" {shown}"
        )
    print(
        "refreshes a second:"
        f" {machine.against(LIMIT_RATE, rates[OURS], least=True, aim=f', aim {AIM_RATE:,}')}"
    )
    ratio = rates[OURS] / rates[BARE]
    nodes = [part for part in found[OURS][0].cpu_us if part.startswith("node")]
    # The limit is one node's: each client is one process, too.
    limit = (
        f"; {machine.against(LIMIT_RATIO, ratio, least=True, unit=' ×')}" if len(nodes) == 1 else ""
    )
    print(f"of {BARE}: {ratio:.2f} ×{limit}")
    ours_us = median([sum(one.cpu_us[part] for part in nodes) for one in found[OURS]])
    for name in CLIENTS:
        bare_us = median([one.cpu_us["client"] for one in found[name]])
        print(f"processor time of the nodes' part beside {name}'s: {ours_us / bare_us:.2f} ×")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = machine.arguments("refreshes a second, beside bare HTTP clients")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        help="length of the whole run, without starting up and loading",
    )
    parser.add_argument("--nodes", type=int, default=1, help="of ours")
    parser.add_argument(
        "--refreshers",
        type=int,
        default=256,
        help="requests under way at most: of each node, and of each client",
    )
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        folder: Path = stack.enter_context(machine.own_folder(options.folder))
        try:
            endpoint = stack.enter_context(token_endpoint.started(folder))
            fleet = stack.enter_context(
                fleet_up(
                    folder,
                    nodes=options.nodes,
                    refreshers=options.refreshers,
                    token_url=endpoint.url,
                )
            )
            clients = f"httpx {httpx.__version__}, aiohttp {aiohttp.__version__}"
            machine.print_machine(folder, fleet.version(), clients)
            print(
                f"{options.nodes} node(s), {options.refreshers} requests under way at most, journal"
                " and vault on"
            )
            report(machine.run(measure(fleet, endpoint, options.refreshers, options.seconds)))
        except Broken as broken:
            raise SystemExit(str(broken)) from None


if __name__ == "__main__":
    main()
