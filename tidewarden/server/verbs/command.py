"""
Declares a verb for the door: a name, a handler, and who may use it.

No business logic lives on this side.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidewarden.errors import BadArg
from tidewarden.server.access.required_rights import Level, Permission
from tidewarden.server.audit.audited import Audited
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending, Slot

ANY = 1 << 30
"""The most arguments of a verb: as many as a request may have."""


TOGETHER_MAX = 256
TOGETHER_LONG_MAX = 32

# What a verb is for, as its usage calls it, where that stands first or last.
FIRST = {"queue", "topic", "name", "provider", "provider/account"}
LAST = {"queue", "provider", "provider/account"}

Caller = TypeVar("Caller")
Outcome = bytes | Pending | Slot


@dataclass(frozen=True, slots=True, eq=False)
class Command(Generic[Caller]):
    """
    Declares a verb.

    Args:
        name: in upper case.
        handler: gets its caller, a connection; parses, calls one method, says how to render.
        least: fewest arguments, the verb's own name included.
        most: most of them.
        permission: what its caller needs.
        usage: its arguments, for error messages and COMMAND DOCS.
        group: of verbs that one list shows together.
        immediate: acts at once inside MULTI, too.
        together: so many of one connection may be under way at a time. What is under way is all
            read from the store, whether the peer reads it or not, so it is less for what may answer
            with payloads.
        together_long: likewise while the connection's last replies were long, or there were none
            yet.
        audited: what the audit log shows of its requests; None: they are not noted, or the handler
            does that.
    """

    name: str
    handler: Callable[[Caller, Request], Outcome]
    least: int
    most: int
    permission: Permission
    usage: str = ""
    group: str = "connection"
    immediate: bool = False
    together: int = TOGETHER_MAX
    together_long: int = TOGETHER_MAX
    audited: Audited | None = None
    level: Level = field(init=False)  # the permission's, looked at for each request
    # where among the arguments the name of what it is for stands, the last of several; 0: nowhere
    subject: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", self.permission.level)
        words = re.findall(r"[\w/]+", self.usage) or [""]
        object.__setattr__(
            self, "subject", 1 if words[0] in FIRST else -1 if words[-1] in LAST else 0
        )

    def misused(self, request: Request) -> BadArg:
        """Make the error for a number of arguments that cannot be right."""
        return BadArg(
            f"{self.name} has {len(request) - 1} arguments here; its form is: {self.name}"
            f" {self.usage}".rstrip()
        )


@functools.lru_cache(maxsize=1024)
def meant(unknown: str, known: tuple[str, ...]) -> str:
    """
    Return ``; did you mean Q.PUT?`` for a misspelt verb, or nothing.

    Verbs of Redis have no dot.

    It takes a quarter of a millisecond, so strangers are not told, and a client that goes wrong in
    a loop asks once.
    """
    found = difflib.get_close_matches(unknown.upper(), known, 1, 0.7) if "." in unknown else []
    return f"; did you mean {found[0]}?" if found else ""
