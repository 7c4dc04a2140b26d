"""What failed logins cost."""

from __future__ import annotations

import pytest
from support.manual_clock import ManualClock

from tidewarden.config.addresses import client_network
from tidewarden.log import OncePer
from tidewarden.server.access.login_throttle import (
    FACTOR_MAX,
    FORGET_S,
    HELD_BACK_MAX,
    HOSTS_MAX,
    SAID_S,
    TRIED_MAX,
    LoginThrottle,
    ThrottledHost,
)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("1.2.3.4:5", "1.2.3.4"),
        ("::1:5", "::1"),
        ("2001:db8:1:2:3:4:5:6:7000", "2001:db8:1:2::/64"),
        ("::ffff:1.2.3.4:5", "1.2.3.4"),
        ("fe80::1%eth0:5", "fe80::/64"),
        ("local", "local"),
    ],
)
def test_a_host_is_an_address_or_a_network(address: str, host: str) -> None:
    assert client_network(address) == host


def test_each_failure_costs_twice_as_much_up_to_a_bound() -> None:
    host = ThrottledHost(OncePer(ManualClock(), SAID_S))
    delays = [host.fail(0.0, b"%d" % number) for number in range(107)]
    assert delays == [1, 2, 4, 8, 16, *[FACTOR_MAX] * 102]


def test_the_same_secret_again_costs_no_more_than_the_first() -> None:
    """A client that repeats a refused login ten times by itself hears so within seconds."""
    host = ThrottledHost(OncePer(ManualClock(), SAID_S))
    assert [host.fail(0.0, b"a") for _ in range(10)] == [1] * 10
    assert [host.fail(0.0, one) for one in (b"b", b"a", b"b", b"c", b"a")] == [2, 1, 1, 4, 1]
    for number in range(TRIED_MAX):
        host.fail(0.0, b"%d" % number)
    assert host.fail(0.0, b"a") == FACTOR_MAX
    assert len(host.tried) == TRIED_MAX


def test_who_fails_no_more_begins_anew() -> None:
    host = ThrottledHost(OncePer(ManualClock(), SAID_S))
    times = ((0.0, b"a"), (FORGET_S, b"b"), (3 * FORGET_S, b"c"))
    assert [host.fail(*one) for one in times] == [1, 2, 1]


async def test_it_is_said_once_a_second() -> None:
    clock, said = ManualClock(), []
    host = LoginThrottle(clock).of("1.2.3.4:5")
    for pause_s in (0.0, 0.5, 0.5, 0.9, 0.6):
        await clock.advance(pause_s)
        said.append(host.logged.passes())
    assert said == [True, False, True, False, True]


def test_a_host_is_crowded_by_answers_held_back() -> None:
    host = ThrottledHost(OncePer(ManualClock(), SAID_S))
    assert not host.crowded
    host.held_back = HELD_BACK_MAX
    assert host.crowded


def test_connections_of_a_host_are_one_and_hosts_are_bounded() -> None:
    penalties = LoginThrottle(ManualClock())
    first = penalties.of("1.2.3.4:5")
    assert penalties.of("1.2.3.4:6") is first
    for number in range(HOSTS_MAX + 10):
        penalties.of(f"h{number}:1")
    assert len(penalties) == HOSTS_MAX
    assert penalties.of("1.2.3.4:5") is not first
