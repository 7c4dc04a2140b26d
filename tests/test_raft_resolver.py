"""Names of members: asked anew, never waited for."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pysyncobj.node

from tidewarden.clock import ManualClock
from tidewarden.raft import pysync
from tidewarden.raft.resolver import FRESH_S, PATIENCE_S, Resolver

LIMIT_S = 30.0


class NameService:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.asked = 0
        self.may = threading.Event()
        self.may.set()

    def lookup(self, host: str, port: None) -> list[Any]:
        self.asked += 1
        assert self.may.wait(LIMIT_S)
        if not self.answers:
            raise socket.gaierror("no such name")
        return [(family, None, None, "", (address, 0)) for family, address in self.answers]


def settled(resolver: Resolver, host: str = "n0.local") -> str | None:
    """What it says once nothing is under way."""
    found, end = resolver.resolve(host), time.monotonic() + LIMIT_S
    while resolver._known[host].under_way:
        assert time.monotonic() < end
        time.sleep(0.001)
    return found if found is not None else resolver.resolve(host)


async def test_another_address_is_known_as_soon_as_it_is_asked_for() -> None:
    clock, service = ManualClock(), NameService()
    resolver = Resolver(clock, service.lookup)
    service.answers = [(socket.AF_INET, "10.0.0.5")]
    assert settled(resolver) == "10.0.0.5"
    service.answers = [(socket.AF_INET, "10.0.0.6")]
    assert resolver.resolve("n0.local") == "10.0.0.5", "it has just been asked for"
    assert service.asked == 1
    await clock.advance(FRESH_S + 0.1)
    assert settled(resolver) == "10.0.0.6"


async def test_a_name_service_that_hangs_or_fails_stops_nobody() -> None:
    clock, service = ManualClock(), NameService()
    resolver = Resolver(clock, service.lookup)
    assert settled(resolver) is None
    await clock.advance(FRESH_S + 0.1)
    service.answers = [(socket.AF_INET, "10.0.0.5")]
    assert settled(resolver) == "10.0.0.5"
    service.may.clear()
    await clock.advance(FRESH_S + 0.1)
    assert resolver.resolve("n0.local") is None, "an answer is on its way"
    await clock.advance(PATIENCE_S + 0.1)
    assert resolver.resolve("n0.local") == "10.0.0.5"
    service.answers = []
    service.may.set()
    assert settled(resolver) == "10.0.0.5", "no answer is no other answer"


def test_ipv4_goes_first_and_addresses_are_not_asked_for() -> None:
    service = NameService()
    resolver = Resolver(ManualClock(), service.lookup)
    service.answers = [(socket.AF_INET6, "::1"), (socket.AF_INET, "10.0.0.5")]
    assert settled(resolver) == "10.0.0.5"
    service.answers = [(socket.AF_INET6, "fd00::5")]
    assert settled(resolver, "six.local") == "fd00::5"
    assert [resolver.resolve(address) for address in ("10.0.0.7", "::1")] == ["10.0.0.7", "::1"]
    assert service.asked == 2


def test_members_are_looked_up_by_it() -> None:
    assert pysync.Resolver is Resolver
    assert isinstance(pysyncobj.node.globalDnsResolver(), Resolver)
