"""
The embedded store against the real valkey-server: views, restarts, locks, and that nothing is left
behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.inspect import RAISE_VIEW, launch_store
from support.run.processes import alive
from support.waiting import eventually

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import Store
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store.connection import pack
from tidewarden.store.durability import fsync_commit
from tidewarden.store.durability.durability import Durability, Unavailable
from tidewarden.store.embedded import server as embedded
from tidewarden.store.embedded import server_folder
from tidewarden.store.embedded.server import EmbeddedStore, store_password
from tidewarden.store.preflight import check_store

ONCE = Retry(NoBackoff(), 0)
PASSWORD = store_password("a cluster secret")


def view_in(store: EmbeddedStore) -> int:
    """The view as a client with the real password reads it; 0 while it may not."""
    with redis.Redis.from_url(store.url, retry=ONCE) as client:
        try:
            return int(client.get("{c}:view") or 0)
        except (redis.ConnectionError, redis.AuthenticationError):
            return 0


Maker = Callable[..., EmbeddedStore]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Maker]:
    """``make(**settings)`` gives a store in one folder; all are stopped at the end."""
    made: list[EmbeddedStore] = []

    def maker(
        folder: Path = tmp_path / "store", config: Store | None = None, **options: Any
    ) -> EmbeddedStore:
        made.append(
            EmbeddedStore(folder, config or Store(), "c", PASSWORD, SystemClock(), **options)
        )
        return made[-1]

    yield maker
    for store in made:
        await store.stop()


async def running(store: EmbeddedStore) -> Callable[[], Awaitable[None]]:
    """Run the store's watch as a task; the answer ends it."""
    task = asyncio.create_task(store.run())

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return end


async def test_starts_with_the_settings_that_data_needs(make: Maker) -> None:
    store = make(config=Store(maxmemory_bytes=50_000_000))
    url = await store.start()
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found = client.config_get("append*", "maxmemory*", "port", "save")
        assert found["appendonly"] == "yes"
        assert found["appendfsync"] == "everysec"
        assert found["maxmemory-policy"] == "noeviction"
        assert found["maxmemory"] == "50000000"
        assert found["port"] == "0"
        assert client.get("{c}:format") == "2"
        assert client.get("{c}:view") == "1"
    assert stat.S_IMODE((store.folder / "valkey.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert PASSWORD not in (store.folder / "valkey.conf").read_text()
    assert PASSWORD not in repr(store)


async def test_fsync_always_is_kept(make: Maker) -> None:
    store = make(config=Store(fsync="always"))
    with redis.Redis.from_url(await store.start(), decode_responses=True) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


async def test_every_start_has_a_greater_view_and_the_old_data(make: Maker) -> None:
    for start in (1, 2, 3):
        store = make()
        with redis.Redis.from_url(await store.start()) as client:
            assert start == store.view == int(client.get("{c}:view"))
            assert start == client.rpush("starts", start)
        await store.stop()


async def test_nobody_logs_in_before_the_view_is_on_disk(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    seen = []

    class Watched(embedded.Redis):
        async def incr(self, name: str, amount: int = 1) -> Any:
            before = view_in(store)
            raised = await super().incr(name, amount)
            seen.append((before, view_in(store), raised, await self.config_get("appendfsync")))
            return raised

    monkeypatch.setattr(embedded, "Redis", Watched)
    await store.start()
    assert seen == [(0, 0, 1, {"appendfsync": "always"})]
    assert view_in(store) == 1
    with (
        redis.Redis(unix_socket_path=str(store.socket_path), retry=ONCE) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


async def test_killed_it_serves_again_with_a_greater_view(make: Maker) -> None:
    told: list[str] = []
    store = make(on_event=told.append)
    await store.start()
    end = await running(store)
    with redis.Redis.from_url(store.url) as client:
        client.set("kept", "1")
    first = store.pid
    assert first is not None
    for view in (2, 3):
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        await eventually(lambda view=view: view_in(store) == view and store.view == view)
    with redis.Redis.from_url(store.url) as client:
        assert client.get("kept") == b"1"
    assert not alive(first)
    assert told[0] == "store was killed by SIGKILL; it starts again in 0.2 s"
    assert told[1].startswith("store serves again (pid ")
    await end()
    assert store.restarts == 2


async def test_a_truncated_log_is_no_hindrance(make: Maker) -> None:
    store = make()
    with redis.Redis.from_url(await store.start()) as client:
        for number in range(100):
            client.set(f"key{number}", number)
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    await store.stop()
    (log,) = (store.folder / "appendonlydir").glob("*.incr.aof")
    os.truncate(log, log.stat().st_size - 7)
    again = make()
    with redis.Redis.from_url(await again.start()) as client:
        assert client.get("key98") == b"98"
    assert again.view == 2


async def test_a_second_daemon_is_refused(make: Maker) -> None:
    first, second = make(), make()
    await first.start()
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}; stop that one"):
        await second.start()
    assert view_in(first) == 1
    await first.stop()
    await second.start()
    assert second.view == 2


async def test_stop_leaves_no_process_and_no_socket(make: Maker) -> None:
    store = make()
    await store.start()
    pid = store.pid
    assert pid is not None
    await store.stop()
    assert not alive(pid)
    assert store.pid is None
    assert not store.socket_path.exists()
    assert "ready to exit" in (store.folder / "valkey.log").read_text()


async def test_cancelled_start_leaves_no_process(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, started = make(), []

    async def remember(*args: Any, **options: Any) -> Any:
        started.append(await real(*args, **options))
        return started[-1]

    real = server_folder.start_child
    monkeypatch.setattr(server_folder, "start_child", remember)
    task = asyncio.create_task(store.start())
    await eventually(lambda: started)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not alive(started[0].pid)
    await make().start()


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from tidewarden.clock import SystemClock
from tidewarden.config.settings import Store
from tidewarden.store.embedded.server import EmbeddedStore
async def main():
    store = EmbeddedStore(Path(sys.argv[1]), Store(), "c", "pw", SystemClock())
    await store.start()
    print(store.pid, flush=True)
    await store.run()
asyncio.run(main())
"""


async def test_it_dies_with_its_daemon(make: Maker, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "store")], stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        pid = int(await asyncio.to_thread(daemon.stdout.readline))
        assert alive(pid)
        assert os.getpgid(pid) == pid, "a process group of its own"
        with pytest.raises(ConfigError, match=f"in use by process {daemon.pid}"):
            await make().start()
        daemon.kill()
    await eventually(lambda: not alive(pid), 5)
    successor = make()
    await successor.start()
    assert successor.view == 2


async def test_a_newer_format_is_refused_and_untouched(make: Maker) -> None:
    store = make()
    with redis.Redis.from_url(await store.start()) as client:
        client.set("{c}:format", "3")
    await store.stop()
    refused = make()
    with pytest.raises(
        ConfigError,
        match="its format is 3, this version reads 1 and 2; use the version that wrote it",
    ):
        await refused.start()
    assert refused.pid is None
    with (
        redis.Redis(unix_socket_path=str(store.socket_path), retry=ONCE) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


async def test_corrupt_data_is_told_in_the_servers_words(make: Maker) -> None:
    store = make()
    await store.start()
    await store.stop()
    (manifest,) = (store.folder / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(
        StoreDown, match=r"valkey-server ended with status 1; it said: .*(?i:manifest)"
    ):
        await make().start()


@pytest.mark.parametrize("fsync", ["everysec", "always"])
@pytest.mark.parametrize("format_", ["1", "2", ""])
async def test_above_its_limit_it_starts_again_and_has_the_limit(
    make: Maker, fsync: str, format_: str
) -> None:
    """A limit that was lowered, and data of any version: what it cannot take are puts alone."""
    store = make()
    with redis.Redis.from_url(await store.start()) as client:
        client.set("ballast", bytes(3 << 20))
        if format_:
            client.set("{c}:format", format_)
        else:
            client.delete("{c}:format", "{c}:view")
        view = int(client.get("{c}:view") or 0)
    await store.stop()
    limited = make(config=Store(fsync=fsync, maxmemory_bytes=1 << 20))
    told = await limited.start()
    assert limited.view == view + 1
    end = await running(limited)
    with redis.Redis.from_url(told, retry=ONCE) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(1 << 20)}
        assert client.get("{c}:format") == b"2"
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", "1")
    os.kill(limited.pid or 0, signal.SIGKILL)
    await eventually(lambda: view_in(limited) == view + 2)
    with redis.Redis.from_url(told, retry=ONCE) as client:
        assert client.delete("ballast") == 1
        assert client.config_get("maxmemory") == {"maxmemory": str(1 << 20)}
    await end()


async def test_how_it_syncs_is_its_own_word_whatever_a_nodes_configuration_says(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A node that was configured otherwise would have it sync once a second, while others promise the
    disk.
    """
    monkeypatch.setattr(fsync_commit, "REST_MS", 50)
    for started, other in (("always", "everysec"), ("everysec", "always")):
        store = make(config=Store(fsync=started))
        url = await store.start()
        async with (
            joined(url, Store(fsync=other)) as (data, commits),
            joined(url, Store(fsync=started)) as (_, same),
        ):
            for each in (commits, same):
                assert (each.refusal("fsync") == "") == (started == "always")
                assert (each.of(data, "fsync") is None) == (started == "always")
            await write_firmly(data, commits)
            # now it syncs each write, in either case
            async with joined(url, Store(fsync=other)) as (late, third):
                assert (third.of(late, "fsync") is None) == (started == "always")
            with redis.Redis.from_url(url) as client:
                await eventually(
                    lambda started=started: (
                        client.config_get("appendfsync") == {"appendfsync": started}
                    )
                )
                assert (commits.strongest(data) is None) == (started == "always"), (
                    "nobody switches one that syncs each"
                )
        await store.stop()


async def test_one_that_is_started_otherwise_is_found_to_sync_otherwise(make: Maker) -> None:
    store = make(config=Store(fsync="always"))
    async with joined(await store.start(), Store(fsync="always")) as (data, commits):
        assert commits.of(data, "fsync") is None
        await store.stop()
        weaker = make(config=Store(fsync="everysec"))
        await weaker.start()
        await commits.ask_embedded(data)
        assert isinstance(commits.of(data, "fsync"), Unavailable)
        await weaker.stop()
        await make(config=Store(fsync="always")).start()
        await commits.ask_embedded(data)
        assert commits.of(data, "fsync") is None


@contextlib.asynccontextmanager
async def joined(url: str, config: Store) -> AsyncIterator[tuple[StoreConnection, Durability]]:
    """A link of a node with this configuration, and its group commits."""
    clock = SystemClock()
    data = StoreConnection(url, "data", clock)
    await data.start(wait_s=60)
    server = await check_store(data, "c")
    assert server.views
    commits = Durability(
        config,
        "c",
        clock,
        lambda link: StoreConnection(link.url, "commit", clock),
        embedded=True,
        server=server,
    )
    yield data, commits
    await commits.stop()
    await data.stop()


async def write_firmly(data: StoreConnection, commits: Durability) -> None:
    """As a token's new pair is written."""
    route, firmly = commits.strongest_route(data, "k")
    written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    route.send(pack(("SET", "k", "v")), written)
    assert await written == b"OK"
    await firmly()


async def test_a_server_that_refuses_its_start_says_why(make: Maker) -> None:
    """
    It runs, and is ended: what it logged last, a warning of the host's settings, is not the reason.
    """
    store = make()
    with redis.Redis.from_url(await store.start()) as client:
        client.delete("{c}:view")
        client.lpush("{c}:view", "1")
    await store.stop()
    with pytest.raises(
        StoreDown,
        match=r"^valkey-server refused its start: WRONGTYPE .+ \(its log: .+valkey.log\)$",
    ):
        await make().start()


async def test_a_server_that_is_silent_says_that(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()

    async def silent(*_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(store, RAISE_VIEW, silent)
    with pytest.raises(StoreDown, match=r"^valkey-server did not answer within 30 s "):
        await store.start()


async def test_a_deep_folder_gets_a_short_socket(make: Maker, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / 'with "quotes" and ü'
    store = make(folder=deep)
    await store.start()
    assert len(os.fsencode(store.socket_path)) <= 107
    assert view_in(store) == 1
    assert (deep / "appendonlydir").is_dir()
    await store.stop()
    assert not store.socket_path.exists()


async def test_a_folder_with_strange_letters_works(make: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20@:#?"
    store = make(folder=folder)
    await store.start()
    assert view_in(store) == 1


async def test_a_port_serves_beside_the_socket(make: Maker, free_port: int) -> None:
    store = make(port=free_port)
    await store.start()
    with redis.Redis(host="127.0.0.1", port=free_port, password=PASSWORD) as client:
        assert client.get("{c}:view") == b"1"


@pytest.fixture
def free_port() -> int:
    return free_ports(1)


def test_the_password_follows_from_the_secret() -> None:
    assert store_password("a") == store_password("a") != store_password("b")
    assert "a secret" not in store_password("a secret")


def test_it_works_under_uvloop(tmp_path: Path) -> None:
    import uvloop

    async def life() -> None:
        store = EmbeddedStore(tmp_path / "store", Store(), "c", PASSWORD, SystemClock())
        await store.start()
        end = await running(store)
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        await eventually(lambda: store.view == 2)
        rival = EmbeddedStore(tmp_path / "store", Store(), "c", PASSWORD, SystemClock())
        with pytest.raises(ConfigError, match="in use"):
            await rival.start()
        await end()
        pid = store.pid
        await store.stop()
        assert pid is not None
        assert not alive(pid)

    uvloop.run(life())


async def test_what_keeps_it_from_starting_may_pass(make: Maker) -> None:
    store = make(on_event=(said := list[str]()).append)
    await store.start()
    end = await running(store)
    (store.folder / "valkey.conf.new").mkdir()  # cannot be written, as on a full disk
    with pytest.raises(StoreDown, match=r"could not be started in .+: Is a directory"):
        await launch_store(store)
    os.kill(store.pid or 0, signal.SIGKILL)
    await eventually(lambda: any("Is a directory" in text for text in said))
    (store.folder / "valkey.conf.new").rmdir()
    await eventually(lambda: view_in(store) == store.view == 2)
    await end()
