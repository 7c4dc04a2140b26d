"""
One connection: requests of many under way, answers in order, and what a caller is told when it
breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import hiredis
import pytest

from tidewarden.client.address import Address
from tidewarden.client.connection import Broken, ClientConnection, pack


class Peer:
    """The other end: bytes that came, and what to answer is up to the test."""

    def __init__(self) -> None:
        self.received = b""
        self.pieces = 0
        self.writer: asyncio.StreamWriter | None = None
        self.eof = asyncio.Event()
        self.came = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.received += data
                self.pieces += 1
                self.came.set()
        self.eof.set()


@pytest.fixture
async def peer() -> Peer:
    return Peer()


@pytest.fixture
async def connection(peer: Peer) -> AsyncIterator[ClientConnection]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(
        lambda: ClientConnection(Address("127.0.0.1", port)), "127.0.0.1", port
    )
    yield made
    await made.close()
    server.close()
    if peer.writer is not None:
        peer.writer.close()
    await server.wait_closed()


async def test_requests_of_one_turn_go_out_together_and_answers_find_their_callers(
    peer: Peer, connection: ClientConnection
) -> None:
    asking = [asyncio.ensure_future(connection.request([pack("A", n)], 10)) for n in range(3)]
    two = asyncio.ensure_future(connection.request([pack("B"), pack("C")], 10))
    await peer.came.wait()
    assert peer.pieces == 1
    assert connection.busy
    assert peer.writer is not None
    peer.writer.write(b":0\r\n:1\r\n-NOTHELD it is")
    await asyncio.sleep(0.01)
    peer.writer.write(b" over\r\n+OK\r\n*1\r\n$1\r\nx\r\n")
    assert [await one for one in asking[:2]] == [[0], [1]]
    (error,) = await asking[2]
    assert isinstance(error, hiredis.ReplyError)
    assert str(error) == "NOTHELD it is over"
    assert await two == [b"OK", [b"x"]]
    assert not connection.busy


async def test_a_break_tells_everybody_that_it_may_have_happened(
    peer: Peer, connection: ClientConnection
) -> None:
    lost: list[ClientConnection] = []
    connection.on_lost = lost.append
    asking = asyncio.ensure_future(connection.request([pack("A")], 10))
    await peer.came.wait()
    assert peer.writer is not None
    peer.writer.close()
    with pytest.raises(Broken, match="closed by the node") as caught:
        await asking
    assert caught.value.sent
    assert lost == [connection]
    assert not connection.up
    with pytest.raises(Broken) as caught:
        await connection.request([pack("A")], 10)
    assert not caught.value.sent


async def test_an_answer_that_does_not_come_cuts_the_connection(
    connection: ClientConnection,
) -> None:
    with pytest.raises(Broken, match=r"no answer within 0\.05 s"):
        await connection.request([pack("A")], 0.05)
    assert not connection.up


async def test_rubbish_cuts_the_connection(peer: Peer, connection: ClientConnection) -> None:
    asking = asyncio.ensure_future(connection.request([pack("A")], 10))
    await peer.came.wait()
    assert peer.writer is not None
    peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(Broken, match="no RESP"):
        await asking


async def test_what_comes_after_its_caller_has_gone_is_handed_over(
    peer: Peer, connection: ClientConnection
) -> None:
    orphans: list[Any] = []
    asking = asyncio.ensure_future(connection.request([pack("A")], 10, orphans.append))
    await peer.came.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    connection.abandon()
    # the peer hears at once, and may still say what it had to
    await asyncio.wait_for(peer.eof.wait(), 10)
    assert peer.writer is not None
    peer.writer.write(b"*1\r\n:5\r\n")
    while not orphans:
        await asyncio.sleep(0.005)
    assert orphans == [[[5]]]


async def test_who_abandons_a_connection_hears_what_is_owed_to_others_first(
    peer: Peer, connection: ClientConnection
) -> None:
    first = asyncio.ensure_future(connection.request([pack("A")], 10))
    waiting = asyncio.ensure_future(connection.request([pack("B")], 10))
    await peer.came.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    connection.abandon()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.eof.wait(), 0.05)
    assert peer.writer is not None
    peer.writer.write(b":1\r\n")
    await asyncio.wait_for(peer.eof.wait(), 10)
    assert await first == [1]


async def test_who_is_hung_up_on_hears_why(peer: Peer, connection: ClientConnection) -> None:
    """A node that is full says so, whatever it was asked, and hangs up."""
    asking = asyncio.ensure_future(connection.request([pack("A"), pack("B")], 10))
    await peer.came.wait()
    assert peer.writer is not None
    peer.writer.write(b"-FULL no room\r\n")
    peer.writer.close()
    with pytest.raises(Broken, match="FULL no room"):
        await asking
