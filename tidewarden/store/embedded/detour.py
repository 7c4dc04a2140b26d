"""
Leads connections to a store around a cut link, by way of a node that reaches the store's host.

Two halves, at the HTTP ports that nodes have anyway (:data:`PATH`, a WebSocket for each
connection):

- :class:`Detour` listens at a port of loopback. Each connection to it goes to a carrier, which is
  asked for the store of a node; or, where none carries, to that store itself.
- :class:`Carrier` connects there and passes the bytes on, in both directions.

The carrier sees what the network between the hosts would: the store's own login, and its TLS where
the stores have it, are between the two ends. Both sides prove by the cluster's secret that they are
nodes of the cluster; the answer's proof covers the question, and the question's what the carrier
drew for it. Both bound how many connections they carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import aiohttp
import msgspec

from tidewarden.clock import Clock
from tidewarden.config.addresses import parse_address
from tidewarden.errors import StoreDown
from tidewarden.peer_line import HTTP_PORT, Mac, mac_for

from .tunnel import Door, Guest
from .tunnel_relay import mind_its_silence

log = logging.getLogger("tidewarden.store")

PATH = "/internal/carry"
STEP_S = 2.0
"""The longest time for a stranger's proof, or for the connection to the store."""
ASKED_S = 1.5
"""
The longest time for which all carriers together are asked, each for its share: a client waits for 5
s, and the store itself is tried after them.
"""
ALIVE_S = 2.0
"""A side that hears nothing asks the other so often whether it is there, and waits half as long."""
CLOSE_S = 1.0
"""How long a side that closes waits for the other to close, and to take the remaining bytes."""
LINES_MAX = 64
"""The most connections that take a detour; a node's own are a dozen for each of its processes."""
CARRIED_MAX = 256
"""The most connections that one node carries for all others."""
PIECE_BYTES = 32 * 1024
MESSAGE_BYTES_MAX = 2 * PIECE_BYTES


class Line(Protocol):
    """Names the part of aiohttp's WebSockets, of either end, that is used here."""

    async def receive(self) -> aiohttp.WSMessage: ...
    async def send_bytes(self, data: bytes, /) -> None: ...
    async def close(self) -> Any: ...


class Errand(msgspec.Struct, frozen=True, array_like=True):
    """Asks a node to carry one connection."""

    nonce: bytes
    carrier: str
    """The node that is asked; at an address that is no longer its own, another would carry."""
    node: str
    """The node whose store the connection leads to."""


def mac_of(cluster_secret: str) -> Mac:
    """Return what makes and checks the MACs of nodes that share this secret."""
    return mac_for(cluster_secret, b"tidewarden detours between nodes 1")


class Detour:
    """
    Leads connections to the store of :attr:`node`, from a port of loopback.

    One that no other node carries goes to the store itself: it is no worse off than without a
    detour, as where Raft's link alone is cut.

    Args:
        mac: proves who asks, and who answers.
        carriers: the nodes that may be asked now, and where they listen (``host:base_port``).
        address: gives that of a node's store, ``host:port``. Raises: StoreDown: it is not known.
        tls: whether the carriers' ports speak TLS.
    """

    def __init__(
        self,
        mac: Mac,
        clock: Clock,
        carriers: Callable[[], Mapping[str, str]],
        address: Callable[[str], str],
        *,
        tls: bool,
    ) -> None:
        self.node = ""
        """The node to whose store connections are led; empty: none, and no connection is taken."""
        self.carrier = ""
        """The node that carried last; empty: none yet."""
        self.why = ""
        """Why the last connection was not carried; empty: it was."""
        self.connections = 0
        """The number of connections that another node carries now."""
        self._mac, self._carriers, self._address = mac, carriers, address
        self._scheme = "https" if tls else "http"
        self._door = Door("detour", clock, self._lead, LINES_MAX)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Listen. Raises: OSError."""
        await self._door.open("127.0.0.1", 0)

    async def stop(self) -> None:
        """Listen no more, and close every connection."""
        await self._door.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def port(self) -> int:
        """Return the port of loopback that leads to the store."""
        return self._door.port

    async def _lead(self, guest: Guest) -> None:
        node = self.node
        reader, writer = await asyncio.open_connection(sock=guest.socket, limit=PIECE_BYTES)
        try:
            if not node:
                self._door.refuse(guest, "there is no detour now")
            elif len(self._door.guests) > LINES_MAX:
                self._door.refuse(guest, f"there are {LINES_MAX} others")
            elif (line := await self._carried(node)) is not None:
                await self._lead_around(guest, line, reader, writer)
            else:
                await self._lead_straight(guest, node, reader, writer)
        finally:
            await _close(writer)

    async def _lead_around(
        self, guest: Guest, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        guest.know()
        self.connections += 1
        try:
            await pass_on(line, reader, writer)
        finally:
            self.connections -= 1

    async def _lead_straight(
        self, guest: Guest, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            back, out = await _connect(self._address(node))
        except (StoreDown, OSError, TimeoutError) as error:
            log.debug("%s's store is not reached itself either: %s", node, error)
            return
        guest.know()
        try:
            await _run_both(_pump(reader, out), _pump(back, writer))
        finally:
            await _close(out)

    async def _carried(self, node: str) -> Line | None:
        """Return a line to the store by the first node that carries; None: :attr:`why` says why."""
        carriers, loop = self._carriers(), asyncio.get_running_loop()
        until = loop.time() + ASKED_S
        why = f"no other node is heard that could pass on what {node}'s store is sent"
        names = sorted(carriers, key=lambda name: (name != self.carrier, name))
        for place, name in enumerate(names):
            share_s = (until - loop.time()) / (len(names) - place)
            try:
                async with asyncio.timeout(share_s):
                    line = await self._ask(name, carriers[name], node)
            except TimeoutError:
                why = f"{name} has not answered in time"
            except (OSError, aiohttp.ClientError, ValueError) as error:
                why = f"{name}: {str(error) or type(error).__name__}"
            except StoreDown as error:
                why = f"{name}: {error}"
            else:
                self.carrier, self.why = name, ""
                return line
        self.why = why
        return None

    async def _ask(self, name: str, address: str, node: str) -> Line:
        """
        Ask a node to carry a connection.

        Raises: StoreDown: it does not carry; OSError, aiohttp.ClientError, ValueError.
        """
        if self._session is None:
            straight = aiohttp.TraceConfig()
            straight.on_request_redirect.append(_refuse_redirect)
            # the proofs say who answers; a node's certificate need not be one that is trusted here
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=False, limit=LINES_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[straight],
                trust_env=False,
            )
        host, _, port = address.rpartition(":")
        url = f"{self._scheme}://{host}:{int(port) + HTTP_PORT}{PATH}"
        line = await self._session.ws_connect(
            url,
            heartbeat=ALIVE_S,
            max_msg_size=MESSAGE_BYTES_MAX,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        )
        try:
            drawn = await _received(line)
            errand = msgspec.msgpack.encode(Errand(secrets.token_bytes(16), name, node))
            await line.send_bytes(self._mac.of(drawn, errand) + errand)
            refusal = self._mac.open(await _received(line), b"reply", errand)
            if refusal is None:
                raise StoreDown("what answers there does not know the cluster's secret")
            if refusal:
                raise StoreDown(refusal.decode(errors="replace"))
        except BaseException:
            await line.close()
            raise
        return line


class Carrier:
    """
    Carries other nodes' connections to stores.

    Args:
        name: this node's.
        reach: gives the address of a node's store, ``host:port``, where this node reaches it.
            Raises: StoreDown: it does not, or should not; why.
    """

    def __init__(self, name: str, mac: Mac, reach: Callable[[str], str]) -> None:
        self._name, self._mac, self._reach = name, mac, reach
        self._lines: set[Line] = set()

    @property
    def connections(self) -> int:
        """Return how many connections are carried."""
        return len(self._lines)

    async def serve(self, line: Line, known: Callable[[], None]) -> None:
        """
        Carry one connection, until either end closes it.

        ``known`` is called once whoever asks has proved to be a node.
        """
        try:
            drawn = os.urandom(32)
            async with asyncio.timeout(STEP_S):
                await line.send_bytes(drawn)
                errand = self._mac.open(await _received(line), drawn)
            if errand is None:
                return
            known()
            reader, writer = await self._connected(line, errand)
            await pass_on(line, reader, writer)
        except (TimeoutError, OSError, aiohttp.ClientError, StoreDown):
            return  # whoever asked was told, or has gone
        finally:
            self._lines.discard(line)

    async def close(self) -> None:
        """End every carried connection; their ends find other ways."""
        await asyncio.gather(*(line.close() for line in [*self._lines]), return_exceptions=True)

    async def _connected(
        self, line: Line, errand: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the store, and tell the node that asked. Raises: StoreDown: it is refused."""
        try:
            asked = msgspec.msgpack.decode(errand, type=Errand)
            if asked.carrier != self._name:
                raise StoreDown(f"this is {self._name}")
            if len(self._lines) >= CARRIED_MAX:
                raise StoreDown(f"it carries {CARRIED_MAX} connections already")
            self._lines.add(line)  # before anything is waited for: others ask meanwhile
            reader, writer = await _connect(self._reach(asked.node))
        except (msgspec.DecodeError, StoreDown, OSError, TimeoutError) as error:
            said = str(error) or "the store has not answered in time"
            await self._answer(line, errand, said.encode())
            raise StoreDown(said) from None
        try:
            await self._answer(line, errand, b"")
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _answer(self, line: Line, errand: bytes, refusal: bytes) -> None:
        await line.send_bytes(self._mac.of(b"reply", errand, refusal) + refusal)


async def _received(line: Line) -> bytes:
    """
    Return the next message. Raises: ConnectionError: the line ended, or brought something else.
    """
    message = await line.receive()
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise ConnectionError("the connection was closed during the greeting")
    return bytes(message.data)


async def _refuse_redirect(
    _session: object, _context: object, found: aiohttp.TraceRequestRedirectParams
) -> None:
    """Refuse a redirect. Raises: aiohttp.ClientError: always, because a node leads nowhere else."""
    found.response.close()
    raise aiohttp.ClientError("what answers there leads elsewhere")


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a store. Raises: OSError, TimeoutError; StoreDown: it is no address."""
    place = parse_address(address)
    if place is None:
        raise StoreDown("it does not know where that store is")
    async with asyncio.timeout(STEP_S):
        reader, writer = await asyncio.open_connection(*place, limit=PIECE_BYTES)
    mind_its_silence(writer.get_extra_info("socket"))
    return reader, writer


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection once the other end has taken the remaining bytes, or had time to."""
    if writer.transport.is_closing():
        return
    writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()


async def _run_both(*ways: Coroutine[Any, Any, None]) -> None:
    """Pass bytes on both ways, until either ends."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pass_on(line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on between a line and a connection, both ways, until either ends; close both."""

    async def out() -> None:
        while data := await reader.read(PIECE_BYTES):
            await line.send_bytes(data)

    async def back() -> None:
        while (message := await line.receive()).type is aiohttp.WSMsgType.BINARY:
            writer.write(message.data)
            await writer.drain()

    try:
        await _run_both(out(), back())
    finally:
        await asyncio.gather(line.close(), _close(writer), return_exceptions=True)
