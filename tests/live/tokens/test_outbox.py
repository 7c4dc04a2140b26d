"""What becomes of accounts is told, whoever is killed between the change and the telling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster.nursery import begin
from support.inspect import accounts_of, companion_workers_of, do_task, outbox_of
from support.providers.scripted_provider import answers, scripted_provider
from support.tokens import harness
from support.tokens.dying_node import FAILING, play

from tidewarden.config.load import Companion
from tidewarden.tokens.events.events import START


async def killed(where: str, store: Any, folder: Path, url: str) -> None:
    """A node that refreshes until it kills itself there."""
    child = begin(play, where, store.path, folder, url)
    await asyncio.to_thread(child.join, 40)
    assert child.exitcode == -9


async def told(side: harness.Side, count: int) -> list[Any]:
    async def enough() -> list[Any]:
        found = [event for _, event in await side.tokens.events.after(START)]
        return found if len(found) >= count else []

    found: list[Any] = await harness.eventually(enough)
    return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Of two nodes, which share the vault's key."""
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "secrets").mkdir(parents=True)
    two.mkdir()
    (two / "secrets").symlink_to(one / "secrets")
    return one, two


async def test_a_death_is_told_by_another_when_its_node_is_killed(
    valkey: Any, folders: tuple[Path, Path]
) -> None:
    companions = {"contacts": Companion("contacts", ("p",), "contacts.sync", 3600, "x")}
    async with scripted_provider() as endpoint:
        chosen, sections = harness.provider(endpoint.url), {"companions": companions}
        async with harness.node(valkey, folders[0], chosen, go=False, sections=sections) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.5"})
            await do_task(companion_workers_of(side.tokens)["contacts"], "p/a", True)
            await killed("before_it_tells", valkey, folders[1], endpoint.url)
            assert (await side.tokens.stats())["p"]["dead"] == 1
            assert await side.tokens.events.after(START) == []
            side.go()
            (event,) = await told(side, 1)
            assert (event.type, event.data["account"]) == ("account.dead", "p/a")
            assert event.data["error"] == "invalid_grant"
            assert event.data["tries"] >= 3

            async def dropped() -> bool:
                return (await side.queues.admin.stats("contacts.sync"))["total"] == 0

            await harness.eventually(dropped)
            # A new grant that lives is its end; both are counted where they were told.
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "x", "expires_in": 3600}
            )
            _, last = await told(side, 2)
            assert (last.type, last.data["error"]) == ("account.recovered", "invalid_grant")
            await harness.eventually(lambda: len(side.tokens.metrics()["events"]) == 2)
            assert set(side.tokens.metrics()["events"].values()) == {1}


async def test_what_is_told_late_takes_no_work_from_an_account_that_has_recovered(
    valkey: Any, folders: tuple[Path, Path]
) -> None:
    companions = {"contacts": Companion("contacts", ("p",), "contacts.sync", 3600, "x")}
    async with scripted_provider() as endpoint:
        chosen, sections = harness.provider(endpoint.url), {"companions": companions}
        async with harness.node(valkey, folders[0], chosen, go=False, sections=sections) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.5"})
            await killed("before_it_tells", valkey, folders[1], endpoint.url)
            await side.tokens.put(
                "p/a", {"refresh_token": "a.0", "access_token": "x", "expires_in": 3600}
            )
            side.go()
            assert [event.type for event in await told(side, 2)] == [
                "account.dead",
                "account.recovered",
            ]

            async def there() -> bool:
                return (await side.queues.admin.stats("contacts.sync"))["total"] == 1

            await harness.eventually(there)


async def test_killed_after_it_told_it_is_told_again_under_the_same_id(
    valkey: Any, folders: tuple[Path, Path]
) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, folders[0], chosen, go=False) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.5"})
            await killed("before_it_says_that_it_told", valkey, folders[1], endpoint.url)
            (first,) = await told(side, 1)
            side.go()
            async with asyncio.timeout(30):
                while len(found := await told(side, 1)) < 2:  # its claim ends first
                    outbox_of(side.tokens).look("p", "a")
                    await asyncio.sleep(0.1)
            assert {(event.type, event.id) for event in found} == {("account.dead", first.id)}


async def test_a_pair_from_a_journal_is_told_as_any_recovery(
    valkey: Any, folders: tuple[Path, Path]
) -> None:
    async with scripted_provider() as endpoint:
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, folders[0], chosen, go=False, sections=FAILING) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            endpoint.faults.append(answers(503, {}))
            await killed("before_it_stores", valkey, folders[1], endpoint.url)
            assert (await side.tokens.stats())["p"]["failing"] == 1
        # The killed node starts again on its journal.
        async with harness.node(valkey, folders[1], chosen, "n1", 2, go=False) as side:
            assert side.tokens.metrics()["replayed"] == 1
            side.go()
            found = await told(side, 2)
            assert [event.type for event in found] == ["account.failing", "account.recovered"]
            assert found[1].data["error"] == "unavailable"
            assert (await side.tokens.get("p/a")).access_token == "secret-access-a-1"
    assert endpoint.requests == {"a.0": 2}


async def test_accounts_that_fail_alike_are_told_of_while_they_are_too_few_to_be_held(
    valkey: Any, tmp_path: Path
) -> None:
    names = {f"p/a{number}" for number in range(6)}
    async with scripted_provider() as endpoint:
        endpoint.faults.extend([answers(503, {})] * 200)
        chosen = harness.provider(endpoint.url)
        async with harness.node(valkey, tmp_path, chosen, sections=FAILING) as side:
            for name in names:
                await side.tokens.put(name, {"refresh_token": f"{name[2:]}.0"})
            found = await told(side, len(names))
            assert {(event.type, event.data["account"]) for event in found} == {
                ("account.failing", name) for name in names
            }
            endpoint.faults.clear()
            found = await told(side, 2 * len(names))
            assert [event.type for event in found[len(names) :]] == ["account.recovered"] * 6


async def test_what_cannot_be_read_is_dropped_and_holds_up_nothing(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        outbox, entries = (
            outbox_of(side.tokens),
            [
                b"half an entry",
                b"e\naccount.dead\nsoon\na\n",
                b"e\naccount.dead\n5\na\n\xff",
                b"e\nprovider.answers\n5\n\nn0",
            ],
        )

        async def tell(
            _queue: str, _shard: int, _most: int, _claim_ms: int, told: Any = ()
        ) -> list[bytes]:
            entries[:] = [entry for entry in entries if entry not in told]
            return list(entries)

        outbox._accounts = SimpleNamespace(tell=tell, get=accounts_of(side.tokens).get)
        outbox.look("p")
        await outbox.tell_all()
        assert not entries
        told = [event.type for _, event in await side.tokens.events.after(START)]
        # Why it died nobody can read: that it did is told.
        assert told == ["account.dead", "provider.answers"]
    assert caplog.text.count("cannot be read, and is dropped") == 2
