"""
Bounds how many leases a connection holds by itself.

It forgets ended leases only when the store says that they ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidewarden.errors import Error, Full
from tidewarden.queue.shards.shard import Shard

from . import session as sessions
from .session import Held, Session

LOOK_S = 1.0  # a connection that holds as much as it may has its leases looked at so often,
LOOK_SHARE = 10  # or when it has taken a tenth of that since


class HoldLimit:
    """
    Makes room for a take of a connection that holds ``session.HELD_MAX`` tasks.

    What a connection knows of its leases may be too little: another one can renew them, or end
    them. A lease that is forgotten while it runs would be released as a stray, and stay behind when
    its connection closes; so the store is asked.
    """

    def __init__(self, shard_of: Callable[[str, str], Shard | None]) -> None:
        """Find the shard of a queue's task by ``shard_of``; None: the queue was dropped."""
        self._shard_of = shard_of
        self._loop = asyncio.get_running_loop()

    async def make_room(self, session: Session) -> None:
        """
        Forget leases that are over.

        Raises: Full: as many as one connection may hold run on; StoreDown.
        """
        if session.looking is None and self._pays(session):
            session.looking = self._loop.create_task(self._look(session))
            session.looking.add_done_callback(lambda _: setattr(session, "looking", None))
        if session.looking is not None:
            await asyncio.shield(session.looking)
        if not session.is_full:
            return
        held, most = len(session.held), sessions.HELD_MAX
        if session.own:
            raise Full(
                f"{session.user} holds {held} tasks that were taken at this node and belong to no"
                f" connection, and {most} are the limit; acknowledge or release some, or take under"
                " a session"
            )
        raise Full(
            f"this connection holds {held} tasks by itself, and {most} are the limit; acknowledge"
            " or release some, or take through another connection"
        )

    def _pays(self, session: Session) -> bool:
        """
        Return whether a look may find ended leases.

        A consumer that is refused and asks again costs the store one look a second.
        """
        taken = len(session.held) - session.ran
        return (
            taken >= sessions.HELD_MAX // LOOK_SHARE
            or self._loop.time() >= session.looked_at + LOOK_S
        )

    async def _look(self, session: Session) -> None:
        """Ask the store when each lease ends; one that it does not answer for is kept."""
        entries: list[tuple[tuple[str, str], Held]] = []
        asked = []
        for place, entry in list(session.held.items()):
            if (shard := self._shard_of(*place)) is None:
                del session.held[place]
            else:
                entries.append((place, entry))
                asked.append(shard.batched("queue.leases", place[1], entry[0]))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for (place, entry), end_ms in zip(entries, answers, strict=True):
            if isinstance(end_ms, Error) or session.held.get(place) != entry:
                continue  # unknown, or renewed, ended or taken anew meanwhile
            if isinstance(end_ms, BaseException):
                raise end_ms
            if end_ms:
                session.held[place] = (entry[0], end_ms, entry[2])
            else:
                del session.held[place]
        session.ran, session.looked_at = len(session.held), self._loop.time()
