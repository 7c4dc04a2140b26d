"""Who may enter."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tidewarden.clock import ManualClock, SystemClock
from tidewarden.config import User, hash_generated, hash_secret
from tidewarden.errors import WrongPass
from tidewarden.server import users as module
from tidewarden.server.users import Users

ADMIN = User(name="admin", secret_hash=hash_secret("slow:secret"))
READER = User(name="reader", secret_hash=hash_generated("quick"))


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret costs its sender a quarter of a second; tests send many."""
    monkeypatch.setattr(module, "FAILURE_DELAY_S", 0.01)


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
    assert await users.authenticate(name, "quick", "p") == "reader"
    both = Users((ADMIN, READER), SystemClock(), loopback=False)
    with pytest.raises(WrongPass):
        await both.authenticate(name, "quick", "p")


@pytest.mark.parametrize(("name", "secret"), [("reader", "other"), ("nobody", "quick"), ("admin", "quick")])
async def test_a_wrong_one_is_slow_counted_and_logged_without_it(
    name: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    users = Users((READER, ADMIN), clock, loopback=True)
    attempt = asyncio.ensure_future(users.authenticate(name, secret, "1.2.3.4:5"))
    with caplog.at_level(logging.WARNING, "tidewarden.server"):
        while users.failures_total == 0:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    assert not attempt.done()
    await clock.advance(1)
    with pytest.raises(WrongPass):
        await attempt
    assert secret not in caplog.text
    assert all(secret not in str(record.__dict__) for record in caplog.records)


async def test_no_users_on_loopback_lets_everybody_in_as_default() -> None:
    assert Users((), SystemClock(), loopback=True).open
    assert not Users((), SystemClock(), loopback=False).open
    with pytest.raises(WrongPass):
        await Users((), ManualClockThatRuns(), loopback=True).authenticate("a", "b", "p")


class ManualClockThatRuns(ManualClock):
    async def sleep_until(self, until: float) -> None:
        return
