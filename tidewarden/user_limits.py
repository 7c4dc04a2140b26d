"""
Limits what one user may have of what all users of a node share: connections, waits, streams, names.

Every door asks the same object. A user may have a part of what there is (``limits.user_share``),
and never more than that part bears to what is still free: so who comes later finds room, whatever
others have taken, and a user who is alone has nearly everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tidewarden.config.settings import Config
from tidewarden.errors import BadArg, Full

THOUSAND = 1000
HTTP_WAITS_SHARE = 0.75
"""Of the HTTP door's connections, that may wait."""
TAPS_MAX = 4

ACTING: ContextVar[str] = ContextVar("acting_user", default="")
"""For whom the present task works; empty: for the node itself, or where there are no users."""


class SharedLimit:
    """
    Counts one kind of thing by user.

    Args:
        limits: knows what part one user may have.
        what: the things, in the plural, with what they do.
        whole: how many there may be at this node.
        setting: that sets it; empty: none does.
        otherwise: what to do instead, a sentence.
    """

    __slots__ = (
        "_limits",
        "_otherwise",
        "_setting",
        "_what",
        "by_user",
        "refused_total",
        "used",
        "whole",
    )

    def __init__(
        self, limits: UserLimits, what: str, whole: int, setting: str, otherwise: str = ""
    ) -> None:
        self._limits = limits
        self._what = what
        self._setting = setting
        self._otherwise = otherwise or "Try another node."
        self.whole = whole
        self.used = 0
        self.by_user: dict[str, int] = {}
        self.refused_total = 0

    def has_room(self, user: str, many: int = 1) -> bool:
        """Return whether the user may have so many more."""
        used, whole, share = self.used + many - 1, self.whole, self._limits.share
        if used >= whole:
            return False
        mine = self.by_user.get(user, 0) + many - 1
        if not mine or share >= THOUSAND or not user:
            return True
        return mine < most_of_user(whole, share) and mine * (THOUSAND - share) < share * (
            whole - used
        )

    def check(self, user: str, many: int = 1) -> None:
        """
        Refuse what there is no room for.

        Raises: Full: there are as many as may be, or this user has its share of them. BadArg: so
        many at once there can never be.
        """
        if self.has_room(user, many):
            return
        self.refused_total += 1
        setting = f" ({self._setting})" if self._setting else ""
        if many > self.whole:
            raise BadArg(
                f"{many:,} {self._what} at once are more than this node may have,"
                f" {self.whole:,}{setting}: ask for fewer at a time."
            )
        if self.used + many > self.whole:
            raise Full(
                f"This node has {self.used:,} {self._what}, as many as it may{setting}."
                f" {self._otherwise}"
            )
        raise Full(
            f"The user {user} has {self.by_user.get(user, 0):,} {self._what} at this node, where"
            f" {self.whole - self.used:,} of {self.whole:,}{setting} are free: the rest is for"
            f" others (limits.user_share). {self._otherwise}"
        )

    def add(self, user: str, many: int = 1) -> None:
        """Count so many more for the user, whether there is room or not."""
        self.used += many
        self.by_user[user] = self.by_user.get(user, 0) + many

    def take(self, user: str) -> None:
        """Give the user one more. Raises: Full."""
        self.check(user)
        self.add(user)

    def give_back(self, user: str, many: int = 1) -> None:
        """Count so many less for the user."""
        left = self.by_user[user] - many
        self.used -= many
        if left:
            self.by_user[user] = left
        else:
            del self.by_user[user]

    @contextmanager
    def held(self, user: str, many: int = 1) -> Iterator[None]:
        """Count so many more for the user within the block. Raises: Full."""
        self.check(user, many)
        self.add(user, many)
        try:
            yield
        finally:
            self.give_back(user, many)


class UserLimits:
    """
    Holds the limits of one process, which all of its doors ask.

    ``share`` is the part that one user may have, in thousandths; all where there is one user alone.
    What lies in the store (names of queues and topics, schedules, providers) is counted there, by
    the same rule: ``queue/lua/shared/shares.lua``.
    """

    def __init__(self, config: Config) -> None:
        limits = config.limits
        self._share = round(limits.user_share * THOUSAND)
        self.share = THOUSAND
        self.follow([user.name for user in config.users])
        self.connections = SharedLimit(
            self, "RESP connections", limits.connections_max, "limits.connections_max"
        )
        self.waits = SharedLimit(
            self,
            "requests that wait",
            limits.waiting_max,
            "limits.waiting_max",
            "Ask without waiting, or try another node.",
        )
        setting = "limits.http_connections_max"
        http = limits.http_connections_max
        self.http_connections = SharedLimit(self, "HTTP connections", http, setting)
        self.http_waits = SharedLimit(
            self,
            "HTTP requests that wait or stream",
            1,
            f"three quarters of {setting}",
            "Ask without waiting, or try another node.",
        )
        self.bound_http(http)
        self.streams = SharedLimit(
            self, "streams of events", limits.streams_max, "limits.streams_max"
        )
        self.taps = SharedLimit(self, "taps", TAPS_MAX, "", "Wait for one to end.")
        self.sessions = SharedLimit(
            self,
            "sessions",
            limits.sessions_max,
            "limits.sessions_max",
            "Name one of them again, end one, or ask for a shorter grace.",
        )
        self.beanstalkd_connections = SharedLimit(
            self,
            "beanstalkd connections",
            config.beanstalkd.connections_max,
            "beanstalkd.connections_max",
        )

    def follow(self, users: Collection[str]) -> None:
        """Note the users there are: one who is alone leaves nothing for others."""
        self.share = self._share if len(users) > 1 else THOUSAND

    def bound_http(self, connections_max: int) -> None:
        """Bound the HTTP door's connections, perhaps to fewer than the settings say."""
        self.http_connections.whole = connections_max
        self.http_waits.whole = max(1, int(connections_max * HTTP_WAITS_SHARE))


def most_of_user(whole: int, share: int) -> int:
    """Return how many of ``whole`` one user may have at most; ``share`` is in thousandths."""
    return max(1, whole * share // THOUSAND)
