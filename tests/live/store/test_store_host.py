"""
A store of several, with the real valkey-server: it starts as nobody, and which starts continue
which.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster.harness import background
from support.run.processes import alive
from support.store.running_store import RunningStore, look
from support.waiting import eventually

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import Store
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.store.child_process import FolderInUse
from tidewarden.store.embedded import damaged_log, lineage
from tidewarden.store.embedded.credentials import DAEMON, READER, REPLICA, StoreCredentials
from tidewarden.store.embedded.server import EmbeddedStore, store_password
from tidewarden.store.embedded.store_host import StoreHost

SECRET = "a cluster secret"
CREDENTIALS = StoreCredentials.of(SECRET)
ONCE = Retry(NoBackoff(), 0)
Maker = Callable[..., StoreHost]


@pytest.fixture
def free_port() -> int:
    return free_ports(1)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Maker]:
    """``make(folder=…, node=…, …)`` gives a host; all are stopped at the end."""
    made: list[StoreHost] = []

    def maker(
        folder: Path = tmp_path / "store", config: Store | None = None, **options: Any
    ) -> StoreHost:
        options.setdefault("node", "n1")
        made.append(StoreHost(folder, config or Store(), CREDENTIALS, SystemClock(), **options))
        return made[-1]

    yield maker
    for host in made:
        await host.stop()


def client(host: StoreHost, user: str = DAEMON, password: str = CREDENTIALS.daemon) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(host.socket_path),
        username=user,
        password=password,
        retry=ONCE,
        decode_responses=True,
    )


def start_of(host: StoreHost) -> RunningStore:
    return look(host.folder, "n1", CREDENTIALS)


def promote(host: StoreHost) -> None:
    with client(host) as daemon:
        daemon.execute_command("REPLICAOF", "NO", "ONE")


async def restarted(host: StoreHost, times: int) -> None:
    await eventually(lambda: host.restarts == times)


async def ended(pid: int | None) -> None:
    assert pid is not None
    await eventually(lambda: not alive(pid))


async def test_it_starts_as_a_replica_of_nobody_with_what_replication_needs(make: Maker) -> None:
    host = make(config=Store(maxmemory_bytes=50_000_000, fsync="always"))
    await host.start()
    with client(host) as daemon:
        assert daemon.execute_command("ROLE")[:4] == ["slave", "127.0.0.1", 1, "connect"]
        found = daemon.config_get("*")
        assert found["replica-announce-ip"] == f"n1.{host.incarnation}"
        expected = {
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-use-rdb-preamble": "yes",
            "repl-diskless-load": "disabled",
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            "repl-backlog-size": "268435456",
            "repl-backlog-ttl": "0",
            "repl-timeout": "5",
            "repl-ping-replica-period": "1",
            "replica-read-only": "yes",
            "replica-serve-stale-data": "yes",
            "replica-ignore-maxmemory": "yes",
            "save": "",
            "min-replicas-to-write": "0",
            "maxmemory": "50000000",
            "maxmemory-policy": "noeviction",
            "hash-max-listpack-value": "1024",
            "port": "0",
        }
        assert {name: found[name] for name in expected} == expected
        assert "slave 1073741824 0 0" in found["client-output-buffer-limit"]
        with pytest.raises(redis.exceptions.ReadOnlyError):
            daemon.set("key", "value")


async def test_clients_are_refused_until_the_node_lets_them_in(make: Maker) -> None:
    host = make()
    await host.start()
    with (
        client(host, "default", CREDENTIALS.client) as early,
        pytest.raises(redis.AuthenticationError, match="disabled"),
    ):
        early.ping()
    with (
        redis.Redis(unix_socket_path=str(host.socket_path), retry=ONCE) as nobody,
        pytest.raises(redis.AuthenticationError),
    ):
        nobody.ping()
    with client(host) as daemon:
        daemon.execute_command("ACL", "SETUSER", "default", "on")
    with redis.Redis(
        unix_socket_path=str(host.socket_path), password=store_password(SECRET)
    ) as late:
        assert late.ping()


async def test_each_user_may_do_its_own_things_alone(make: Maker) -> None:
    host = make()
    await host.start()
    promote(host)
    with client(host) as daemon:
        daemon.set("key", "value")
        daemon.execute_command(
            "FUNCTION",
            "LOAD",
            "#!lua name=l\nserver.register_function{function_name='f',"
            "callback=function(k) return server.call('GET', k[1]) end, flags={'no-writes'}}",
        )
    with client(host, READER, CREDENTIALS.reader) as reader:
        assert reader.get("key") == "value"
        assert reader.execute_command("FCALL_RO", "f", 1, "key") == "value"
        assert reader.execute_command("EVAL_RO", "return redis.call('GET', KEYS[1])", 1, "key")
        sha = reader.script_load("return redis.call('GET', KEYS[1])")
        assert reader.execute_command("EVALSHA_RO", sha, 1, "key") == "value"
        assert reader.info("replication")["role"] == "master"
        for refused in (
            ("SET", "key", "other"),
            ("FCALL", "f", 1, "key"),
            ("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key"),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("CLIENT", "KILL", "TYPE", "normal"),
            ("REPLICAOF", "127.0.0.1", "1"),
            ("FLUSHALL",),
            ("SHUTDOWN",),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                reader.execute_command(*refused)
    with client(host, REPLICA, CREDENTIALS.replica) as replica:
        assert replica.ping()
        for refused in (("GET", "key"), ("INFO",), ("SET", "key", "1"), ("CONFIG", "GET", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                replica.execute_command(*refused)


async def test_one_follows_another_and_is_known_to_it_by_its_start(
    make: Maker, tmp_path: Path, free_port: int
) -> None:
    first = make(folder=tmp_path / "first", port=free_port)
    second = make(folder=tmp_path / "second", node="n2")
    await first.start()
    await second.start()
    promote(first)
    with client(first) as primary, client(second) as replica:
        primary.set("key", "value")
        replica.execute_command("REPLICAOF", "127.0.0.1", str(free_port))
        await eventually(lambda: replica.get("key") == "value")
        (known,) = [
            value
            for name, value in primary.info("replication").items()
            if name.startswith("slave0")
        ]
        assert known["ip"] == f"n2.{second.incarnation}"


async def test_files_tell_no_password_but_that_of_a_replica(make: Maker) -> None:
    host = make()
    await host.start()
    text = (host.folder / "valkey.conf").read_text()
    for password in (CREDENTIALS.client, CREDENTIALS.daemon, CREDENTIALS.reader, SECRET):
        assert password not in text
        assert password not in repr(CREDENTIALS)
    assert (host.folder / "valkey.conf").stat().st_mode & 0o077 == 0
    words = [CREDENTIALS.client, CREDENTIALS.daemon, CREDENTIALS.reader, CREDENTIALS.replica]
    assert len(set(words)) == 4
    assert CREDENTIALS.client == store_password(SECRET)


async def test_killed_it_runs_again_at_once_with_its_data_and_continues(make: Maker) -> None:
    told: list[str] = []
    host = make(on_event=told.append)
    await host.start()
    watch = asyncio.create_task(host.run())
    promote(host)
    with client(host) as daemon:
        daemon.set("kept", "1")
    words = [host.incarnation]
    for restarts in (1, 2):
        os.kill(host.pid or 0, signal.SIGKILL)
        await restarted(host, restarts)
        words.append(host.incarnation)
    assert len(set(words)) == 3
    found = start_of(host)
    assert found.incarnation == words[2]
    assert found.continues == tuple(words[:2])
    assert found.pid == host.pid
    with client(host) as daemon:
        await eventually(lambda: daemon.get("kept") == "1")
        assert daemon.execute_command("ROLE")[0] == "slave", "it never comes back as a primary"
    assert "was killed by SIGKILL" in told[0]
    assert told[0].endswith("it starts again in 0.05 s")
    assert told[1].startswith("store runs again (pid ")
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def damaged(host: StoreHost, zeros: int = 0) -> tuple[Path, int]:
    """Write something into its log behind ``kept``, or zeros; kill it. Returns: the log, where."""
    promote(host)
    with client(host) as daemon:
        daemon.set("kept", "1")
        (log,) = host.folder.glob("appendonlydir/*.incr.aof")
        begin = log.stat().st_size
        daemon.set("behind", "1")
    data = log.read_bytes()
    log.write_bytes(data[:begin] + (bytes(zeros) or b"garbage") + data[begin:])
    os.kill(host.pid or 0, signal.SIGKILL)
    return log, begin


async def test_zeros_that_a_full_disk_left_in_its_log_are_mended(make: Maker) -> None:
    """The server loses nothing by one, but more may be gone: it is no member with that."""
    host = make(config=Store(fsync="always"))
    await host.start()
    async with background(host.run()):
        word = host.incarnation
        log, _ = await damaged(host, zeros=4096)
        with client(host) as daemon:
            await eventually(lambda: host.pid and values(daemon) == ["1", "1"])
        assert bytes(8) not in log.read_bytes()
        assert word not in start_of(host).continues
        assert host.restarts == 1


async def test_a_log_that_cannot_be_read_is_left_alone_and_no_members_once_mended(
    make: Maker,
) -> None:
    """Whoever mends it by hand cuts off what was acknowledged."""
    host = make(config=Store(fsync="always"))
    await host.start()
    async with background(host.run()):
        word = host.incarnation
        log, begin = await damaged(host)
        before = log.read_bytes()
        assert await eventually(lambda: damaged_log.told(host.folder)) == str(log)
        restarts = host.restarts
        await eventually(lambda: host.restarts > restarts)
        assert log.read_bytes() == before
        os.truncate(log, begin)
        with client(host) as daemon:
            await eventually(lambda: host.pid and values(daemon) == ["1", None])
        assert word not in start_of(host).continues
        assert not damaged_log.told(host.folder)


async def test_a_damaged_log_keeps_no_host_from_starting(make: Maker) -> None:
    """Its node has to run, to know whether another store is the primary."""
    host = make(config=Store(fsync="always"))
    await host.start()
    await damaged(host)
    await host.stop()
    assert not damaged_log.told(host.folder)
    for _ in range(2):
        host = make()
        await host.start()
        async with background(host.run()):
            await eventually(lambda host=host: damaged_log.told(host.folder))
        await host.stop()
    assert damaged_log.give_up(host.folder)
    host = make()
    await host.start()
    with client(host) as daemon:
        await eventually(lambda: values(daemon) == [None, None])
    assert list(host.folder.glob("discarded/damaged-*/*.incr.aof"))


def values(daemon: redis.Redis) -> list[str | None] | None:
    """``kept`` and ``behind``; None: it does not answer."""
    try:
        return list(daemon.mget("kept", "behind"))
    except redis.RedisError:
        return None


@pytest.mark.parametrize(
    ("ends", "boots", "syncing", "continues"),
    [
        pytest.param(signal.SIGTERM, ("1", "1"), False, True, id="restarted"),
        pytest.param(signal.SIGTERM, ("1", "2"), False, True, id="restarted, host too"),
        pytest.param(signal.SIGTERM, ("1", "1"), True, False, id="restarted in a sync"),
        pytest.param(signal.SIGKILL, ("1", "1"), False, True, id="killed"),
        pytest.param(signal.SIGKILL, ("1", "2"), False, False, id="power cut"),
        pytest.param(signal.SIGKILL, ("1", "1"), True, False, id="killed in a sync"),
    ],
)
async def test_a_later_host_continues_what_lost_nothing(
    make: Maker, ends: signal.Signals, boots: tuple[str, str], syncing: bool, continues: bool
) -> None:
    first = make(boot_id=lambda: boots[0])
    await first.start()
    promote(first)
    with client(first) as daemon:
        daemon.set("kept", "1")
    if syncing:
        lineage.mark_syncing(first.folder)
    if ends == signal.SIGKILL:
        pid = first.pid
        first.kill()
        await ended(pid)
    await first.stop()
    second = make(boot_id=lambda: boots[1])
    await second.start()
    found = start_of(second)
    assert found.continues == ((first.incarnation,) if continues else ())
    assert not (second.folder / lineage.MARKER).exists()
    with client(second) as daemon:
        await eventually(lambda: daemon.get("kept") == "1")


async def test_data_of_a_store_that_ran_alone_are_taken_as_they_are(
    make: Maker, tmp_path: Path
) -> None:
    alone = EmbeddedStore(tmp_path / "store", Store(), "c", CREDENTIALS.client, SystemClock())
    with redis.Redis.from_url(await alone.start()) as before:
        before.set("kept", "1")
    await alone.stop()
    host = make()
    await host.start()
    assert start_of(host).continues == ()
    with client(host) as daemon:
        await eventually(lambda: daemon.get("kept") == "1")
        assert daemon.get("{c}:view") == "1", "nobody has promoted it"


async def test_data_above_the_limit_are_no_hindrance(make: Maker) -> None:
    host = make()
    await host.start()
    promote(host)
    with client(host) as daemon:
        daemon.set("ballast", "x" * (3 << 20))
    await host.stop()
    limited = make(config=Store(maxmemory_bytes=1 << 20))
    await limited.start()
    with client(limited) as daemon:
        await eventually(lambda: daemon.strlen("ballast") == 3 << 20)


async def test_a_folder_that_is_in_use_is_refused_until_its_host_stops(make: Maker) -> None:
    host, second = make(), make()
    await host.start()
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}") as refused:
        await second.start()
    assert refused.value.pid == os.getpid()
    assert isinstance(refused.value, ConfigError)
    assert start_of(second).incarnation == host.incarnation
    await second.stop()
    assert start_of(second).pid == host.pid
    await host.stop()
    await second.start()
    assert start_of(second).continues == (host.incarnation,)


async def test_a_folder_that_was_removed_under_its_host_gets_no_second_one(
    make: Maker, tmp_path: Path
) -> None:
    """As when somebody loses a disk, or tries what happens: it begins anew, and alone."""
    host, second = make(), make()
    await host.start()
    first, pid = host.incarnation, host.pid
    watching = asyncio.create_task(host.run())
    (tmp_path / "store").rename(tmp_path / "gone")
    with pytest.raises(FolderInUse):
        await second.start()
    await restarted(host, 1)
    await ended(pid)
    found = start_of(host)
    assert (found.incarnation, found.continues) == (host.incarnation, ())
    assert found.incarnation != first
    with pytest.raises(FolderInUse):
        await second.start()
    watching.cancel()


async def test_a_host_whose_place_another_has_taken_starts_nothing_there(
    make: Maker, tmp_path: Path
) -> None:
    events: list[str] = []
    folder = tmp_path / "n1" / "store"
    host, second = make(folder, on_event=events.append), make(folder)
    await host.start()
    pid = host.pid
    watching = asyncio.create_task(host.run())
    # at once, as for any other process: nothing is awaited between
    (tmp_path / "n1").rename(tmp_path / "gone")
    await second.start()
    await ended(pid)
    await eventually(lambda: any("in use by process" in event for event in events))
    assert host.pid is None
    assert start_of(second).incarnation == second.incarnation
    await second.stop()
    await restarted(host, 1)
    watching.cancel()


async def test_a_start_that_fails_says_why_and_frees_the_folder(
    make: Maker, free_port: int
) -> None:
    host = make(port=free_port)
    await host.start()
    second = make(folder=host.folder.with_name("second"), port=free_port)
    with pytest.raises(StoreDown, match=r"ended with status 1; it said: .*listen"):
        await second.start()
    await host.stop()
    await second.start()


async def test_a_server_without_functions_is_refused(make: Maker, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc'\n")
    old.chmod(0o700)
    with pytest.raises(ConfigError, match=r"is version 6\.2; 7\.0 is the oldest allowed"):
        await make(config=Store(binary=str(old))).start()


async def test_stop_leaves_no_process_and_no_socket(make: Maker) -> None:
    host = make()
    await host.start()
    pid = host.pid
    await host.stop()
    await ended(pid)
    assert host.pid is None
    assert not host.socket_path.exists()
    found = lineage.read(host.folder)
    assert found is not None
    assert found.clean


HOST = """
import asyncio, sys
from pathlib import Path
from tidewarden.clock import SystemClock
from tidewarden.config.settings import Store
from tidewarden.store.embedded.credentials import StoreCredentials
from tidewarden.store.embedded.store_host import StoreHost
async def main():
    credentials = StoreCredentials.of("a cluster secret")
    host = StoreHost(Path(sys.argv[1]), Store(), credentials, SystemClock(), node="n1")
    await host.start()
    print(host.pid, flush=True)
    await host.run()
asyncio.run(main())
"""


async def test_it_dies_with_its_host_and_the_next_one_continues(
    make: Maker, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline))
        while not list((folder / "appendonlydir").glob("*.manifest")):  # a log to go on with
            await asyncio.sleep(0.01)
        before = lineage.read(folder)
        assert before is not None
        process.kill()
    await ended(pid)
    host = make()
    await host.start()
    assert start_of(host).continues == before.incarnations
