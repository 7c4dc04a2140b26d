"""Host names of members: nobody waits for a name server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from support.inspect import under_way_at

from tidewarden.raft import resolver
from tidewarden.raft.resolver import Resolver


class Server:
    """
    A name server that answers when it is let: ``answers`` by name; one that is none is refused.
    """

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asked: list[str] = []
        self.answers: dict[str, list[str]] = {}

    def lookup(self, host: str) -> list[str]:
        self.asked.append(host)
        assert self.free.wait(60)
        if host not in self.answers:
            raise socket.gaierror("nobody knows it")
        return list(self.answers[host])


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_silent_name_server_is_waited_for_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    server, now = Server(), [100.0]
    found = Resolver(server.lookup, lambda: now[0])
    for host in ("127.0.0.1", "::1"):
        assert found.resolve(host) == host
    for _ in range(3):
        assert found.resolve("a.example") is None
    assert server.asked == ["a.example"]
    server.answers["a.example"] = ["10.0.0.1", "10.0.0.2"]
    server.free.set()
    until(lambda: found.resolve("a.example"))
    assert {found.resolve("a.example") for _ in range(2)} == {"10.0.0.1", "10.0.0.2"}

    # asked again; meanwhile, and when nothing is found, what was found last holds
    now[0] += resolver.KNOWN_S
    server.answers.clear()
    server.free.clear()
    assert found.resolve("a.example")
    server.free.set()
    until(lambda: "'a.example' is not found: nobody knows it" in caplog.text)
    assert found.resolve("a.example")
    until(lambda: not under_way_at(found))
    assert server.asked == ["a.example"] * 2
    now[0] += resolver.UNKNOWN_S
    server.answers["a.example"] = ["10.0.0.3"]
    found.resolve("a.example")
    until(lambda: found.resolve("a.example") == "10.0.0.3")


def test_names_are_looked_up_and_what_is_none_is_not_found() -> None:
    assert resolver.looked_up("localhost")
    found = Resolver(resolver.looked_up, time.monotonic)
    for host in ("no-such-host.invalid", "ä" * 70):
        assert found.resolve(host) is None
        until(lambda host=host: host not in under_way_at(found))
        assert found.resolve(host) is None
