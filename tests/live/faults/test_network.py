"""
The network of the fault runs: connections between nodes are led through a proxy, which neither side
sees, and cuts stay true.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from support.cluster.harness import until
from support.store.echo import echoing, said, silent
from support.store.proxy import Proxy, Way

from benchmarks.network import Network, inside, missing, missing_led

LIMIT_S = 30.0


class Ends:
    """Three namespaces; a server in the second, whose port the others reach through a proxy."""

    def __init__(self) -> None:
        self.network = Network(["a", "b", "c"])
        address = (self.network.addresses["b"], 0)
        self.server = inside(self.network.namespace("b"), lambda: socket.create_server(address))
        self.port = self.server.getsockname()[1]
        listening, connect = self.network.led("b", self.port)
        self.proxy = Proxy(self.port, listening=listening, connect=connect)
        self.proxy.of_peer = {
            self.network.addresses[one]: {"up": Way(), "down": Way()} for one in "ac"
        }
        self._serving = contextlib.ExitStack()
        self.seen = self._serving.enter_context(echoing(self.server))

    def way(self, source: str, direction: str) -> Way:
        return self.proxy.of_peer[self.network.addresses[source]][
            "up" if direction == "up" else "down"
        ]

    def line(self, source: str, timeout_s: float = LIMIT_S) -> socket.socket:
        """A connection from that node to the server."""
        there = (self.network.addresses["b"], self.port)
        made = inside(self.network.namespace(source), socket.socket)
        try:
            made.settimeout(timeout_s)
            made.connect(there)
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        self._serving.close()
        self.proxy.close()
        self.network.close()


@pytest.fixture(scope="module")
def made() -> Iterator[Ends]:
    if reason := missing() or missing_led():
        pytest.skip(reason)
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture
def ends(made: Ends) -> Iterator[Ends]:
    yield made
    made.network.heal()
    made.proxy.calm()


def test_both_ends_see_each_others_addresses(ends: Ends) -> None:
    for source in "ac":
        with ends.line(source) as line:
            assert said(line, b"hello") == b"hello"
            assert line.getpeername() == (ends.network.addresses["b"], ends.port)
            assert ends.seen[-1] == ends.network.addresses[source]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_one_node_says_is_held_back_and_what_the_other_says_is_not(
    ends: Ends, direction: str
) -> None:
    with ends.line("a") as line, ends.line("c") as other:
        assert said(line, b"x") + said(other, b"y") == b"xy"
        ends.way("a", direction).open.clear()
        line.sendall(b"held")
        assert silent(line, 0.3)
        assert said(other, b"through") == b"through", "the ways of another node are its own"
        ends.proxy.calm()
        assert line.recv(1000) == b"held"


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_a_cut_is_a_cut_of_what_is_led_too(ends: Ends, cut: tuple[str, str]) -> None:
    with ends.line("a") as line:
        assert said(line, b"x") == b"x"
        ends.network.cut(*cut)
        line.sendall(b"y")
        assert silent(line, 0.3)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            ends.line("a", 0.3)
        assert time.monotonic() - begun >= 0.3, "nobody is told"
        ends.network.heal()
        assert line.recv(1000) == b"y", "it was a hole for a while, and the connection stands"


def test_who_has_no_server_refuses(ends: Ends) -> None:
    """As without a proxy, but that it is a reset: the kernel had answered before it was known."""
    listening, connect = ends.network.led("c", ends.port)
    proxy = Proxy(ends.port, listening=listening, connect=connect)
    line = inside(ends.network.namespace("a"), socket.socket)
    with line:
        line.settimeout(LIMIT_S)

        def reset() -> bool:
            try:
                line.connect((ends.network.addresses["c"], ends.port))
                return line.recv(1) == b""
            except ConnectionResetError:
                return True

        assert until(reset)
    proxy.close()


def test_one_port_is_cut_and_another_is_not(ends: Ends) -> None:
    """What a server sends from its port is lost, what comes to it is not; all else passes."""
    line = ends.line("a", 1.0)
    assert said(line, b"one") == b"one"
    ends.network.cut("b", "a", served=ends.port)
    with pytest.raises(TimeoutError):
        said(line, b"two")
    ends.network.heal()
    assert line.recv(10) == b"two"
    ends.network.cut("a", "b", asked=ends.port + 1)
    assert said(line, b"three") == b"three"
    ends.network.cut("a", "b", asked=ends.port)
    with pytest.raises(TimeoutError):
        said(line, b"four")
    ends.network.heal()
    line.close()


def test_a_cut_of_all_and_one_of_a_port_heal_together(ends: Ends) -> None:
    for _ in range(8):  # in any order
        ends.network.cut("a", "b", asked=ends.port)
        ends.network.cut("a", "b", served=ends.port)
        ends.network.cut("a", "b")
        ends.network.heal()
    with ends.line("a", 5.0) as line:
        assert said(line, b"x") == b"x"
