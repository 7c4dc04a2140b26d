"""
What every process of a node has: what it does when the store that is connected may be another.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.inspect import comparing_of

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import ConfigError, Error, Full, StoreDown
from tidewarden.node import subscriber as module
from tidewarden.node.process_parts import ProcessParts
from tidewarden.node.store_links import check_store_url
from tidewarden.node.subscriber import heard_error
from tidewarden.store.reply_errors import StoreRefused


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> ProcessParts:
    """A process whose subscriber is connected; what becomes of a comparison is the test's to say."""
    monkeypatch.setattr(module, "COMPARE_S", 0.01)
    connection = SimpleNamespace(up=True, call=subscribed)
    links: Any = SimpleNamespace(
        registered="n0", scripts=None, topology=None, wait_s=1, subscriber=lambda *_: connection
    )
    commits = SimpleNamespace(ask_embedded=subscribed)
    queues: Any = SimpleNamespace(
        wakeups=SimpleNamespace(wake_all=lambda: None),
        catalog=SimpleNamespace(holder="n0.1", lease_clock=None, durability=commits),
    )
    control: Any = SimpleNamespace(clustered=False)
    data: Any = object()
    return ProcessParts(
        load(None, {}, {}),
        SystemClock(),
        links,
        data,
        control,
        queues,
        look_again=lambda: queues.wakeups.wake_all(),
        compare=whole,
    )


async def whole() -> bool:
    return True


async def subscribed(*_: object) -> list[object]:
    return [b"subscribe", b"c", 1]


async def compared(one: ProcessParts) -> None:
    async with asyncio.timeout(30):
        while comparing_of(one.subscriber) is not None:
            await asyncio.sleep(0.005)


async def test_how_a_store_syncs_is_asked_before_the_queues_are_recalled(one: Any) -> None:
    """
    For what they have to wait for follows from it; asked behind it, they would go on as before.
    """
    done: list[str] = []

    async def ask(data: object) -> None:
        assert data is one.data
        done.append("asked")

    async def recall() -> None:
        done.append("recalled")

    one.queues.catalog.durability.ask_embedded, one.queues.catalog.recall = ask, recall
    one.subscriber.missed()
    await compared(one)
    assert done == ["asked", "recalled"]


async def test_a_server_that_takes_over_while_the_last_one_is_compared_is_compared_too(
    one: Any,
) -> None:
    looks = 0

    async def recall() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            one.subscriber.missed()

    one.queues.catalog.recall = recall
    one.subscriber.missed()
    await compared(one)
    assert looks == 2


@pytest.mark.parametrize("error", [StoreDown("away"), Full("the store's memory is full")])
async def test_a_comparison_that_was_refused_is_made_again(
    one: Any, error: Error, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Error | None] = [error, error, None]

    async def recall() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    one.queues.catalog.recall = recall
    one.subscriber.missed()
    await compared(one)
    assert outcomes == []
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == (0 if isinstance(error, StoreDown) else 1)


async def test_a_subscriber_that_was_refused_subscribes_again(one: Any) -> None:
    """
    While another's script runs, say (BUSY): the connection stays, and would never hear anything.
    """
    asked: list[tuple[object, ...]] = []
    woken = 0

    async def refused_once(*words: object) -> None:
        asked.append(words)
        if len(asked) == 1:
            raise StoreRefused("the store refuses: BUSY")

    def wake_all() -> None:
        nonlocal woken
        woken += 1

    async def recall() -> None:
        assert len(asked) == 2, "what is not heard is not compared yet"

    one.subscriber.connection.call, one.queues.wakeups.wake_all, one.queues.catalog.recall = (
        refused_once,
        wake_all,
        recall,
    )
    hears: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hears.set_exception(StoreRefused("the store refuses: BUSY"))
    one.subscriber._resubscribed(hears)
    await compared(one)
    assert asked == [("SUBSCRIBE", "{tidewarden}:queues", "{tidewarden}:wake:n0.1")] * 2
    assert woken == 2, "when it began, and when it was heard again"


async def test_a_defect_is_said_and_a_store_that_is_away_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for error in (StoreDown("away"), ValueError("a defect")):
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        heard_error(future)
    assert [record.levelname for record in caplog.records if record.levelno > 10] == ["ERROR"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?foo=1",
        "rediss+sentinel://h/main?ssl_ca_certs=/no/ca.pem",
        "redis+cluster://h?ssl_keyfile=/k",
        "http://h",
    ],
)
def test_a_url_that_leads_nowhere_is_a_fault_of_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^store\.url: the store URL"):
        check_store_url(url)
    for good in (
        "embedded",
        "redis://h:1/2",
        "redis+cluster://h",
        "rediss+sentinel://h/main?ssl_ca_certs=/dev/null",
    ):
        check_store_url(good)
