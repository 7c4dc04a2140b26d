"""Who may enter."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from support.inspect import right_users_of
from support.manual_clock import ManualClock
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.config.load import User, hash_generated, hash_secret
from tidewarden.config.secret import check_secret, quick_hash
from tidewarden.errors import WrongPass
from tidewarden.server.access import users as module
from tidewarden.server.access.login_throttle import HELD_BACK_MAX
from tidewarden.server.access.users import Users

ADMIN = User(name="admin", secret_hash=hash_secret("slow:secret"))
READER = User(name="reader", secret_hash=hash_generated("opensesame"))


async def test_the_right_secret_is_remembered() -> None:
    users = Users((ADMIN, READER), SystemClock(), loopback=True)
    assert users.known("admin", "slow:secret") is None
    assert await users.authenticate("admin", "slow:secret", "p") == "admin"
    assert users.known("admin", "slow:secret") == "admin"
    assert users.known("reader", "slow:secret") is None
    assert not users.open


@pytest.mark.parametrize("name", ["", "default"])
async def test_a_secret_alone_is_the_only_users(name: str) -> None:
    users = Users((READER,), SystemClock(), loopback=False)
    assert await users.authenticate(name, "opensesame", "p") == "reader"
    both = Users((ADMIN, READER), SystemClock(), loopback=False)
    with pytest.raises(WrongPass):
        await both.authenticate(name, "opensesame", "p")
    with pytest.raises(WrongPass):
        await users.authenticate("mallory", "opensesame", "p")


@pytest.mark.parametrize(
    ("name", "secret"), [("reader", "other"), ("nobody", "opensesame"), ("admin", "opensesame")]
)
async def test_a_wrong_one_is_slow_counted_and_logged_without_it(
    name: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    users = Users((READER, ADMIN), clock, loopback=True)
    attempt = asyncio.ensure_future(users.authenticate(name, secret, "1.2.3.4:5"))
    with caplog.at_level(logging.WARNING, "tidewarden.server"):
        await eventually(lambda: users.failures_total != 0)
    await asyncio.sleep(0)
    assert not attempt.done()
    await clock.advance(1)
    with pytest.raises(WrongPass):
        await attempt
    assert secret not in caplog.text
    assert all(secret not in str(record.__dict__) for record in caplog.records)


@pytest.mark.parametrize("order", [(ADMIN, READER), (READER, ADMIN)])
@pytest.mark.parametrize("name", ["admin", "reader", "nobody"])
async def test_who_is_a_user_cannot_be_read_off_the_time(
    name: str, order: tuple[User, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: list[str] = []

    def check(secret: str, secret_hash: str) -> bool:
        slow.extend([] if quick_hash(secret_hash) else [secret])
        return False

    monkeypatch.setattr(module, "check_secret", check)
    users = Users(order, SystemClock(), loopback=False)
    with pytest.raises(WrongPass):
        await users.authenticate(name, "guessed", "p")
    assert slow == ["guessed"]


async def test_no_users_on_loopback_lets_everybody_in_as_default() -> None:
    assert Users((), SystemClock(), loopback=True).open
    assert not Users((), SystemClock(), loopback=False).open
    with pytest.raises(WrongPass):
        await Users((), ManualClockThatRuns(), loopback=True).authenticate("a", "b", "p")


class ManualClockThatRuns(ManualClock):
    async def sleep_until(self, until: float) -> None:
        return


async def test_a_hosts_failures_cost_more_and_more_and_nobody_else_anything() -> None:
    clock = ManualClock()
    users = Users((READER, ADMIN), clock, loopback=True)
    for failures, delay in enumerate((1, 2, 4, 8, 16, 20, 20), 1):
        attempt = asyncio.ensure_future(
            users.authenticate("reader", f"wrong{failures}", "1.2.3.4:5")
        )
        while users.failures_total < failures:
            await asyncio.sleep(0.001)
        await clock.advance((delay - 0.5) * module.FAILURE_DELAY_S)
        assert not attempt.done()
        async with asyncio.timeout(20):
            assert (
                await users.authenticate("reader", "opensesame", f"5.6.7.8:{failures}") == "reader"
            )
            right_users_of(users).clear()
            assert (
                await users.authenticate("reader", "opensesame", f"1.2.3.4:{failures}") == "reader"
            )
        right_users_of(users).clear()
        await clock.advance(0.5 * module.FAILURE_DELAY_S)
        with pytest.raises(WrongPass):
            await attempt


async def test_past_a_bound_no_slow_hash_is_checked_for_a_host(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be a proxy's, before everybody."""
    clock = ManualClock()
    monkeypatch.setattr(module, "STRETCH_S", 0.0)
    monkeypatch.setattr(module, "check_secret", lambda *of: quick_hash(of[1]) and check_secret(*of))
    writer = User(name="writer", secret_hash=hash_generated("generated"))
    users = Users((READER, writer, ADMIN), clock, loopback=True)
    await users.authenticate("reader", "opensesame", "1.2.3.4:5")
    attempts = [
        asyncio.ensure_future(users.authenticate("x", "wrong", f"1.2.3.4:{n}")) for n in range(200)
    ]
    async with asyncio.timeout(20):
        await eventually(lambda: users.failures_total >= 200)
        await eventually(lambda: sum(attempt.done() for attempt in attempts) >= 200 - HELD_BACK_MAX)
        # was right before
        assert await users.authenticate("reader", "opensesame", "1.2.3.4:6") == "reader"
        # it cannot be guessed
        assert await users.authenticate("writer", "generated", "1.2.3.4:7") == "writer"
        with pytest.raises(WrongPass, match="Too many logins"):
            await users.authenticate("admin", "slow:secret", "1.2.3.4:8")
    refused = [attempt for attempt in attempts if attempt.done()]
    assert len(refused) == 200 - HELD_BACK_MAX
    with pytest.raises(WrongPass, match="Too many logins from this address have failed"):
        await refused[0]
    await clock.advance(100)
    assert all(
        isinstance(found, WrongPass)
        for found in await asyncio.gather(*attempts, return_exceptions=True)
    )
    assert caplog.text.count("login refused") == 1


async def test_who_is_removed_while_its_secret_is_checked_does_not_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = Users((READER, ADMIN), SystemClock(), loopback=True)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(secret: str, secret_hash: str) -> bool:
        begun.set()
        return go_on.wait(20)

    monkeypatch.setattr(module, "check_secret", slowly)
    attempt = asyncio.ensure_future(users.authenticate("admin", "slow:secret", "1.2.3.4:5"))
    await asyncio.to_thread(begun.wait, 20)
    assert users.reload((READER,)) == ({"admin"}, frozenset())
    go_on.set()
    with pytest.raises(WrongPass):
        await attempt
    assert users.known("admin", "slow:secret") is None
    with pytest.raises(WrongPass):
        users.rights("admin")


async def test_a_generated_secret_waits_behind_no_flood_of_slow_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From ten thousand addresses, say, each of which may have one checked."""
    users = Users((ADMIN, READER), SystemClock(), loopback=True)
    monkeypatch.setattr(module, "STRETCH_S", 0.0)
    go_on = threading.Event()

    def slowly(secret: str, secret_hash: str) -> bool:
        return check_secret(secret, secret_hash) if quick_hash(secret_hash) else not go_on.wait(20)

    monkeypatch.setattr(module, "check_secret", slowly)
    flood = [
        asyncio.ensure_future(users.authenticate("admin", "wrong", f"10.0.0.{n}:5"))
        for n in range(50)
    ]
    await asyncio.sleep(0)
    assert await users.authenticate("reader", "opensesame", "1.2.3.4:5") == "reader"
    assert not any(attempt.done() for attempt in flood)
    go_on.set()
    assert all(
        isinstance(found, WrongPass)
        for found in await asyncio.gather(*flood, return_exceptions=True)
    )


async def test_wrong_passwords_are_stretched_as_a_budget_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is the checks that are counted: each takes 50 ms of a core. A host that has not failed is not
    behind one that has.
    """
    clock = ManualClock()
    users = Users((ADMIN, READER), clock, loopback=False)
    checked: Counter[bool] = Counter()

    def quickly(secret: str, secret_hash: str) -> bool:
        if quick_hash(secret_hash):
            return check_secret(secret, secret_hash)
        checked[secret == "slow:secret"] += 1
        return secret == "slow:secret"

    async def now(function: Any, *args: Any) -> Any:
        return function(*args)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(module, "check_secret", quickly)
    monkeypatch.setattr(loop, "run_in_executor", lambda _, function, *args: now(function, *args))

    async def guess(host: str) -> None:
        while True:
            with suppress(WrongPass):
                await users.authenticate("admin", "guess", f"{host}:5")

    flood = [asyncio.ensure_future(guess(f"10.0.0.{n % 10}")) for n in range(100)]
    for _ in range(600):
        await clock.advance(0.1)
    budget = module.STRETCHING_BURST_S + 60.0 * module.STRETCHING_SHARE
    assert 20 <= checked[False] <= budget / module.STRETCH_S + 1
    for number in range(10):
        login = asyncio.ensure_future(
            users.authenticate("admin", "slow:secret", f"1.2.3.{number}:5")
        )
        right_users_of(users).clear()
        async with asyncio.timeout(10):
            assert await login == "admin"
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_who_was_right_before_is_so_when_users_are_read_anew_and_he_has_not_changed() -> None:
    """He may come from where so many fail that nothing more is checked."""
    users = Users((READER, ADMIN), SystemClock(), loopback=True)
    await users.authenticate("reader", "opensesame", "p")
    users.reload((replace(READER, rights=("take",)), ADMIN))
    assert users.known("reader", "opensesame") == "reader"
    users.reload((ADMIN,))
    assert users.known("reader", "opensesame") is None
    users.reload((READER, ADMIN))
    assert users.known("reader", "opensesame") is None
    users.reload((READER,))
    await users.authenticate("", "opensesame", "p")
    assert users.known("", "opensesame") == "reader"
    users.reload((READER, ADMIN))
    assert users.known("", "opensesame") is None, "a secret alone was the only user's"


async def test_who_was_right_before_is_forgotten_with_his_secret() -> None:
    users = Users((READER, ADMIN), SystemClock(), loopback=True)
    await users.authenticate("reader", "opensesame", "p")
    other = replace(ADMIN, rights=("put",))
    assert users.reload((replace(READER, secret_hash=hash_generated("fresh")), other)) == (
        {"reader"},
        {"admin"},
    )
    assert users.known("reader", "opensesame") is None
    assert users.rights("admin").allow("put", "q")
    assert not users.rights("admin").whole
