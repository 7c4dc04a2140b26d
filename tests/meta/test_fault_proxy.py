"""The proxy of the fault runs does to bytes what it says, in each direction by itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.store.echo import echoing, said, silent
from support.store.proxy import Direction, Proxy
from support.store.servers import StoreServer


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """It leads to a server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))
    with echoing(server):
        made = Proxy(server.getsockname()[1])
        yield made
        made.close()


@pytest.fixture
def line(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as made:
        made.settimeout(5)
        assert said(made, b"hello") == b"hello"
        yield made


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_is_delayed_comes_later(proxy: Proxy, line: socket.socket, direction: str) -> None:
    proxy.ways[direction].delay_s = 0.15  # type: ignore[index]
    begun = time.monotonic()
    assert said(line, b"x") == b"x"
    assert time.monotonic() - begun >= 0.15


@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_is_held_comes_when_it_is_let_go(
    proxy: Proxy, line: socket.socket, direction: str
) -> None:
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


@pytest.fixture
def store_client(store_proxy: Proxy) -> Iterator[Callable[[str], redis.Redis]]:
    """Makes connections to the store through the proxy, by their names."""
    made: list[redis.Redis] = []

    def connect(name: str) -> redis.Redis:
        client = redis.Redis(
            port=store_proxy.port, client_name=name, single_connection_client=True, socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        made.append(client)
        assert client.ping()
        return client

    yield connect
    for client in made:
        client.close()


def test_one_connection_is_cut_by_its_name(
    store_proxy: Proxy, store_client: Callable[[str], redis.Redis]
) -> None:
    data, ears = store_client("n0-data"), store_client("n0-ears")
    assert store_proxy.cut("data") == 1
    with pytest.raises(redis.ConnectionError):
        data.ping()
    assert ears.ping()
    assert store_proxy.cut("ata") == 0
    assert store_proxy.cut("n0-ears", reset=False) == 1
    with pytest.raises(redis.ConnectionError):
        ears.ping()


def test_a_lost_request_never_reaches_the_store_nor_does_what_was_sent_behind_it(
    store_proxy: Proxy, store_client: Callable[[str], redis.Redis], valkey: StoreServer
) -> None:
    data, ears = store_client("n0-data"), store_client("n0-ears")
    loss = store_proxy.lose("data", "request", b"the third")
    ears.set("other", "the third")
    data.set("a", "the first")
    with data.pipeline(transaction=False) as many, pytest.raises(redis.ConnectionError):
        many.set("b", "the third").set("c", "x" * 200_000).set("d", "y").execute()
    loss.wait(5)
    assert sorted(valkey.client.keys()) == [b"a", b"other"]
    again = store_client("n0-data")
    assert again.set("b", "the third"), "only one is lost"


def test_a_lost_answer_is_of_a_request_that_was_executed(
    store_proxy: Proxy, store_client: Callable[[str], redis.Redis], valkey: StoreServer
) -> None:
    data, ears = store_client("n0-data"), store_client("n0-ears")
    slowly = "local n = 0 for _ = 1, 3e6 do n = n + 1 end return redis.call('SET', KEYS[1], n)"
    loss = store_proxy.lose("data", "reply", b"second")
    with data.pipeline(transaction=False) as many, pytest.raises(redis.ConnectionError):
        many.set("first", "x").eval(slowly, 1, "second").execute()
    loss.wait(5)
    assert valkey.client.get("second") == b"3000000"
    assert ears.ping()


def test_a_lost_message_takes_its_connection_along(
    store_proxy: Proxy, store_client: Callable[[str], redis.Redis], valkey: StoreServer
) -> None:
    with store_client("n0-ears").pubsub() as ears:
        ears.subscribe("wake")
        assert ears.get_message(timeout=5)
        loss = store_proxy.lose("ears", "message", b"lost")
        valkey.client.publish("wake", "heard")
        assert ears.get_message(timeout=5)["data"] == b"heard"
        valkey.client.publish("wake", "lost")
        with pytest.raises(redis.ConnectionError):
            ears.get_message(timeout=5)
        loss.wait(5)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_connections_of_one_name_are_held_alone_those_to_come_too(
    store_proxy: Proxy,
    store_client: Callable[[str], redis.Redis],
    valkey: StoreServer,
    direction: Direction,
) -> None:
    data, ears = store_client("n0-data"), store_client("n0-ears")
    data.connection.update_current_socket_timeout(0.3)
    store_proxy.named("data")[direction].open.clear()
    with pytest.raises(redis.TimeoutError):
        data.incr("asked")
    assert ears.ping()
    assert int(valkey.client.get("asked") or 0) == (direction == "down")
    with pytest.raises(redis.RedisError):
        redis.Redis(
            port=store_proxy.port,
            client_name="n0-data",
            socket_timeout=0.3,
            retry=Retry(NoBackoff(), 0),
        ).ping()
    store_proxy.calm()
    assert store_client("n0-data").ping()


def test_what_was_not_lost_before_the_calm_is_not_lost_after_it(
    store_proxy: Proxy, store_client: Callable[[str], redis.Redis]
) -> None:
    data = store_client("n0-data")
    loss = store_proxy.lose("data", "request")
    store_proxy.calm()
    assert data.ping()
    assert not loss.happened.is_set()
