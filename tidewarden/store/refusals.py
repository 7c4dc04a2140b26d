"""What an error reply of the store means to our callers."""

from __future__ import annotations

from tidewarden.errors import Error, Full, StoreDown, from_wire

# The store's own words for "not now", which a caller should read as such.
AWAY = ("BUSY", "READONLY", "NOREPLICAS", "UNBLOCKED", "MISCONF", "NOAUTH", "WRONGPASS")
# Likewise, but a server that may answer them has executed nothing, and may take the same call in a moment, or another server now.
NOT_RUN = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN")
IN_SCRIPT = "ERR Error running script"  # how a server before 7.0 wraps what a command of a script met with


class NotRun(StoreDown):
    """The server has executed nothing. ``word`` says why; with MOVED and ASK, ``slot`` and ``place`` (host:port) say where to."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the store refuses: {message}")
        self.word, *rest = message.split()
        self.slot = -1
        self.place = ""
        if self.word in ("MOVED", "ASK") and len(rest) >= 2 and rest[0].isdecimal():
            self.slot, self.place = int(rest[0]), rest[1]


def takes_no_writes(message: str) -> bool:
    """Whether the server refused because it is a replica: it was demoted while we were connected."""
    return message.startswith("READONLY") or (message.startswith(IN_SCRIPT) and ": -READONLY " in message)


def known_already(error: BaseException) -> bool:
    """Whether a FUNCTION LOAD was refused because another node had loaded the same library before."""
    return isinstance(error, Error) and "already exists" in str(error)


def error_of(message: str) -> Error:
    """What an error reply of the store means to our callers."""
    word = message.partition(" ")[0]
    if word == "OOM":
        return Full("the store's memory is full; take and acknowledge tasks, or raise its maxmemory")
    if word in NOT_RUN:
        return NotRun(message)
    if word in AWAY or takes_no_writes(message):
        return StoreDown(f"the store refuses: {message}")
    return from_wire(message)
