"""Who is at the other end of a connection, and what it may use."""

from __future__ import annotations

from tidewarden.errors import NoAuth

from .verbs import Command, Needs

# What a command may need of a peer that was not let in, of one that was, of one with a name.
STRANGER: tuple[Needs, ...] = ("nothing",)
GUEST: tuple[Needs, ...] = ("entry", "nothing")
FRIEND: tuple[Needs, ...] = ("entry", "user", "nothing")


class Peer:
    """
    One end of a connection.

    Args:
        address: for logs and CLIENT LIST.
        since: when it came, in seconds of the monotonic clock.
        let_in: whether the door is open to those who have not said who they are.
    """

    __slots__ = ("_let_in", "address", "agent", "may", "name", "since", "user")

    def __init__(self, address: str, since: float, *, let_in: bool) -> None:
        self.address = address
        self.since = since
        self._let_in = let_in
        self.name = ""  # CLIENT SETNAME
        self.agent: dict[str, str] = {}  # CLIENT SETINFO
        self.user: str | None = None  # the named user; None: nobody, or the default one where the door is open
        self.leave()

    def enter(self, user: str) -> None:
        """It has said who it is."""
        self.user = user
        self.may = FRIEND

    def leave(self) -> None:
        """It is nobody, as at first and after RESET."""
        self.user = None
        self.may = GUEST if self._let_in else STRANGER

    def kept_out(self, command: Command) -> NoAuth:
        """Why it may not use ``command``."""
        if self.may is GUEST:
            return NoAuth(f"{command.name} needs a named user: send AUTH user secret.")
        return NoAuth("Authentication required: send AUTH user secret.")
