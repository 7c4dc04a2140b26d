"""The value of a login's cookie, and whom it is good for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.doors.doubles import ADMIN, SECRET
from support.manual_clock import ManualClock

from tidewarden.config.load import User, hash_generated
from tidewarden.errors import NoAuth
from tidewarden.server.access.users import Users
from tidewarden.server.console.login_cookie import LOGIN_S, LoginCookies, login_key

ODD = User(name="ä.b c", secret_hash=hash_generated(SECRET))


def logins(
    *users: User, clock: ManualClock | None = None, key: str = "a cluster's"
) -> LoginCookies:
    made = clock or ManualClock()
    return LoginCookies(login_key(key), Users(users, made, loopback=True), made)


@pytest.mark.parametrize("user", [ADMIN, ODD])
def test_it_is_good_at_every_node_of_the_cluster(user: User) -> None:
    value = logins(user).issue(user.name)
    assert logins(user).login_of(value).user == user.name
    with pytest.raises(NoAuth):
        logins(user, key="another cluster's").login_of(value)


async def test_it_ends_by_its_time() -> None:
    clock = ManualClock()
    subject = logins(ADMIN, clock=clock)
    value = subject.issue("admin")
    await clock.advance(LOGIN_S - 2)
    assert subject.login_of(value).user == "admin"
    await clock.advance(3)
    with pytest.raises(NoAuth, match="Log in again"):
        subject.login_of(value)


def test_another_secret_ends_it() -> None:
    value = logins(ADMIN).issue("admin")
    for users in ((replace(ADMIN, secret_hash=hash_generated("another")),), (ODD,), ()):
        with pytest.raises(NoAuth):
            logins(*users).login_of(value)


def test_no_part_of_it_can_be_another() -> None:
    subject = logins(ADMIN, ODD)
    name, number, ends, mac = subject.issue("admin").split(".")
    other = subject.issue(ODD.name).split(".")[0]
    for value in (
        "",
        "..",
        name,
        f"{other}.{number}.{ends}.{mac}",
        f"{name}..{ends}.{mac}",
        f"{name}.{number[:-1]}.{ends}.{mac}",
        f"{name}.{number}{ends[0]}.{ends[1:]}.{mac}",
        f"{name}.{number}.{int(ends) + 1}.{mac}",
        f"{name}.{number}.{ends}.{mac[:-2]}",
        f"{name}.{number}.{ends}.",
        f"{name}.{number}.{ends}",
        f"{name}.{ends}.{mac}",
        f"{name}.{number}.-1.{mac}",
        f"{name}.{number}.{ends}.{mac}".replace(".", "ä"),
        f"{name}.{number}.²{ends}.{mac}",
        f"%.{number}.{ends}.{mac}",
        f"{name}.{number}.{'9' * 5000}.{mac}",
    ):
        with pytest.raises(NoAuth):
            subject.login_of(value)
