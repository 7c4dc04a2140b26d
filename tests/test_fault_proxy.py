"""The proxy of the fault runs does to bytes what it says, in each direction by itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from live.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with peer:
            try:
                while data := peer.recv(65536):
                    peer.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    made = Proxy(echo)
    yield made
    made.close()


@pytest.fixture
def line(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as made:
        made.settimeout(5)
        assert said(made, b"hello") == b"hello"
        yield made


def said(line: socket.socket, words: bytes) -> bytes:
    """What comes back, whole."""
    line.sendall(words)
    found = b""
    while len(found) < len(words):
        data = line.recv(65536)
        assert data, "closed"
        found += data
    return found


def silent(line: socket.socket, seconds: float = 0.2) -> bool:
    """Whether nothing comes for a while."""
    limit_s = line.gettimeout()
    line.settimeout(seconds)
    try:
        line.recv(1)
    except TimeoutError:
        return True
    finally:
        line.settimeout(limit_s)
    return False


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_is_delayed_comes_later(proxy: Proxy, line: socket.socket, direction: str) -> None:
    proxy.ways[direction].delay_s = 0.15  # type: ignore[index]
    begun = time.monotonic()
    assert said(line, b"x") == b"x"
    assert time.monotonic() - begun >= 0.15


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_is_held_comes_when_it_is_let_go(proxy: Proxy, line: socket.socket, direction: str) -> None:
    proxy.ways[direction].open.clear()  # type: ignore[index]
    line.sendall(b"held")
    assert silent(line)
    proxy.calm()
    assert line.recv(10) == b"held"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_falls_into_a_black_hole_is_gone_and_so_is_its_connection(
    proxy: Proxy, line: socket.socket, direction: str
) -> None:
    proxy.ways[direction].lost = True  # type: ignore[index]
    line.sendall(b"gone")
    assert silent(line)
    proxy.calm()
    with pytest.raises(ConnectionResetError):
        line.recv(1)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as fresh:
        assert said(fresh, b"again") == b"again"


def test_sliced_bytes_are_all_there(proxy: Proxy, line: socket.socket) -> None:
    proxy.ways["up"].slice_bytes = proxy.ways["down"].slice_bytes = 1
    assert said(line, bytes(range(256))) == bytes(range(256))


def test_a_reset_by_chance_is_a_reset(proxy: Proxy, line: socket.socket) -> None:
    proxy.ways["up"].reset_chance = 1.0
    line.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        line.recv(1)
