"""A server that cannot be the store is refused with every reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from tidewarden.clock import SystemClock
from tidewarden.errors import ConfigError
from tidewarden.store import StoreConnection
from tidewarden.store.preflight import (
    EMBEDDED,
    LISTPACKS,
    check_store,
    parse_info,
    problems_of,
    warn_of_settings,
)

GOOD = {"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "noeviction"}


def test_a_good_server_has_no_problems() -> None:
    assert problems_of(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"redis_version": "6.0.16"}, "6.2"),
        ({"maxmemory_policy": "allkeys-lru"}, "noeviction"),
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "h:1"),
        ({"cluster_enabled": "1"}, "Cluster"),
    ],
)
def test_each_problem_is_named(change: dict[str, str], word: str) -> None:
    (problem,) = problems_of(GOOD | change)
    assert word in problem


def test_all_problems_come_at_once() -> None:
    assert (
        len(problems_of(GOOD | {"redis_version": "5.0", "maxmemory_policy": "volatile-ttl"})) == 2
    )


def test_info_parses_with_comments_and_rubbish() -> None:
    assert parse_info(b"# Server\r\nredis_version:7.0.0\r\n\r\nrubbish\r\na:b:c\r\n") == {
        "redis_version": "7.0.0",
        "a": "b:c",
    }


@pytest.fixture
async def link(valkey) -> AsyncIterator[StoreConnection]:  # type: ignore[no-untyped-def]
    link = StoreConnection(valkey.url, "test", SystemClock())
    await link.start(wait_s=60)
    yield link
    await link.stop()


async def test_a_real_server_is_recognised(link: StoreConnection) -> None:
    server = await check_store(link, "c")
    assert (server.name, server.views) == ("valkey", False)
    assert await link.call("GET", "{c}:format") == b"2"


async def test_an_embedded_server_says_that_it_counts_views(link: StoreConnection) -> None:
    await link.call("SET", "{c}:view", 3)
    await link.call("CONFIG", "SET", "replica-announce-ip", EMBEDDED)
    try:
        assert (await check_store(link, "c")).views
    finally:
        await link.call("CONFIG", "SET", "replica-announce-ip", "")


async def test_data_that_were_copied_from_an_embedded_store_are_numbered_by_the_clock(
    link: StoreConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody raises the view there: after a failover the same numbers would be given again."""
    await link.call("MSET", "{c}:view", 3, "{c}:fsync", "always")
    assert not (await check_store(link, "c")).views
    assert await link.call("EXISTS", "{c}:view", "{c}:fsync") == 0
    assert "came from an embedded store" in caplog.text
    assert not (await check_store(link, "c")).views


async def test_copied_data_with_numbers_above_the_clocks_are_refused(
    link: StoreConnection,
) -> None:
    await link.call("SET", "{c}:view", 120_000)
    with pytest.raises(ConfigError, match=r"lease numbers would go back.*restore"):
        await check_store(link, "c")
    assert await link.call("GET", "{c}:view") == b"120000"


async def test_data_of_the_former_format_are_taken_on(link: StoreConnection) -> None:
    """
    Older versions refuse them from now on; the shards follow one by one, when they are written.
    """
    await link.call("SET", "{c}:format", 1)
    await check_store(link, "c")
    assert await link.call("GET", "{c}:format") == b"2"


async def test_a_newer_format_is_refused_with_the_way_out(link: StoreConnection) -> None:
    await link.call("SET", "{c}:format", 3)
    with pytest.raises(ConfigError, match="upgrade"):
        await check_store(link, "c")


async def test_an_evicting_server_is_refused(link: StoreConnection, valkey) -> None:  # type: ignore[no-untyped-def]
    client = redis.Redis(unix_socket_path=valkey.path)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="noeviction"):
            await check_store(link, "c")
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()


async def test_settings_that_cost_memory_are_named(
    link: StoreConnection, caplog: pytest.LogCaptureFixture
) -> None:
    former = dict.fromkeys(LISTPACKS, b"")
    for name in former:
        (_, former[name]) = await link.call("CONFIG", "GET", name)
    try:
        await link.call("CONFIG", "SET", "hash-max-listpack-value", 64)
        await warn_of_settings(link)
        assert "hash-max-listpack-value 1024 (now 64)" in caplog.text
        caplog.clear()
        for name, value in LISTPACKS.items():
            await link.call("CONFIG", "SET", name, value)
        await warn_of_settings(link)
        assert not caplog.text
    finally:
        for name, was in former.items():
            await link.call("CONFIG", "SET", name, was)
