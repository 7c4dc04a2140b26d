"""The pool of a provider's refreshers: how many at a time, what makes it pause, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from support.inspect import accounts_of, journal_of
from support.providers.scripted_provider import answers, cut, scripted_provider
from support.tokens import harness
from support.tokens.defects import break_once
from support.tokens.harness import described, eventually, in_state

from tidewarden.clock import SystemClock
from tidewarden.duties import Duties
from tidewarden.errors import StoreDown
from tidewarden.tokens.events.events import START
from tidewarden.tokens.journal import journal as journal_module
from tidewarden.tokens.refresh import pool as pool_module


async def test_every_account_is_refreshed_once_a_generation(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider(life_s=3600) as endpoint:
        chosen = harness.provider(endpoint.url, refreshers=8)
        async with (
            harness.node(valkey, tmp_path / "a", chosen, "n0") as one,
            contextlib.AsyncExitStack() as stack,
        ):
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "secrets").symlink_to(tmp_path / "a" / "secrets")
            two = await stack.enter_async_context(
                harness.node(valkey, tmp_path / "b", chosen, "n1")
            )
            await asyncio.gather(
                *(one.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(200))
            )

            async def all_fresh() -> bool:
                return bool((await one.tokens.stats())["p"]["fresh"] == 200)

            await eventually(all_fresh)
            done = one.tokens.metrics()["refreshes"], two.tokens.metrics()["refreshes"]
    assert sum(endpoint.requests.values()) == 200
    assert set(endpoint.requests.values()) == {1}
    assert sum(counts["p", "ok"] for counts in done) == 200
    assert endpoint.most_open <= 16


@pytest.mark.parametrize("where", ["a take", "beside a take"])
async def test_refreshers_that_met_a_defect_once_go_on(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    break_once(monkeypatch, where)
    async with scripted_provider(life_s=3600) as endpoint:
        chosen = harness.provider(endpoint.url, refreshers=8)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            duties = Duties(SystemClock())
            running = asyncio.create_task(side.tokens.run(duties))
            await eventually(lambda: duties.begun_anew)
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(20))
            )
            await eventually(lambda: sum(endpoint.requests.values()) == 20)
            assert duties.begun_anew == 1
            await side.tokens.stop()
            await asyncio.wait([running])
    assert set(endpoint.requests.values()) == {1}


async def test_where_no_number_is_set_it_grows_while_accounts_are_late(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(life_s=3600) as endpoint:
        chosen = harness.provider(endpoint.url)
        assert chosen.refreshers == 0
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(250))
            )
            # 16 at a time would take them eight seconds, however fast the machine
            endpoint.delay_s = 0.5
            running = asyncio.create_task(side.tokens.run(Duties(SystemClock())))
            await eventually(lambda: sum(endpoint.requests.values()) == 250)
            assert side.tokens.metrics()["refreshers"]["p"] >= 16
            await side.tokens.stop()
            await asyncio.wait([running])
    assert set(endpoint.requests.values()) == {1}
    assert 16 < endpoint.most_open <= 256


async def test_what_falls_due_together_is_taken_in_parts(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "TAKE_MAX", 4)
    async with scripted_provider() as endpoint, contextlib.AsyncExitStack() as stack:
        chosen = harness.provider(endpoint.url, refreshers=50)
        side = await stack.enter_async_context(harness.node(valkey, tmp_path, chosen, go=False))
        await asyncio.gather(
            *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(30))
        )
        asked, open_takes, most_open, take = [], 0, 0, side.queues.take

        def ended(_: object) -> None:
            nonlocal open_takes
            open_takes -= 1

        def noted(session: Any, queues: list[str], **options: Any) -> Any:
            nonlocal open_takes, most_open
            taking = take(session, queues, **options)
            if queues[0].startswith("_tokens:p"):
                asked.append(options["count"])
                open_takes += 1
                most_open = max(most_open, open_takes)
                taking.add_done_callback(ended)
            return taking

        monkeypatch.setattr(side.queues, "take", noted)
        endpoint.delay_s = 0.3  # so that one take's requests are under way while the next are taken
        running = asyncio.create_task(side.tokens.run(Duties(SystemClock())))
        await eventually(lambda: sum(endpoint.requests.values()) == 30)
        await side.tokens.stop()
        await asyncio.wait([running])
    assert max(asked) == 4
    assert 1 < most_open <= 3
    assert endpoint.most_open > 4


async def test_answers_on_their_way_to_the_disk_keep_some_others_from_being_asked_for_but_not_all(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url, refreshers=3)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(20))
            )
            writing, written = 0, asyncio.Event()
            add = journal_module.Journal.add_answer

            async def slowly(*args: Any, **options: Any) -> Any:
                nonlocal writing
                writing += 1
                await written.wait()
                return await add(*args, **options)

            monkeypatch.setattr(journal_module.Journal, "add_answer", slowly)
            running = asyncio.create_task(side.tokens.run(Duties(SystemClock())))
            most = pool_module.SETTLING * 3
            await eventually(lambda: writing == most)
            for _ in range(3):
                await side.tokens.stats()  # as long as another take would need
            assert sum(endpoint.requests.values()) == writing == most
            written.set()
            await eventually(lambda: sum(endpoint.requests.values()) == 20)
            await side.tokens.stop()
            await asyncio.wait([running])
    assert set(endpoint.requests.values()) == {1}
    assert endpoint.most_open <= 3


async def test_a_wrong_client_secret_touches_no_account_and_is_asked_about_rarely(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.extend([answers(401, {"error": "invalid_client"})] * 50)
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url, refreshers=4)
        ) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(50))
            )

            async def held() -> bool:
                return bool((await side.tokens.stats())["p"]["failures"])

            await eventually(held, 10)
            asked = sum(endpoint.requests.values())
            await eventually(lambda: sum(endpoint.requests.values()) > asked, 10)  # A probe.
            stats = (await side.tokens.stats())["p"]
            assert (stats["dead"], stats["total"]) == (0, 50)
            assert stats["failing"] <= 12
            assert sum(endpoint.requests.values()) <= 16
    assert caplog.text.count("refuses our client (invalid_client HTTP 401") == 1


async def test_a_stop_finishes_what_is_under_way_and_begins_nothing(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider(delay_s=0.5) as endpoint:
        chosen = harness.provider(endpoint.url, refreshers=4)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(40))
            )
            await eventually(lambda: endpoint.open == 4)
        async with harness.node(valkey, tmp_path, chosen, boot=2, go=False) as again:
            stats = (await again.tokens.stats())["p"]
            assert stats["fresh"] == sum(endpoint.requests.values()) <= 8
            assert stats["intents"] == 0
            assert (await again.queues.admin.stats("_tokens:p:c0"))["leased"] == 0


@pytest.mark.parametrize(
    "settings", [{"rotation": "single_use"}, {"rotation": "none"}], ids=["single use", "none"]
)
async def test_a_stop_waits_longer_for_an_answer_that_could_not_be_had_again(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(pool_module, "STOP_S", 0.3)
    lasts, gate = settings["rotation"] == "none", asyncio.Event()

    async def slow(_request: Any, made: Any, token: str) -> Any:
        await (gate.wait() if lasts else asyncio.sleep(0.5))
        return made.rotate(token)

    async with scripted_provider() as endpoint:
        endpoint.faults.append(slow)
        chosen = harness.provider(endpoint.url, **settings)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await eventually(lambda: endpoint.open)
        gate.set()
        async with harness.node(valkey, tmp_path, chosen, boot=2, go=False) as again:
            assert (await described(again))["generation"] == (
                2 if settings["rotation"] == "single_use" else 1
            )


async def test_a_journal_that_cannot_write_stops_the_risky_requests(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        real = journal_module.os.write

        def full(*_args: Any) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(journal_module.os, "write", full)
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "fresh")  # The answer was in hand, and the store took it.
            await side.tokens.put("p/b", {"refresh_token": "b.0"})
            await asyncio.sleep(0.3)
            assert endpoint.requests == {"a.0": 1}
        assert journal_module.os.write is real
        await in_state(side, "fresh", "p/b")


async def test_a_journal_that_cannot_write_is_told_everywhere_until_it_can(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        scripted_provider() as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url)) as side,
    ):
        tokens = side.tokens

        async def events() -> list[tuple[str, str]]:
            found = [event for _, event in await tokens.events.after(START)]
            return [(one.type, one.data.get("message", "")) for one in found]

        def full(*_args: Any) -> int:
            raise OSError(28, "No space left on device")

        said = (
            f"the journal of n0 is not writable: {tmp_path}/tokens.journal: No space left on device"
        )
        with monkeypatch.context() as patched:
            patched.setattr(journal_module.os, "write", full)
            await tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "fresh")
            await tokens.put("p/b", {"refresh_token": "b.0"})
            await eventually(lambda: tokens.metrics()["journal_writable"] == 0)
            await eventually(events)
            assert await events() == [("provider.silent", said)]
            stands = (await tokens.stats())["p"]
            assert (stands["state"], stands["error"], stands["message"]) == (
                "blocked",
                "journal",
                said,
            )
            assert "tokens.journal" in stands["advice"]
            of_provider, of_account = await tokens.why("p"), await tokens.why("p/b")
            assert said in str(of_provider["concluded"])
            assert "is not asked since" in of_provider["summary"]
            assert of_provider["next"]["code"] == "journal"
            assert said in str(of_account["concluded"])
            assert of_account["next"]["code"] == "after_journal"
            assert "refreshers" not in str(of_account["advice"])
        await in_state(side, "fresh", "p/b")
        await eventually(lambda: tokens.metrics()["journal_writable"] == 1)

        async def over() -> bool:
            return [kind for kind, _ in await events()] == ["provider.silent", "provider.answers"]

        await eventually(over)
        assert (await tokens.why("p"))["state"] == "answers"


async def test_a_store_that_goes_away_and_comes_back_loses_nothing(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Every script fails for a while, at every step of many refreshes; then all of it is made good.
    """
    async with scripted_provider(delay_s=0.01) as endpoint:
        monkeypatch.setattr(pool_module, "PAUSE_S", 0.05)
        chosen = harness.provider(endpoint.url, refreshers=8, grace_s=60)
        async with harness.node(valkey, tmp_path, chosen, go=False) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(60))
            )
            endpoint.faults.extend([answers(503, {}), cut] * 5)
            real, calls = accounts_of(side.tokens).script, 0

            async def flaky(name: str, *args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls % 3 == 0 and calls < 150:
                    if calls % 2:
                        await real(name, *args)  # It was done, and the answer was lost.
                    raise StoreDown("away")
                return await real(name, *args)

            accounts_of(side.tokens).script = flaky
            side.go()

            async def all_fresh() -> bool:
                return bool((await real_stats())["fresh"] == 60)

            async def real_stats() -> dict[str, int]:
                return await harness.AccountStore(real, side.queues.catalog).stats("_tokens:p:c0")

            await eventually(all_fresh)
            await eventually(lambda: not journal_of(side.tokens).pending())
            assert (await real_stats()) == dict.fromkeys(await real_stats(), 0) | {
                "total": 60,
                "fresh": 60,
            }
    # One each, and one more for each that failed.
    assert sum(endpoint.requests.values()) == 60 + 10
    assert set(endpoint.current.values()) == {1}


async def test_a_provider_that_suddenly_refuses_everybody_ends_nobody(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_provider() as endpoint:
        wrong = False

        async def refuse(request: Any, made: Any, token: str) -> Any:
            return (
                await answers(400, {"error": "invalid_grant"})(request, made, token)
                if wrong
                else made.rotate(token)
            )

        endpoint.script = refuse
        chosen = harness.provider(endpoint.url, rotation="rolling")
        async with harness.node(valkey, tmp_path, chosen) as side:
            names = [f"p/a{n}" for n in range(40)]
            await asyncio.gather(
                *(side.tokens.put(name, {"refresh_token": f"{name[2:]}.0"}) for name in names)
            )

            async def all_fresh() -> bool:
                return bool((await side.tokens.stats())["p"]["fresh"] == 40)

            await eventually(all_fresh)
            wrong = True
            for _ in range(3):
                asked = sum(endpoint.requests.values())
                # Else one is leased still.
                await eventually(lambda: not side.tokens.metrics()["in_flight"]["p"])
                await asyncio.gather(*(side.tokens.refresh(name) for name in names))
                await eventually(lambda asked=asked: sum(endpoint.requests.values()) >= asked + 40)
            stats = (await side.tokens.stats())["p"]
            assert (stats["dead"], stats["stopped"], stats["failing"], stats["failures"]) == (
                0,
                0,
                40,
                0,
            )
            assert stats["quarantined_since_ms"]
            assert side.tokens.metrics()["quarantines"] == {"p": 1}
            await eventually(lambda: side.tokens.events.told["p", "provider.quarantine_begun"] == 1)
            wrong = False
            # A sample of those that were refused; the others follow by themselves.
            for name in names[:8]:
                await side.tokens.refresh(name)
            await eventually(all_fresh)
    assert caplog.text.count("nobody is given up for it") == 1


async def test_one_odd_account_does_not_hold_up_the_others_for_ever(
    valkey: Any, tmp_path: Path
) -> None:
    """
    It alone is told that our client is unknown: at first that is believed, the second time it is
    its own matter.
    """
    async with scripted_provider(life_s=3600) as endpoint:

        async def odd(request: Any, made: Any, token: str) -> Any:
            if token.startswith("odd"):
                return await answers(400, {"error": "unauthorized_client"})(request, made, token)
            return made.rotate(token)

        endpoint.faults.extend([odd] * 100)
        async with harness.node(
            valkey, tmp_path, harness.provider(endpoint.url, refreshers=2)
        ) as side:
            await side.tokens.put("p/odd", {"refresh_token": "odd.0"})
            await eventually(lambda: endpoint.requests["odd.0"])
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(5))
            )

            async def fresh() -> bool:
                return bool((await side.tokens.stats())["p"]["fresh"] >= 5)

            await eventually(fresh)
            await side.tokens.refresh("p/odd")
            found = await in_state(side, "failing", "p/odd")
            assert found["error"] == "unauthorized_client"
            stats = (await side.tokens.stats())["p"]
            assert (stats["failures"], stats["held_until_ms"]) == (0, 0)


async def test_three_nodes_keep_to_one_rate_of_their_host(valkey: Any, tmp_path: Path) -> None:
    async with scripted_provider(life_s=3600) as endpoint, contextlib.AsyncExitStack() as stack:
        came: list[float] = []

        async def note(_request: Any, made: Any, token: str) -> Any:
            came.append(asyncio.get_running_loop().time())
            return made.rotate(token)

        endpoint.faults.extend([note] * 80)
        chosen = harness.provider(endpoint.url, host_rate=30.0)
        (tmp_path / "secrets").mkdir()
        sides = []
        for name in ("n0", "n1", "n2"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "secrets").symlink_to(tmp_path / "secrets")
            each = harness.node(valkey, tmp_path / name, chosen, name, go=False, nodes=lambda: 3)
            sides.append(await stack.enter_async_context(each))
        await asyncio.gather(
            *(sides[0].tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(80))
        )
        for side in sides:
            side.go()
        await eventually(lambda: len(came) == 80, 40)
        # A second's worth at once, and thirty a second from then on; a machine that stalls may have
        # the first arrive late.
        assert came[-1] - came[0] >= 1.0
        assert len([side for side in sides if side.tokens.metrics()["refreshes"]]) == 3


async def test_where_nothing_comes_a_take_waits_ever_longer(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "TAKE_WAIT_MS", 10)
    monkeypatch.setattr(pool_module, "TAKE_WAIT_MS_MAX", 40)
    async with (
        scripted_provider(life_s=3600) as endpoint,
        harness.node(valkey, tmp_path, harness.provider(endpoint.url), go=False) as side,
    ):
        waits, take = [], side.queues.take

        def noted(session: Any, queues: list[str], **options: Any) -> Any:
            if queues[0].startswith("_tokens:p"):
                waits.append(options["wait_ms"])
            return take(session, queues, **options)

        monkeypatch.setattr(side.queues, "take", noted)
        side.go()
        await eventually(lambda: len(waits) >= 5)
        assert waits[:5] == [10, 20, 40, 40, 40]
        await side.tokens.put("p/a", {"refresh_token": "a.0"})
        await in_state(side, "fresh")
        await eventually(lambda: 10 in waits[5:])
