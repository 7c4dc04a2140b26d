"""
Keeps the sessions of callers that have no connection of their own, such as HTTP requests.

A lease that such a caller takes ends by its time alone, or with the shared session that the caller
names. Leases without a session stand under a uuid that this process made for the user, which no
record names: nothing ends with it, and the death of the node changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from tidewarden.errors import BadArg
from tidewarden.queue.background import BackgroundTasks
from tidewarden.queue.task import UNBOUND_VERSION, check_range
from tidewarden.store.reply_sink import ignore_errors

from .session import Session
from .sessions import GRACE_MAX_MS, GRACE_MS, Sessions

# How long this node stays in a session after the last request that named it: a consumer of many
# requests joins once.
LINGER_S = 1.0
GRACE_MIN_MS = 1000  # less would end a session between two requests


class _Attachment:
    """Holds this node's part in a session that requests name."""

    __slots__ = ("joining", "leaving", "requests", "session")

    def __init__(self, session: Session, joining: asyncio.Task[str]) -> None:
        self.session = session
        self.joining = joining
        self.requests = 0
        self.leaving: asyncio.TimerHandle | None = None

    @property
    def failed(self) -> bool:
        """Return whether the session has ended, or could not be joined."""
        if self.joining.done() and (self.joining.cancelled() or self.joining.exception()):
            return True
        return self.session.shared is not None and self.session.shared.lost


class UnboundSessions:
    """Finds the session of a request: its user's of no connection, or the one that it names."""

    def __init__(self, sessions: Sessions, background: BackgroundTasks) -> None:
        self._sessions = sessions
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._own: dict[str, Session] = {}
        self._named: dict[tuple[str, str], _Attachment] = {}

    def of(self, user: str) -> Session:
        """Return the session of the user's leases that end by their time alone."""
        session = self._own.get(user)
        if session is None:
            digits = uuid4().hex
            own = f"{digits[:12]}{UNBOUND_VERSION}{digits[13:]}"
            session = self._own[user] = Session(user, own)
            self._sessions.open_ones.add(session)
        return session

    async def make(self, user: str, grace_ms: int = GRACE_MS) -> str:
        """
        Make a session and return its uuid; its grace runs from about now on.

        Raises: BadArg, Full, StoreDown, Stale.
        """
        check_range(grace_ms, "grace_ms", GRACE_MIN_MS, GRACE_MAX_MS)
        session = self._sessions.open(user)
        try:
            return await self._sessions.join(session, user, "", grace_ms)
        finally:
            await self._sessions.close(session)

    async def end(self, user: str, uuid: str) -> None:
        """
        End a session now; its tasks are ready again.

        A session with requests under way ends with them. Raises: NotFound, StoreDown.
        """
        async with self.named(user, uuid) as session:
            await self._sessions.join(session, user, uuid, 0)
        place = (user, UUID(uuid).hex)
        attachment = self._named.get(place)
        if attachment is not None and not attachment.requests:
            if attachment.leaving is not None:
                attachment.leaving.cancel()
            del self._named[place]
            await self._sessions.close(attachment.session)

    async def renew(self, user: str, uuid: str, grace_ms: int) -> None:
        """Give the session this grace, from now on. Raises: BadArg, NotFound, StoreDown, Stale."""
        check_range(grace_ms, "grace_ms", GRACE_MIN_MS, GRACE_MAX_MS)
        async with self.named(user, uuid) as session:
            await self._sessions.join(session, user, uuid, grace_ms)

    @asynccontextmanager
    async def named(self, user: str, uuid: str) -> AsyncIterator[Session]:
        """
        Join the shared session ``uuid`` within the block.

        Its grace runs from the last request on, or up to :data:`LINGER_S` later. Raises: BadArg: no
        uuid; NotFound: it has ended, never was, or is another user's; Full; Stale; StoreDown.
        """
        place = (user, _digits(uuid))
        attachment = self._named.get(place)
        if attachment is None or attachment.failed:
            self._sessions.counted.check(user, place[1])
            session = self._sessions.open(user)
            joining = self._loop.create_task(self._sessions.join(session, user, uuid))
            joining.add_done_callback(ignore_errors)  # who asked for it may have gone
            attachment = self._named[place] = _Attachment(session, joining)
        if attachment.leaving is not None:
            attachment.leaving.cancel()
            attachment.leaving = None
        attachment.requests += 1
        try:
            await asyncio.shield(attachment.joining)
            yield attachment.session
        finally:
            attachment.requests -= 1
            if not attachment.requests:
                attachment.leaving = self._loop.call_later(
                    0 if attachment.failed else LINGER_S, self._leave, place, attachment
                )

    def _leave(self, place: tuple[str, str], attachment: _Attachment) -> None:
        if self._named.get(place) is attachment:
            del self._named[place]
        self._background.start(self._sessions.close(attachment.session))

    async def close(self) -> None:
        """Leave every session, because the node stops: the graces begin now."""
        left, self._named = self._named, {}
        for attachment in left.values():
            if attachment.leaving is not None:
                attachment.leaving.cancel()
        await asyncio.gather(*(self._sessions.close(one.session) for one in left.values()))


def _digits(uuid: str) -> str:
    """Return one text for each session, however its uuid is written. Raises: BadArg."""
    try:
        return UUID(uuid).hex
    except ValueError:
        raise BadArg(
            f"Tidewarden-Session is {uuid[:60]!r}; allowed is a uuid that POST /v1/sessions"
            " answered"
        ) from None
