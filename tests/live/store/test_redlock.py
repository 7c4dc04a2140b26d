"""
Redlock over five servers of their own: what it keeps apart, beside npm's redlock and pottery's on
the same servers, and what it does not.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pottery
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster.processes import LIMIT_S, Valkey

from tidewarden.client import AsyncRedlock, Redlock
from tidewarden.errors import BadArg, NotHeld, Unreachable

PEER = Path(__file__).parents[2] / "support" / "store" / "redlock_peer.mjs"
NAME = "redlock:shared"
"""As pottery names the key of a lock ``shared``."""
SECONDS = 4


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Valkey]]:
    """Five masters."""
    folder = tmp_path_factory.mktemp("masters")
    made = [Valkey(folder / f"m{number}") for number in range(5)]
    for one in made:
        one.start()
    yield made
    for one in made:
        one.kill()


@pytest.fixture
def masters(servers: list[Valkey]) -> Iterator[list[Valkey]]:
    """All of them are up, and empty."""
    for one in servers:
        with one.client() as client:
            client.flushall()
    yield servers
    for one in servers:
        if not one.running:
            one.start()


def urls(masters: list[Valkey]) -> list[str]:
    return [f"redis://:{one.password}@127.0.0.1:{one.port}" for one in masters]


def holders(masters: list[Valkey], name: str) -> int:
    found = 0
    for one in masters:
        if one.running:
            with one.client() as client:
                found += client.exists(name)
    return found


async def test_one_holder_at_a_time_who_can_extend_and_release(masters: list[Valkey]) -> None:
    async with AsyncRedlock(urls(masters)) as redlock:
        mine, other = redlock.lock(NAME, ttl_ms=60_000), redlock.lock(NAME, ttl_ms=60_000)
        assert await mine.acquire()
        assert 58_000 < mine.valid_ms < 59_400  # A hundredth and 2 ms are the clocks'.
        assert holders(masters, NAME) == 5
        assert not await other.acquire(tries=2, retry_ms=10)
        assert holders(masters, NAME) == 5  # What another has is not taken away.
        with pytest.raises(BadArg, match="not reentrant"):
            await mine.acquire()
        await mine.extend(120_000)
        assert mine.valid_ms > 100_000
        await mine.release()
        assert (holders(masters, NAME), mine.held) == (0, False)
        assert await other.acquire()
        for act in (mine.release, mine.extend):
            with pytest.raises(NotHeld):
                await act()
        assert holders(masters, NAME) == 5
        with pytest.raises(NotHeld, match="somebody else"):
            async with redlock.lock(NAME):
                raise AssertionError("it is held by another")
        await other.release()


async def test_a_minority_that_is_away_changes_nothing_and_a_majority_ends_it(
    masters: list[Valkey],
) -> None:
    async with AsyncRedlock(urls(masters)) as redlock:
        for one in masters[:2]:
            one.kill()
        lock = redlock.lock(NAME, ttl_ms=30_000)
        assert await lock.acquire()
        assert holders(masters, NAME) == 3
        await lock.extend()
        await lock.release()
        assert holders(masters, NAME) == 0
        masters[2].kill()
        with pytest.raises(Unreachable, match="no majority"):
            await lock.acquire(tries=2, retry_ms=10)
        assert holders(masters, NAME) == 0  # Two had it, and gave it back.


async def test_a_master_that_stands_still_costs_a_part_of_the_locks_life(
    masters: list[Valkey],
) -> None:
    async with AsyncRedlock(urls(masters)) as redlock:
        masters[0].freeze()
        try:
            lock = redlock.lock(NAME, ttl_ms=60_000)
            assert await lock.acquire()
            assert lock.held
        finally:
            masters[0].thaw()
        await lock.release()


async def test_whoever_is_cancelled_while_acquiring_leaves_nothing(masters: list[Valkey]) -> None:
    async with AsyncRedlock(urls(masters), answer_ms=20_000) as redlock:
        masters[0].freeze()  # So that acquiring waits.
        lock = redlock.lock(NAME, ttl_ms=60_000)
        acquiring = asyncio.ensure_future(lock.acquire())
        end_s = time.monotonic() + LIMIT_S
        while holders(masters[1:], NAME) < 4:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.01)
        acquiring.cancel()
        masters[0].thaw()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        while holders(masters, NAME):
            assert time.monotonic() < end_s
            await asyncio.sleep(0.01)


async def test_a_master_that_forgot_votes_again_and_there_are_two_holders(
    masters: list[Valkey],
) -> None:
    """It is no promise but the gap of the algorithm, which docs/locks.md names."""
    async with AsyncRedlock(urls(masters)) as redlock:
        for one in masters[3:]:
            one.kill()
        first = redlock.lock(NAME, ttl_ms=60_000)
        assert await first.acquire()
        for one in masters[3:]:
            one.start()
        masters[0].kill()
        for kept in masters[0].folder.glob("appendonlydir/*"):
            kept.unlink()
        masters[0].start()
        second = redlock.lock(NAME, ttl_ms=60_000)
        assert await second.acquire()
        assert first.held
        assert second.held
        with pytest.raises(NotHeld):
            await first.extend()


def test_threads_have_it_too_and_bad_addresses_are_named(masters: list[Valkey]) -> None:
    with Redlock(urls(masters)) as redlock, redlock.lock(NAME, ttl_ms=30_000) as lock:
        assert lock.held
        assert not redlock.lock(NAME).acquire(tries=1)
        lock.extend()
    assert holders(masters, NAME) == 0
    for wrong in ([], [urls(masters)[0]] * 3, ["redis://127.0.0.1"], ["http://127.0.0.1:1"]):
        with pytest.raises(BadArg, match="allowed"):
            Redlock(wrong)


def npm_redlock(folder: Path) -> Path:
    """A folder with npm's redlock and ioredis. Skips the test where they cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here, which fetches redlock")
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "redlock@4", "ioredis@5"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"npm could not fetch redlock: {done.stderr[-200:]}")
    return folder


class Section:
    """Is entered under the lock: who is inside is counted at a server that votes in nothing."""

    def __init__(self, witness: Valkey) -> None:
        self._witness = witness
        self.sections = self.overlaps = 0
        self._counting = threading.Lock()

    def enter(self) -> None:
        with self._witness.client() as client:
            others = client.incr("inside") != 1
            time.sleep(0.002)
            client.decr("inside")
        with self._counting:
            self.sections += 1
            self.overlaps += others


def of_pottery(masters: list[Valkey], section: Section, until_s: float) -> None:
    once = Retry(NoBackoff(), 0)  # Else it tries a dead master for as long as a lock lives.
    servers = {redis.Redis(port=one.port, password=one.password, retry=once) for one in masters}
    while time.monotonic() < until_s or not section.sections:
        lock = pottery.Redlock(key="shared", masters=servers, auto_release_time=20)
        if lock.acquire(timeout=SECONDS):
            section.enter()
            lock.release()


def of_ours(masters: list[Valkey], section: Section, until_s: float) -> None:
    with Redlock(urls(masters)) as redlock:
        while time.monotonic() < until_s or not section.sections:
            lock = redlock.lock(NAME, ttl_ms=20_000)
            if lock.acquire(tries=100, retry_ms=20):
                section.enter()
                lock.release()


@pytest.mark.parametrize("away", [0, 2])
def test_others_redlocks_and_ours_exclude_each_other(
    masters: list[Valkey], tmp_path: Path, away: int
) -> None:
    folder, witness = npm_redlock(tmp_path), Valkey(tmp_path / "witness")
    witness.start()
    for one in masters[:away]:
        one.kill()
    argv = ["node", str(PEER), str(SECONDS), NAME]
    argv += [f"redis://:{one.password}@127.0.0.1:{one.port}" for one in (witness, *masters)]
    peers = {"ours": Section(witness), "pottery": Section(witness)}
    npm = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        until_s = time.monotonic() + SECONDS
        threads = [
            threading.Thread(target=work, args=(masters, peers[name], until_s))
            for name, work in (("ours", of_ours), ("pottery", of_pottery))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = json.loads(npm.communicate(timeout=LIMIT_S)[0])
    finally:
        npm.kill()
        witness.kill()
    found = {name: (one.sections, one.overlaps) for name, one in peers.items()}
    found["npm"] = (told["sections"], told["overlaps"])
    print(found)
    assert all(sections > 0 and not overlaps for sections, overlaps in found.values()), found
