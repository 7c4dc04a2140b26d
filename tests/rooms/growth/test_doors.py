"""
What doors, log, SDK and refreshers keep for long stays bounded: see docs/testing.md, "What stays".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from support.growth import by_container, entries
from support.inspect import check_quickly
from support.manual_clock import ManualClock

from tidewarden.client.acks_with_takes import AcksWithTakes
from tidewarden.client.lease_keeper import LeaseKeeper
from tidewarden.clock import SystemClock
from tidewarden.config.load import Companion, Provider, User, hash_generated
from tidewarden.config.rights import KEPT_MAX, Rights
from tidewarden.errors import Denied
from tidewarden.log import Repeats
from tidewarden.server.access.login_throttle import HOSTS_MAX, LoginThrottle
from tidewarden.server.access.users import Users
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.events import companions
from tidewarden.tokens.limits.node_limits import FairShare, HostRateLimits
from tidewarden.tokens.provider.http_post import HEADS_MAX, HttpPost

ROUNDS = 100_000
NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.thorough


def test_hosts_that_fail_to_log_in() -> None:
    penalties = LoginThrottle(SystemClock())
    for n in range(ROUNDS):
        penalties.of(f"h{n}:1").fail(float(n), b"%d" % n)
    assert entries(penalties) <= HOSTS_MAX


def test_names_that_a_user_asks_for() -> None:
    rights = Rights(("put:mails.*",))
    for n in range(ROUNDS):
        rights.allow("put", f"mails.{n}")
    assert entries(rights) <= KEPT_MAX + 2, by_container(rights)


def test_secrets_that_are_wrong_and_requests_that_are_denied() -> None:
    users = Users(
        (User(name="reader", secret_hash=hash_generated("right")),), SystemClock(), loopback=False
    )
    before = entries(users)
    for n in range(ROUNDS // 10):
        assert users.known(f"u{n}", f"s{n}") is None
        assert check_quickly(users, "reader", f"s{n}") is None
        users.deny("reader", f"10.0.0.1:{n}", Denied("no"))
    assert entries(users) <= before + 2, by_container(users)


async def test_lines_of_the_log_that_differ() -> None:
    clock = ManualClock()
    repeats = Repeats(clock)
    for n in range(ROUNDS):
        record = logging.LogRecord("a", logging.ERROR, "a.py", 1, "no %d", (n,), None)
        assert repeats.filter(record)
    assert entries(repeats) <= 4 * 256, by_container(repeats)


def test_accounts_that_are_read_and_never_again() -> None:
    cache = Cache(1_000, ManualClock(NOW_MS))
    for n in range(ROUNDS):
        row = AccountRow(
            1, 1, NOW_MS, NOW_MS + 60_000, NOW_MS, b"o" * 8, b"c" * 8, access=b"sealed", refresh=b""
        )
        cache.keep(f"p/a{n}", row, NOW_MS, read=True)
    assert entries(cache) <= 1_000


async def test_companions_whose_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "WAITING_MAX", 1_000)

    async def never(*_: Any) -> Any:
        raise AssertionError

    made = companions.Companions({"c": Companion("c", (), "q", 60)}, never, never, ManualClock())
    for n in range(ROUNDS):
        made.fresh(f"p/a{n}")
    assert entries(made) <= 1_010, by_container(made)
    assert made.lost == ROUNDS - 1_000


async def test_secrets_of_clients_and_endpoints_that_change() -> None:
    async with aiohttp.TCPConnector() as connector:
        poster = HttpPost(connector, aiohttp.ClientTimeout(), {}, SystemClock())
        for n in range(1_000):
            poster.head(f"https://h{n}.example/token", {"authorization": f"Basic {n}"})
        assert entries(poster) <= 2 * HEADS_MAX + 10, by_container(poster)


def test_hosts_rates_without_the_store() -> None:
    hosts = HostRateLimits()
    providers = [
        Provider(name=f"p{n}", token_url=f"https://h{n}.example/token", host_rate=5.0)
        for n in range(10)
    ]
    for provider in providers:
        hosts.add(provider)
    for n in range(ROUNDS):
        hosts.alone(providers[n % 10], n / 10)
    assert entries(hosts) <= 20


async def test_providers_that_wait_for_their_seats() -> None:
    seats = FairShare(10)
    for n in range(1_000):
        waiting = asyncio.ensure_future(seats.wait(f"p{n % 10}"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert entries(seats) <= 20, by_container(seats)


class Line:
    """A line of the SDK that is never used."""

    def hold(self, holds: bool) -> None: ...


class Held:
    """What is kept: a task's lease, not due for renewal."""

    lease_ms = 3_600_000
    since = 0.0
    on_lost = None


async def test_leases_that_the_sdk_keeps_and_drops() -> None:
    clock = ManualClock()
    leases = LeaseKeeper(Line(), clock)  # type: ignore[arg-type]
    for _ in range(ROUNDS // 10):
        held: Any = Held()
        held.since = clock.monotonic()
        leases.keep(held)
        leases.drop(held)
    assert entries(leases) == 0, by_container(leases)


async def test_acks_that_wait_for_a_take_that_never_comes() -> None:
    acks = AcksWithTakes(None)  # type: ignore[arg-type]
    with acks.gathering():
        for _ in range(1_000):
            sending = asyncio.ensure_future(acks.send(("Q.ACK", "q", "t", 1)))
            await asyncio.sleep(0)
            acks.send_alone()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    assert entries(acks) == 0, by_container(acks)
