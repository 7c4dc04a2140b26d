"""
Serves one peer of the beanstalkd door.

Its commands are done one after the other, as beanstalkd does them; one that needs no store is
answered in the turn in which it came.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, cast

from tidewarden.errors import Error, Full, Internal, NoAuth
from tidewarden.queue import Session
from tidewarden.server.access.admission import UnauthenticatedPeer
from tidewarden.server.access.peer import UNAUTHENTICATED, Peer, denied, peer_of
from tidewarden.server.access.required_rights import missing
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.audit.audited import noted
from tidewarden.server.resp.backpressure import UNAUTHENTICATED_BYTES, Backpressure
from tidewarden.user_limits import ACTING

from . import commands
from .context import DEFAULT_TUBE, DoorContext, count_down
from .jobs import Reserved
from .parser import JOB_TOO_BIG, Answered, Request, RequestReader
from .replies import DRAINING, OUT_OF_MEMORY, failure
from .tube_names import queue_of

log = logging.getLogger("tidewarden.server")

AHEAD_BYTES = 65_536  # read behind what is being done
TURN_REQUESTS = 64  # done for one peer before others have their turn
LOGIN_S = 60.0  # how long a peer may stay without having been let in
ON_USED = frozenset({"put", "peek-ready", "peek-delayed", "peek-buried", "kick"})
BEFORE_LOGIN = frozenset({"auth", "quit"})


def certified(transport: asyncio.BaseTransport) -> str:
    """
    Return the common name of the peer's certificate, vouched for by an authority; empty: none.
    """
    certificate = transport.get_extra_info("peercert") or {}
    names = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return names[0] if len(names) == 1 else ""


class JobConnection(asyncio.Protocol):
    """
    Serves one peer, from accept to close.

    Args:
        door: what all connections share.
        listener: at which it came in.
        unauthenticated: pays for what the peer sends until it has logged in; None: it need not.

    ``used`` and ``watched`` are tubes; ``reserved`` the jobs that it has, by number.
    """

    __slots__ = (
        "_closing",
        "_failure",
        "_flow",
        "_listener",
        "_loop",
        "_reader",
        "_stay",
        "_transport",
        "_turn",
        "_unauthenticated",
        "_user",
        "_waiting_for",
        "_work",
        "door",
        "half_closed",
        "id",
        "is_producer",
        "is_worker",
        "peer",
        "reserved",
        "session",
        "used",
        "watched",
    )

    def __init__(
        self,
        door: DoorContext,
        listener: object = None,
        unauthenticated: UnauthenticatedPeer | None = None,
    ) -> None:
        self.door = door
        self._listener = listener
        self._unauthenticated = unauthenticated
        stranger = unauthenticated is not None
        bytes_max = min(door.job_bytes, UNAUTHENTICATED_BYTES) if stranger else door.job_bytes
        self._reader = RequestReader(bytes_max)
        self._work: asyncio.Task[None] | None = None
        self._waiting_for: asyncio.Future[Any] | None = None
        self._stay: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None  # what has come goes on then
        self._user = ""  # who has this connection among its own (limits.user_share)
        self._closing = False
        self._failure = ""  # the word of the error that answers the request
        self.half_closed = False
        self.id = 0
        self.is_producer = False
        self.is_worker = False
        self.session: Session | None = None
        self.used = DEFAULT_TUBE
        self.watched = [DEFAULT_TUBE]
        self.reserved: dict[int, Reserved] = {}

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self.door
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(peer_of(transport), door.clock.monotonic(), open_to_all=door.users.open)
        self._flow = Backpressure(self._transport, self.peer, self._unauthenticated, self._loop)
        door.using[self.used] += 1
        door.watching[self.used] += 1
        self.id = door.peers.admit(self, self._listener)
        if not self.id:
            self.say(DRAINING if door.peers.draining else OUT_OF_MEMORY)
            self.close()
        elif (user := certified(transport) or self._user_here()) and door.users.has(user):
            try:
                self.enter(user)
            except Full as error:
                self.say(failure(error))
                self.close()
        elif self.peer.may is UNAUTHENTICATED:
            self._stay = self._loop.call_later(LOGIN_S, self._login_over)

    def _user_here(self) -> str:
        peername = self._transport.get_extra_info("peername")
        return self.door.user_from(peername[0]) if isinstance(peername, tuple) else ""

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._reader.feed(data)
        self._pump()
        self._hold_back()

    def eof_received(self) -> bool:
        self.half_closed = True
        if self._transport.get_extra_info("ssl_object") is not None:
            return False
        if self._work is None and self._turn is None:
            return False
        self._wake()
        return True

    def pause_writing(self) -> None:
        self._flow.pause()

    def resume_writing(self) -> None:
        self._flow.resume()
        self._pump()
        self._hold_back()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._reader.drop()
        self._unauthenticated = None
        if self._stay is not None:
            self._stay.cancel()
        self._flow.stop()
        if self._work is not None:
            self._work.cancel()
        self._belong("")
        count_down(self.door.using, self.used)
        for tube in self.watched:
            count_down(self.door.watching, tube)
        session, self.session = self.session, None
        self.door.peers.forget(self, session)

    # --- what commands call

    def enter(self, user: str) -> None:
        """
        Note that the peer has said who it is.

        Raises: WrongPass: there is no such user now. Full: it has as many connections as it may.
        """
        rights = self.door.users.rights(user)
        self._belong(user)
        self.peer.enter(user, rights)
        if self._stay is not None:
            self._stay.cancel()
            self._stay = None
        self._reader.job_bytes = self.door.job_bytes
        unauthenticated, self._unauthenticated = self._unauthenticated, None
        if unauthenticated is not None:
            self._flow.authenticated(unauthenticated)

    def _belong(self, user: str) -> None:
        """Count the connection as this user's; empty: as no user's. Raises: Full."""
        if user == self._user:
            return
        connections = self.door.limits.beanstalkd_connections
        if user:
            connections.take(user)
        if self._user:
            connections.give_back(self._user)
        self._user = user

    def check(self, command: str, words: tuple[str, ...], queue: str) -> None:
        """Check the user's rights. Raises: Denied: it lacks all of these rights to the queue."""
        rights = self.peer.rights
        if not rights.whole and (lacks := missing(rights, [(words, queue)])):
            user = self.peer.user or DEFAULT_NAME
            error = denied(command, lacks, user)
            self.door.users.deny(user, self.peer.address, error)
            raise error

    async def noted(self, action: str, words: Sequence[str], work: Awaitable[Any]) -> Any:
        """
        Return the result of ``work``, noted in the audit log as the verb ``action`` of other doors.
        """
        audit, user = self.door.audit, self.peer.user or ""
        if audit is None:
            return await work
        note = functools.partial(audit.change, user, self.peer.address, action, words)
        return await noted(work, note)

    def open_session(self) -> Session:
        """Return the peer's session, opened at the first need."""
        if self.session is None:
            user = self.peer.user or DEFAULT_NAME
            self.session = self.door.jobs.queues.open_session(user)
        return self.session

    async def wait_for(self, future: asyncio.Future[Any]) -> Any:
        """
        Wait for the result of a future.

        None: the peer has closed its half of the connection, or the door is about to close.
        """
        if self.half_closed or self.door.peers.draining:
            future.cancel()
            return None
        self._waiting_for = future
        self._hold_back()
        try:
            return await future
        except asyncio.CancelledError:
            if self._closing or not (self.half_closed or self.door.peers.draining):
                raise
            return None
        finally:
            self._waiting_for = None

    def say(self, reply: bytes) -> None:
        """Write a reply."""
        self._flow.out.append(reply)
        self._flow.flush()

    # --- how it ends

    def close(self) -> None:
        """Send the replies that are ready, and hang up."""
        self._closing = True
        self._reader.drop()
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._closing = True
        self._transport.abort()

    def drain(self) -> None:
        """Close with the door: a peer that waits hears of it by the end of the connection."""
        if self._waiting_for is not None:
            self._wake()
        elif self._work is None and not self.reserved:
            self.close()

    def idle(self) -> bool:
        """Return whether nothing is under way, and nothing reserved."""
        return self._work is None and not self.reserved

    @property
    def is_waiting(self) -> bool:
        """Return whether the peer waits for a job."""
        return self._waiting_for is not None

    def _wake(self) -> None:
        if self._waiting_for is not None:
            self._waiting_for.cancel()

    def _login_over(self) -> None:
        self._stay = None
        if self.peer.may is UNAUTHENTICATED:
            self.say(failure(NoAuth("")))
            self.close()

    # --- one command after the other

    def _hold_back(self) -> None:
        """
        Leave the peer's socket alone while much of what it sent is not done.

        One that waits for a job has to be read, or its going is not noticed: it is sent away.
        """
        bound = UNAUTHENTICATED_BYTES if self.peer.may is UNAUTHENTICATED else AHEAD_BYTES
        busy = self._work is not None or self._turn is not None or self._flow.paused
        if not busy or len(self._reader) <= bound:
            self._flow.read(not self._flow.paused)
        elif self._waiting_for is not None:
            self.abort()
        else:
            self._flow.read(False)

    def _pump(self) -> None:
        """
        Do the requests that have come, as far as they can be done at once; after some, others are
        first.
        """
        done = 0
        while self._work is None and not (self._closing or self._flow.paused or self._turn):
            if done == TURN_REQUESTS:
                self._turn = self._loop.call_soon(self._next_turn)
                return
            done += 1
            request = self._reader.next()
            if request is None:
                if self.half_closed:
                    self.close()
                return
            self._failure = ""
            began = self._loop.time()
            about = self._subject(request) if isinstance(request, Request) else b""
            reply = self._begin(request)
            if isinstance(reply, bytes):
                self._note(request, about, reply, began)
                self.say(reply)
            elif reply is not None:
                self._work = self._loop.create_task(self._finish(request, about, reply, began))

    def _next_turn(self) -> None:
        self._turn = None
        self._pump()
        self._hold_back()

    def _begin(self, request: Request | Answered) -> bytes | Coroutine[Any, Any, bytes] | None:
        """Return the reply to a request, or the coroutine that brings it; None: there is none."""
        calls = self.door.calls
        if isinstance(request, Answered):
            if request.op and self.peer.may is not UNAUTHENTICATED:
                calls[request.op] += 1
            if request.foreign:
                self.door.mismatches.met(self.peer.address, request.foreign)
                self._closing = True
                self._loop.call_soon(self.close)
            if request.reply == JOB_TOO_BIG and self.peer.may is UNAUTHENTICATED:
                return self._failed(NoAuth("send auth user secret"))
            return request.reply or None
        if request.op != "put":
            calls[request.op] += 1
        if self.peer.may is UNAUTHENTICATED and request.op not in BEFORE_LOGIN:
            return self._failed(NoAuth("send auth user secret"))
        if request.op == "quit":
            self.close()
            return None
        ACTING.set(self.peer.user or "")
        try:
            return commands.COMMANDS[request.op](self, request)
        except Exception as error:
            return self._failed(error)

    def _subject(self, request: Request) -> bytes:
        """Return the queue that a request is for, as far as that is known; empty: it is not."""
        tube, held = "", None
        if request.op in ON_USED:
            tube = self.used
        elif request.name and request.op != "auth":
            tube = request.name
        elif request.op.startswith("reserve") and len(self.watched) == 1:
            tube = self.watched[0]
        elif request.numbers:
            held = self.reserved.get(request.numbers[0])
        queue = held.job.queue if held is not None else tube and queue_of(tube)
        return (queue or "").encode()

    def _note(self, request: Request | Answered, about: bytes, reply: bytes, began: float) -> None:
        if isinstance(request, Answered):
            return
        self.door.answered.note(
            self.peer.user,
            request.op,
            about,
            self.peer.host,
            len(request.op) + len(request.name) + len(request.body),
            len(reply),
            self._failure,
            self._loop.time() - began,
            request.op.startswith("reserve"),
        )

    async def _finish(
        self,
        request: Request | Answered,
        about: bytes,
        reply: Coroutine[Any, Any, bytes],
        began: float,
    ) -> None:
        try:
            said = await reply
        except Exception as error:
            said = self._failed(error)
        self._work = None
        self.door.peers.settled.set()
        if self._closing:
            return
        if said:
            self._note(request, about, said, began)
            self.say(said)
        if self.door.peers.draining and not self.reserved:
            self.close()
            return
        self._pump()
        self._hold_back()

    def _failed(self, error: Exception) -> bytes:
        if not isinstance(error, Error):
            log.error(
                "defect in the beanstalkd door", exc_info=error, extra={"peer": self.peer.address}
            )
            error = Internal("A defect of the server; its log has the trace.")
        self._failure = error.code
        self.door.errors[error.code] += 1
        return failure(error)
