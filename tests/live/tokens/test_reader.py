"""Readers: one request for all who wait, and the old token while it lives."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from support.inspect import reader_of, waiting_readers_of, watchers_of
from support.providers.scripted_provider import answers, scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually
from support.tokens.ledger_bench import QUEUE, Bench

from tidewarden.clock import SystemClock
from tidewarden.errors import NotFound, Timeout
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import AccountReading
from tidewarden.tokens.verbs.reader import in_vain, lives

NOW_MS = 1_700_000_000_000
FAR_MS = 4_000_000_000_000


async def test_readers_of_one_account_make_one_request(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider(delay_s=0.2) as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "old", "expires_in": 30}
            )
            side.go()
            asked = [side.tokens.get("p/a", min_ttl_ms=60_000, wait_ms=60_000) for _ in range(50)]
            tokens = await asyncio.gather(*asked)
            assert {token.access_token for token in tokens} == {"secret-access-a-1"}
            reader = reader_of(side.tokens)
            assert watchers_of(reader) == waiting_readers_of(reader) == {}
    assert endpoint.requests == {"a.0": 1}


async def test_an_account_that_is_put_anew_while_a_newer_token_is_waited_for(
    valkey: Any, tmp_path: Path
) -> None:
    """
    Its generations begin anew: whoever wants a later one than the deleted account's is told that
    there is none.
    """
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        for n in range(3):
            await side.tokens.put("p/a", {"refresh_token": f"a.{n}"})
        asked = asyncio.create_task(side.tokens.get("p/a", wait_ms=60_000, newer=2))
        await eventually(lambda: watchers_of(reader_of(side.tokens)))
        await side.tokens.delete("p/a")
        await side.tokens.put("p/a", {"refresh_token": "b.0"})
        with pytest.raises((Timeout, NotFound)) as told:
            await asked
        # It may have looked between the two.
        deleted = told.errisinstance(NotFound)
        assert deleted or "no token of a later generation than 2 yet" in str(told.value)
        with pytest.raises(Timeout, match="no token of a later generation than 2 yet"):
            await side.tokens.get("p/a", wait_ms=1, newer=2)


async def test_who_waits_when_the_node_stops_gets_what_there_is(
    valkey: Any, tmp_path: Path
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        await side.tokens.put(
            "p/a", {"refresh_token": "a.0", "access_token": "old", "expires_in": 300}
        )
        asked = asyncio.create_task(side.tokens.get("p/a", min_ttl_ms=600_000, wait_ms=60_000))
        reader = reader_of(side.tokens)
        await eventually(lambda: watchers_of(reader))
        reader.stop()
        await asyncio.wait([asked], timeout=20)
        assert asked.done()
        assert (await asked).access_token == "old"


async def test_a_reader_on_another_node_sees_it_in_the_row(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path / "a", chosen, "n0") as one:
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "secrets").symlink_to(tmp_path / "a" / "secrets")
            async with harness.node(valkey, tmp_path / "b", chosen, "n1", go=False) as two:
                await two.tokens.put("p/a", {"refresh_token": "a.0"})
                token = await two.tokens.get("p/a", wait_ms=60_000)
                assert token.access_token == "secret-access-a-1"
                assert one.tokens.metrics()["refreshes"] == {("p", "ok"): 1}


async def test_readers_of_three_nodes_make_one_request(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider(delay_s=0.2) as endpoint, contextlib.AsyncExitStack() as stack:
        chosen = harness.provider(endpoint.url)
        sides = []
        (tmp_path / "secrets").mkdir()
        for name in ("n0", "n1", "n2"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "secrets").symlink_to(tmp_path / "secrets")
            sides.append(
                await stack.enter_async_context(harness.node(valkey, tmp_path / name, chosen, name))
            )
        for turn in range(3):
            account = f"p/a{turn}"
            await sides[0].tokens.put(
                account, {"refresh_token": f"a{turn}.0", "access_token": "old", "expires_in": 3000}
            )

            async def late(account: str, number: int) -> Any:
                # up to half a second: before, while and after it is refreshed
                await asyncio.sleep(number / 400)
                return await sides[number % 3].tokens.get(
                    account, min_ttl_ms=3_100_000, wait_ms=60_000
                )

            tokens = await asyncio.gather(*(late(account, number) for number in range(200)))
            # which a stalled machine makes some
            fresh = [token for token in tokens if token.state != "stale"]
            assert {token.access_token for token in fresh} == {f"secret-access-a{turn}-1"}
            assert all(0 < token.keep_ms <= 500_000 for token in fresh)
        # Many at once, of which one is not there.
        found = await sides[1].tokens.get_many(
            [*(f"p/a{turn}" for turn in range(3)), "p/none", "q/none"]
        )
        assert [getattr(one, "code", "token") for one in found] == ["token"] * 3 + ["NOTFOUND"] * 2
    assert endpoint.requests == {f"a{turn}.0": 1 for turn in range(3)}


async def test_an_old_token_that_lives_is_served_while_its_refresh_fails(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.extend([answers(503, {})] * 100)
        async with harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "old", "expires_in": 3600}
            )
            token = await side.tokens.get("p/a", min_ttl_ms=7_200_000, wait_ms=300)
            assert token.access_token == "old"
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            await harness.in_state(side, "failing", "p/b")
            with pytest.raises(
                Timeout,
                match=(
                    r"p/b has no living access token yet; its refresh fails: unavailable \(HTTP 503"
                ),
            ):
                await side.tokens.get("p/b", wait_ms=500)


async def test_a_reader_who_wants_more_than_there_is_gets_the_newest(
    valkey: Any, tmp_path: Path
) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        await side.tokens.put("p/a", {"refresh_token": "a.0"})
        for _ in range(5):
            token = await side.tokens.get("p/a", min_ttl_ms=10 * 3_600_000, wait_ms=60_000)
            assert token.access_token == "secret-access-a-1"
    assert endpoint.requests == {"a.0": 1}


def test_who_always_wants_more_than_there_is_has_it_refreshed_twice_a_life_at_most() -> None:
    hour_ms = 3_600_000
    row = AccountRow(1, 2, NOW_MS, NOW_MS + hour_ms, NOW_MS, b"", b"", refreshed=True)

    def will_do(age_ms: int, min_ttl_ms: int) -> bool:
        return lives(AccountReading(NOW_MS + age_ms, 0, row, None), min_ttl_ms)

    for min_ttl_ms in (hour_ms - 1000, hour_ms, 10 * hour_ms):
        assert will_do(hour_ms // 2, min_ttl_ms)
        assert not will_do(hour_ms // 2 + 1, min_ttl_ms)
    assert will_do(hour_ms * 3 // 4, hour_ms // 4)
    assert not will_do(hour_ms * 3 // 4 + 1, hour_ms // 4)
    assert not will_do(hour_ms, 0)


def test_after_a_step_back_of_the_stores_clock_nobody_knows_how_long_a_token_lives() -> None:
    """
    It was stored in what is the future now: it may have expired an hour ago, and is refreshed
    rather than believed.
    """
    row = AccountRow(1, 2, NOW_MS, NOW_MS + 3_600_000, NOW_MS, b"", b"", refreshed=True)
    # Clocks of servers that take over differ a little.
    assert lives(AccountReading(NOW_MS - 4000, 0, row, None), 0)
    stepped = AccountReading(NOW_MS - 3_600_000, 0, row, None)
    assert not lives(stepped, 0)
    assert not in_vain(harness.provider("http://x/", account_interval_s=60), stepped, 60_001)


@pytest.mark.parametrize("why", ["forbidden", "failing"])
async def test_nobody_waits_for_a_refresh_that_cannot_come_in_time(
    valkey: Any, tmp_path: Path, why: str
) -> None:
    """The provider refuses an early one, or the next try is later than the reader stays."""
    async with scripted_provider() as endpoint:
        settings = {"not_before_s": 600.0} if why == "forbidden" else {}
        endpoint.faults.append(answers(503, {}, retry_after="600"))
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url, **settings)
        ) as side:
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "old", "expires_in": 3600}
            )
            if why == "failing":
                await side.tokens.refresh("p/a")

                async def failing() -> bool:
                    return bool((await side.tokens.stats())["p"]["failing"])

                await eventually(failing)
            async with asyncio.timeout(60):
                token = await side.tokens.get("p/a", min_ttl_ms=7_200_000, wait_ms=120_000)
            assert token.access_token == "old"
    assert endpoint.requests == ({"a.0": 1} if why == "failing" else {})


async def test_workers_whose_token_is_refused_make_one_request_between_them(
    valkey: Any, tmp_path: Path
) -> None:
    """
    Thirty meet a 401 at once, and again with the next token: the provider hears of it once in five
    seconds.
    """
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        tokens = side.tokens
        await tokens.put("p/a", {"refresh_token": "a.0"})
        assert (await tokens.get("p/a", wait_ms=60_000)).generation == 2

        async def newer(than: int, wait_ms: int) -> list[Any]:
            workers = (tokens.get("p/a", wait_ms=wait_ms, newer=than) for _ in range(30))
            return await asyncio.gather(*workers, return_exceptions=True)

        assert {token.generation for token in await newer(2, 60_000)} == {3}
        assert {token.generation for token in await newer(2, 0)} == {3}
        assert {type(error) for error in await newer(3, 0)} == {Timeout}
        assert [await tokens.refresh("p/a") for _ in range(3)] == ["recent"] * 3
        assert await tokens.refresh("p/a", generation=2) == "moved"
        assert endpoint.current["a"] == 2
        # When the five seconds are over.
        assert (await tokens.get("p/a", wait_ms=60_000, newer=3)).generation == 4
        assert endpoint.current["a"] == 3
        # Another consent has nothing to do with that.
        await tokens.put("p/a", {"refresh_token": "a.3", "access_token": "x", "expires_in": 3600})
        assert {token.generation for token in await newer(5, 60_000)} == {6}


async def test_a_stopped_account_tells_its_reader(valkey: Any, tmp_path: Path) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        bench = Bench(side.queues)
        bench.now_ms = SystemClock().unix_ms()
        for account, token in (("old", {}), ("living", {"access_token": "a", "expires_in": 3600})):
            await side.tokens.put(f"p/{account}", {"refresh_token": account} | token)
            await side.tokens.refresh(f"p/{account}")
            task = await bench.take(account)
            troubles = RefreshTroubles(
                tries=90, stopped=True, outcome="unavailable", message="HTTP 503", last_ms=5
            )
            await bench.ledger.failed(QUEUE, account, task.lease, Step("stop", 0, troubles))
        with pytest.raises(
            NotFound,
            match=r"p/old is stopped \(unavailable: HTTP 503\) and has no living token; it is",
        ):
            await side.tokens.get("p/old", wait_ms=60_000)
        assert (await side.tokens.get("p/living", min_ttl_ms=10_000_000)).state == "stopped"
        page, _ = await side.tokens.list(state="stopped")
        assert {entry["account"]: entry["since_ms"] for entry in page} == {
            "p/old": 5,
            "p/living": 5,
        }


async def test_a_dead_account_tells_its_reader(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider() as endpoint:
        endpoint.current["a"] = 9
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url), confirm_s=0.005
        ) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            with pytest.raises(
                NotFound,
                match=(
                    r"p/a is dead \(invalid_grant: HTTP 400 invalid_grant\) and has no living"
                    r" token; put a new grant"
                ),
            ):
                await side.tokens.get("p/a", wait_ms=60_000)
            asked = endpoint.requests["a.0"]
            assert asked >= 3
            with pytest.raises(NotFound, match="p/a is dead"):
                await side.tokens.get("p/a", newer=1)
            # By hand it is tried once more, and found dead again.
            assert await side.tokens.refresh("p/a") == "queued"
            await eventually(lambda: endpoint.requests["a.0"] == asked + 1)
