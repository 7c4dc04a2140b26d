"""Connections that a node carries for another: who may ask, where they lead, and how many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from support.waiting import eventually

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.cluster.replication.detours import Detours
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.config.settings import Node
from tidewarden.errors import StoreDown
from tidewarden.peer_line import HTTP_PORT, Mac
from tidewarden.raft.state import RAFT_OFFSET, MemberView
from tidewarden.store.connect import BY, open_transport
from tidewarden.store.embedded import detour as module
from tidewarden.store.embedded.detour import PATH, Carrier, Detour, Errand, mac_of

LIMIT_S = 20.0
MAC, FOREIGN = mac_of("a cluster secret"), mac_of("another")


class Store:
    """Says again what it hears, and who came."""

    def __init__(self) -> None:
        self.came = 0
        self.address = ""
        self.farewell = b""
        """What it says before it hangs up, if anything."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        if self.farewell:
            writer.write(self.farewell)
            writer.close()
            return
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


class Site:
    """Nodes that carry to one store, and one that takes a detour."""

    def __init__(self, stack: contextlib.AsyncExitStack, store: Store) -> None:
        self._stack, self.store = stack, store
        self.addresses: dict[str, str] = {}
        self.carriers: dict[str, Carrier] = {}
        self.known = 0

    def reach(self, node: str) -> str:
        if node != "n1":
            raise StoreDown(f"it knows no store of {node}")
        return self.store.address

    async def carrier(
        self, name: str, mac: Mac = MAC, reach: Callable[[str], str] | None = None
    ) -> Carrier:
        """A node of that name that carries."""
        carrier = Carrier(name, mac, reach or self.reach)
        await self.open(name, carrier)
        return carrier

    async def open(self, name: str, carrier: Carrier) -> None:
        """The port at which a node carries."""

        async def line(request: web.Request) -> web.WebSocketResponse:
            opened = web.WebSocketResponse(timeout=1.0, compress=False)
            await opened.prepare(request)

            def known() -> None:
                self.known += 1

            await carrier.serve(opened, known)
            await opened.close()
            return opened

        await self.listen(name, line)
        self.carriers[name] = carrier

    async def listen(
        self, name: str, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> None:
        """A node's HTTP port, of which others know."""
        app = web.Application()
        app.router.add_get(PATH, answer)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        base = free_ports(2)
        await web.TCPSite(runner, "127.0.0.1", base + HTTP_PORT).start()
        self.addresses[name] = f"127.0.0.1:{base}"

    async def detour(self, node: str = "n1", mac: Mac = MAC, straight: str = "") -> Detour:
        """
        That of a node whose connections are to lead to the store of ``node``.

        ``straight``: where that is reached without others; empty: it is not.
        """

        def address(node: str) -> str:
            if not straight:
                raise StoreDown(f"it knows no store of {node}")
            return straight

        made = Detour(mac, SystemClock(), lambda: self.addresses, address, tls=False)
        made.node = node
        await made.start()
        self._stack.push_async_callback(made.stop)
        return made


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as stack:
        store = Store()
        server = await asyncio.start_server(store.serve, "127.0.0.1", 0)
        store.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stack.callback(server.close)
        yield Site(stack, store)


async def said_again(detour: Detour, data: bytes) -> bytes:
    """What comes back over a connection of its own; empty: it was closed before."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", detour.port)
        try:
            writer.write(data)
            return await reader.readexactly(len(data))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        finally:
            writer.close()


async def test_bytes_pass_in_both_directions_however_many(site: Site) -> None:
    carrier = await site.carrier("n2")
    detour = await site.detour()
    data = bytes(range(256)) * 8192
    assert await asyncio.gather(*(said_again(detour, data) for _ in range(4))) == [data] * 4
    assert (site.store.came, site.known, detour.carrier, detour.why) == (4, 4, "n2", "")
    await eventually(lambda: detour.connections == carrier.connections == 0)


async def test_who_does_not_know_the_secret_is_not_carried_and_carries_nothing(site: Site) -> None:
    await site.carrier("n2")
    assert await said_again(await site.detour(mac=FOREIGN), b"x") == b""
    assert (site.store.came, site.known) == (0, 0)
    site.addresses.clear()
    await site.carrier("n3", mac=FOREIGN)
    detour = await site.detour()
    assert await said_again(detour, b"a password") == b""
    assert detour.why.startswith("n3: ")
    assert site.store.came == 0


async def test_what_was_recorded_is_of_no_use_later(site: Site) -> None:
    """Each carrier draws what the errand is signed with."""
    await site.carrier("n2")
    host, _, port = site.addresses["n2"].rpartition(":")
    url = f"http://{host}:{int(port) + HTTP_PORT}{PATH}"
    recorded = b""
    async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
        for time in range(2):
            async with session.ws_connect(url) as line:
                drawn = (await line.receive()).data
                errand = msgspec.msgpack.encode(Errand(b"n" * 16, "n2", "n1"))
                recorded = recorded or MAC.of(drawn, errand) + errand
                await line.send_bytes(recorded)
                answer = await line.receive()
                assert (answer.type is aiohttp.WSMsgType.BINARY) == (time == 0)
    assert site.known == 1


async def test_one_who_cannot_carry_says_why_and_another_is_asked(site: Site) -> None:
    def unheard(node: str) -> str:
        raise StoreDown(f"it does not hear {node} either")

    await site.carrier("n2", reach=unheard)
    detour = await site.detour()
    assert await said_again(detour, b"x") == b""
    assert detour.why == "n2: it does not hear n1 either"
    await site.carrier("n3")
    assert await said_again(detour, b"x") == b"x"
    assert (detour.carrier, detour.why) == ("n3", "")


async def test_a_connection_that_nobody_carries_goes_to_the_store_itself(site: Site) -> None:
    """So none is worse off than without a detour, where Raft's link alone is cut."""

    def unheard(node: str) -> str:
        raise StoreDown(f"it does not hear {node} either")

    detour = await site.detour(straight=site.store.address)
    assert await said_again(detour, b"x") == b"x"
    assert detour.why.startswith("no other node is heard")
    await site.carrier("n2", reach=unheard)
    data = bytes(range(256)) * 8192
    assert await said_again(detour, data) == data
    assert (detour.carrier, detour.why) == ("", "n2: it does not hear n1 either")
    assert (detour.connections, site.store.came) == (0, 2)


@pytest.mark.thorough
async def test_a_carrier_that_hangs_leaves_time_for_the_others_and_the_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASKED_S", 0.4)

    async def hang(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    await site.listen("n2", hang)
    detour = await site.detour(straight=site.store.address)
    assert await said_again(detour, b"x") == b"x"
    assert detour.why == "n2 has not answered in time"
    monkeypatch.setattr(module, "ASKED_S", 4.0)
    await site.carrier("n3")
    assert await said_again(detour, b"x") == b"x"
    assert (detour.carrier, detour.why) == ("n3", "")


async def test_a_carrier_that_leads_elsewhere_is_not_followed(site: Site) -> None:
    await site.carrier("n3")
    elsewhere = f"http://127.0.0.1:{int(site.addresses.pop('n3').rpartition(':')[2]) + HTTP_PORT}"

    async def lead(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"{elsewhere}{PATH}")

    await site.listen("n2", lead)
    detour = await site.detour()
    assert await said_again(detour, b"x") == b""
    assert detour.why == "n2: what answers there leads elsewhere"
    assert (site.known, site.store.came) == (0, 0)


async def test_what_a_store_says_before_it_hangs_up_arrives(site: Site) -> None:
    site.store.farewell = bytes(range(256)) * 1024
    for straight in ("", site.store.address):
        detour = await site.detour(straight=straight)
        async with asyncio.timeout(LIMIT_S):
            if not straight:
                await site.carrier("n2")
            reader, writer = await asyncio.open_connection("127.0.0.1", detour.port)
            assert await reader.read() == site.store.farewell
            writer.close()
        site.addresses.clear()


async def test_nobody_is_led_anywhere_where_no_detour_is_taken(site: Site) -> None:
    """Its port is one of loopback, to which any user of the host may connect."""
    carrier = await site.carrier("n2")
    detour = await site.detour(node="", straight=site.store.address)
    assert await said_again(detour, b"x") == b""
    assert (site.store.came, site.known, carrier.connections) == (0, 0, 0)


class PlayedNode:
    """What a node's detours ask of its Raft, and of what it has heard."""

    def __init__(self, name: str, site: Site) -> None:
        self.name, self._site = name, site
        self.heard_s: dict[str, float] = {}

    def is_leader(self) -> bool:
        return False

    def seats(self) -> dict[str, MemberView]:
        found = {"n1": MemberView("127.0.0.1:1", True, True)}
        for name, address in self._site.addresses.items():
            host, _, port = address.rpartition(":")
            found[name] = MemberView(f"{host}:{int(port) + RAFT_OFFSET}", True, True)
        return found

    def silence(self, _since_s: float) -> dict[str, float]:
        return dict(self.heard_s)

    def reports(self) -> dict[str, StoreReport]:
        return {"n1": StoreReport(address=self._site.store.address)}


async def test_two_that_go_by_way_of_each_other_reach_the_store(site: Site) -> None:
    """The primary's node stalled, so that neither heard it: each carries for the other."""
    made: dict[str, Detours] = {}
    played: dict[str, Any] = {name: PlayedNode(name, site) for name in ("n0", "n2")}
    async with contextlib.AsyncExitStack() as stack:
        for name, node in played.items():
            made[name] = Detours(node, node, SystemClock(), 1.0, Node(name=name), MAC)
            carrier = made[name].carrier
            assert carrier is not None
            await site.open(name, carrier)
            await made[name].start()
            stack.push_async_callback(made[name].stop)
        for name, other in (("n0", "n2"), ("n2", "n0")):
            played[name].heard_s = {"n1": 1.0, other: 0.1}
            assert made[name].look("n1")
            assert not made[name].serves, "nothing was carried yet"
            played[name].heard_s["n1"] = 0.1
        for name, other in (("n0", "n2"), ("n2", "n0")):
            async with asyncio.timeout(LIMIT_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", made[name].port_to("n1")
                )
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            assert made[name].serves
            assert made[name].shown().carrier == other
            writer.close()
        assert site.store.came == 2


async def test_it_leads_nowhere_but_to_stores_that_the_carrier_knows(site: Site) -> None:
    await site.carrier("n2")
    detour = await site.detour(node="n7")
    assert await said_again(detour, b"x") == b""
    assert detour.why == "n2: it knows no store of n7"
    assert site.store.came == 0


async def test_an_errand_for_another_node_is_not_run(site: Site) -> None:
    await site.carrier("n2")
    site.addresses["n9"] = site.addresses.pop("n2")
    detour = await site.detour()
    assert await said_again(detour, b"x") == b""
    assert detour.why == "n9: this is n2"


async def test_a_carrier_carries_so_many_and_a_node_takes_so_many(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = await site.carrier("n2")
    detour = await site.detour()
    reader, writer = await asyncio.open_connection("127.0.0.1", detour.port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    monkeypatch.setattr(module, "CARRIED_MAX", 1)
    assert await said_again(detour, b"x") == b""
    assert "it carries 1 connections already" in detour.why
    monkeypatch.setattr(module, "CARRIED_MAX", 9)
    monkeypatch.setattr(module, "LINES_MAX", 1)
    assert await said_again(detour, b"x") == b""
    assert carrier.connections == 1
    writer.close()
    await eventually(lambda: detour.connections == carrier.connections == 0)
    assert await said_again(detour, b"x") == b"x"


async def test_connections_that_are_being_made_count(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.carrier("n2")
    detour = await site.detour()
    monkeypatch.setattr(module, "CARRIED_MAX", 1)

    async def first() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", detour.port)
        writer.write(b"x")
        return await reader.read(1), writer

    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*(first() for _ in range(4)))
    assert sorted(said for said, _ in found) == [b"", b"", b"", b"x"]
    for _, writer in found:
        writer.close()


async def test_connections_end_with_who_carries_them(site: Site) -> None:
    carrier = await site.carrier("n2")
    detour = await site.detour()
    reader, writer = await asyncio.open_connection("127.0.0.1", detour.port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    await carrier.close()
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()


async def test_a_stranger_that_says_nothing_is_let_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_S", 0.1)
    await site.carrier("n2")
    host, _, port = site.addresses["n2"].rpartition(":")
    async with (
        aiohttp.ClientSession() as session,
        asyncio.timeout(LIMIT_S),
        session.ws_connect(f"http://{host}:{int(port) + HTTP_PORT}{PATH}") as line,
    ):
        await line.receive()
        assert (await line.receive()).type is aiohttp.WSMsgType.CLOSE
    assert site.known == 0


async def test_a_url_leads_by_way_of_it_wherever_its_store_is(site: Site) -> None:
    """Nothing is at that address; and what says again what it hears is no store."""
    await site.carrier("n2")
    detour = await site.detour()
    with pytest.raises(StoreDown):
        await open_transport(f"redis://192.0.2.1:1?{BY}={detour.port}", "t", asyncio.Protocol())
    assert site.store.came == 1
