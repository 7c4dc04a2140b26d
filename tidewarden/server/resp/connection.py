"""
Serves one peer of the RESP door.

Its requests are answered in their order; all replies that are ready in one turn are written at
once. Consecutive requests of one verb run together, so that the queue below makes one script call
of them; a request of another verb waits until they are answered. A take that waits holds up the
requests behind it, as BLPOP does in Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import cast

from tidewarden.errors import Denied, Draining, Error, Full, Internal, NoAuth, TooBig, WrongPass
from tidewarden.queue import Session
from tidewarden.server.access.admission import UnauthenticatedPeer
from tidewarden.server.access.peer import UNAUTHENTICATED, Peer, peer_of
from tidewarden.server.access.users import DEFAULT_NAME
from tidewarden.server.answered_requests import UNKNOWN
from tidewarden.server.verbs.command import TOGETHER_MAX, Command, meant
from tidewarden.user_limits import ACTING

from . import encoder
from .backpressure import AHEAD_BYTES, PIPELINE_MAX, UNAUTHENTICATED_BYTES, Backpressure
from .context import ServerContext
from .parser import Request, RequestReader
from .relay_line import RelayLine
from .reply_slot import Pending, PendingSlot, Slot
from .transaction import Transaction

log = logging.getLogger("tidewarden.server")

# What one connection may use up.
TURN_MAX = 500  # requests begun in one turn of the loop; the others have their turn then
TURN_S = (
    # likewise, seconds; looked at after so many that take a few microseconds each, or a few of the
    # long ones
    0.003
)
LOOK_EVERY = 16
LOGIN_S = 60.0  # how long a peer may stay without having been let in
LINGER_S = 1.0  # how long one for whom there is no room may take to read that, and to hang up
LINGERING_MAX = 200  # of those at a time; further ones are hung up on at once
FULL = "This node has as many connections as it may."
SENT_AWAY = encoder.failure(Full(f"{FULL} You had not said who you are: others came."))
UNAUTHENTICATED_ARGUMENTS_MAX = 64  # of a request of a peer that has not been let in yet


@dataclass(frozen=True, slots=True)
class RelayedPeer:
    """Describes a peer that another process let in: its user, RESP version and address."""

    user: str | None
    resp: int
    address: str


class Connection(asyncio.Protocol):
    """
    Serves one peer, from accept to close.

    Args:
        server: what all connections of the door share.
        door: at which it came in.
        unauthenticated: pays for what the peer sends until it has logged in; None: it need not.
        relayed: what another process of the node says of the peer that came in there; None: the
            peer came in here.
    """

    __slots__ = (
        "_beginning",
        "_begun_count",
        "_closing",
        "_command",
        "_commands",
        "_door",
        "_flow",
        "_flush_due",
        "_held_up",
        "_last_said",
        "_lingers",
        "_loop",
        "_lost",
        "_out",
        "_parses",
        "_reader",
        "_relayed",
        "_requests",
        "_slots",
        "_stay",
        "_transport",
        "_user",
        "_waiting_user",
        "id",
        "last_command",
        "mute",
        "peer",
        "relay",
        "resp",
        "server",
        "session",
        "transaction",
        "unauthenticated",
    )

    _flow: Backpressure
    _loop: asyncio.AbstractEventLoop
    _out: list[bytes]
    _transport: asyncio.Transport
    peer: Peer

    def __init__(
        self,
        server: ServerContext[Connection],
        door: object = None,
        unauthenticated: UnauthenticatedPeer | None = None,
        relayed: RelayedPeer | None = None,
    ) -> None:
        self.server = server
        self.unauthenticated = unauthenticated  # until it is let in
        self.id: int = 0
        self.resp: int = 2 if relayed is None else relayed.resp
        self.session: Session | None = None
        self.last_command = ""
        self.mute = 0  # how many of the next replies are not to be sent (CLIENT REPLY)
        self.transaction: Transaction | None = None  # since MULTI
        self.relay: RelayLine | None = None  # to the first process, where this is a further one
        self._door = door
        self._relayed = relayed
        self._commands = server.commands
        self._reader = RequestReader(server.request_bytes, server.arguments_max, server.line_bytes)
        self._requests: deque[Request] = deque()
        self._slots: deque[Slot] = deque()
        self._begun_count = 0  # requests under way
        self._parses = False  # what was read is parsed further in the next turn
        self._beginning = False  # a handler runs, and its request has no place yet
        self._command: Command[Connection] | None = None  # their verb
        self._flush_due = False
        self._held_up = False  # a request waits
        self._user = ""  # who has this connection among its own (limits.user_share)
        self._waiting_user = ""  # whose request waits
        self._closing = self._lost = False
        self._last_said = False  # nothing follows any more, not even that its stream is unreadable
        self._lingers = False  # has been told the last, and may read it
        # the end of the time that a peer may stay without a login, or when it is one too many
        self._stay: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self.server
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(
            peer_of(transport) if self._relayed is None else self._relayed.address,
            server.clock.monotonic(),
            open_to_all=server.users.open,
        )
        self._flow = Backpressure(self._transport, self.peer, self.unauthenticated, self._loop)
        self._out = self._flow.out
        if self.unauthenticated is not None:
            self.unauthenticated.farewell = SENT_AWAY
        if self._relayed is not None:
            self._come_relayed(self._relayed.user)
            return
        self.id = server.peers.admit(self, self._door)
        self.leave()
        if self.id == 0:
            full = Full(f"{FULL} Close one, or try another.")
            self.reject(Draining("This node is going down.") if server.peers.draining else full)

    def _come_relayed(self, user: str | None) -> None:
        """
        Count the peer where it came in; there is no limit to lines, for there is one to peers.
        """
        self.server.peers.connections.add(self)
        self.server.peers.relayed.add(self)
        self.id = -1
        self.leave()
        if user is None:
            return
        try:
            self.enter(user)
        except WrongPass:
            # a user of before the configuration was read anew; the other process is about to hear
            # of it
            self.abort()

    def _login_over(self) -> None:
        self._stay = None
        if self.peer.may is UNAUTHENTICATED:
            late = NoAuth(f"You have not said who you are within {LOGIN_S:g} s.")
            self._out.append(self.refuse(late))
            self.close()

    def pause_writing(self) -> None:
        self._flow.pause()

    def resume_writing(self) -> None:
        self._flow.resume()
        self._flow.read(self._has_room())
        self._pump()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        requests = self._requests
        fresh = self._reader.feed(data)
        if len(fresh) == 1 and not (self._begun_count or requests or self._flow.paused):
            # The usual case: one request, and nothing before it.
            word = fresh[0][0]
            self._command = command = self._commands.get(word) or self._commands.get(word.upper())
            self._begin(command, fresh[0])
            if self._begun_count == 0:
                self._pump()
            return
        requests += fresh
        self._pump()
        if requests or self._reader.more:
            self._read_ahead(len(data))

    def eof_received(self) -> bool:
        if self._transport.get_extra_info("ssl_object") is not None:
            return False  # with TLS there is no half: the transport closes whatever we say
        if self._held_up:
            # an answer that is there already still goes: its tasks are a session's, which may live
            # on
            self.hang_up()
            self.end_waits()
            return True
        holds = self.session is not None and self.session.held
        if holds or not (self._begun_count or self._requests or self._reader.more):
            return False
        self._closing = True  # a script's last words, like `printf … | nc`: answer, then close
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._lost = True
        self._requests.clear()
        self._reader.drop()
        self.unauthenticated = None
        if self._stay is not None:
            self._stay.cancel()
        self.server.lingering -= self._lingers
        self._flow.stop()
        self.end_waits()
        self._belong("")
        if self.relay is not None:
            self.relay.close()
        session, self.session = self.session, None
        self.server.peers.forget(self, session)

    # What handlers call.

    def enter(self, user: str) -> None:
        """
        Set the rights of the peer, who has authenticated or whose user's rights have changed.

        Raises: WrongPass: there is no such user now. Full: it has as many connections as it may.
        """
        rights = self.server.users.rights(user)
        self._belong(user)
        self.peer.enter(user, rights)
        self._reader.request_bytes, self._reader.line_bytes = (
            self.server.request_bytes,
            self.server.line_bytes,
        )
        self._reader.arguments_max = self.server.arguments_max
        unauthenticated, self.unauthenticated = self.unauthenticated, None
        if unauthenticated is not None:
            self._flow.authenticated(unauthenticated)

    def leave(self) -> None:
        """Forget the peer's user."""
        self._belong("")
        self.peer.leave()
        if self.peer.may is UNAUTHENTICATED:
            self._reader.request_bytes = min(UNAUTHENTICATED_BYTES, self.server.request_bytes)
            self._reader.line_bytes = min(UNAUTHENTICATED_BYTES, self.server.line_bytes)
            self._reader.arguments_max = min(
                UNAUTHENTICATED_ARGUMENTS_MAX, self.server.arguments_max
            )
            if self.id and self._stay is None:
                self._stay = self._loop.call_later(LOGIN_S, self._login_over)

    def _belong(self, user: str) -> None:
        """
        Count the connection as this user's; empty: as no user's. Raises: Full.

        A connection that is lost stays no user's: a login may end later.
        """
        if self._relayed is not None or user == self._user or (user and self._lost):
            return
        connections = self.server.limits.connections
        if user:
            connections.take(user)
        if self._user:
            connections.give_back(self._user)
        self._user = user

    def check_wait(self) -> None:
        """Check the waits. Raises: Full: no further request of its user may wait."""
        self.server.limits.waits.check(self.peer.user or "")

    def run_transaction(self, requests: list[Request]) -> None:
        """Run ``requests`` before all others that were read (EXEC)."""
        self._requests.extendleft(reversed(requests))

    def push(self, message: bytes) -> bool:
        """Send a message between two replies (RESP3); False: the peer does not read just now."""
        if self._flow.paused:
            return False
        self._out.append(message)
        self.flush()
        return True

    def end_waits(self) -> None:
        """End the requests that wait; a peer that still reads is told DRAINING."""
        for slot in list(self._slots):
            if slot.waits:
                slot.cancel()

    def waits(self) -> bool:
        """Return whether a request of the peer waits."""
        return self._held_up

    def dismiss(self) -> None:
        """Read and wait no more; close when requests under way are answered."""
        self.hang_up()
        self.end_waits()
        if self._begun_count == 0:
            self._pump()

    def idle(self) -> bool:
        """Return whether nothing is under way and no task is held."""
        return (
            self._begun_count == 0
            and not self._requests
            and not (self.session is not None and self.session.held)
        )

    def refuse(self, error: BaseException) -> bytes:
        """
        Make the reply for ``error``; one that no caller can handle is logged and answered INTERNAL.
        """
        if not isinstance(error, Error):
            log.error(
                "defect in %s", self.last_command, exc_info=error, extra={"peer": self.peer.address}
            )
            error = Internal("A defect of the server; its log has the trace.")
        self.server.count_error(error.code)
        return encoder.failure(error)

    def open_session(self) -> Session:
        """Return the peer's session, opened at the first need."""
        session = self.session
        if session is None:
            session = self.session = self.server.queues.open_session(self.peer.user or DEFAULT_NAME)
        return session

    # How it ends.

    @property
    def closing(self) -> bool:
        """
        Return whether no more is read: the connection ends when requests under way are answered.
        """
        return self._closing

    def hang_up(self) -> None:
        """Read nothing more; close when requests under way are answered."""
        self._closing = self._last_said = True
        self._requests.clear()
        self._reader.drop()

    def close(self) -> None:
        """Send the replies that are ready and hang up now."""
        self.hang_up()
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once, although the peer may have unread replies."""
        self._transport.abort()

    def reject(self, error: Error) -> None:
        """Tell the peer why there is no room, and hang up."""
        self._out.append(self.refuse(error))
        self.hang_up()
        self.linger()

    def linger(self) -> None:
        """
        Send the replies that are ready, and hang up when the peer has, or soon.

        It has sent something already: a socket closed with that unread is reset, and it might never
        read why.
        """
        self.flush()
        server, transport = self.server, self._transport
        if self._lingers:
            return
        if self._stay is not None:
            self._stay.cancel()
        plain = transport.can_write_eof()
        if server.lingering < LINGERING_MAX:
            self._lingers = True
            server.lingering += 1
            # with TLS it takes the peer's goodbye, too
            (transport.write_eof if plain else transport.close)()
            self._stay = self._loop.call_later(LINGER_S, transport.abort)
        else:
            (transport.close if plain else transport.abort)()

    def flush(self) -> None:
        """Write every reply that is ready, as one piece."""
        self._flush_due = False
        self._flow.flush()

    # What is read ahead.

    def _has_room(self) -> bool:
        return not self._parses and self._flow.has_room(len(self._requests))

    def _read_ahead(self, size: int) -> None:
        """
        Note that requests stay unbegun after ``size`` bytes more were read.

        When they are too many, the peer is held back.
        """
        self._flow.ahead += size
        if not self._flow.is_full(len(self._requests)):
            return
        if self._held_up and self.peer.may is not UNAUTHENTICATED:
            # With its socket unread we would not see it go, and a task could be handed to a peer
            # that is gone.
            self._out.append(
                self.refuse(
                    TooBig(
                        f"At most {PIPELINE_MAX} requests or {AHEAD_BYTES} bytes may stand behind"
                        " one that waits."
                    )
                )
            )
            self.close()
        else:
            self._flow.read(False)

    # The order of requests.

    def answered(self, slot: Slot) -> None:
        """
        Take a slot's reply: send the replies that are in order, begin requests that were held up.
        """
        self._begun_count -= 1
        if slot.waits:
            self._held_up = False
            self.server.waiting -= 1
            self.server.limits.waits.give_back(self._waiting_user)
        if self._relayed is None:
            self._note(
                slot.verb,
                slot.name,
                slot.bytes_in,
                cast(bytes, slot.reply),
                slot.began,
                muted=slot.muted,
                waits=slot.waits,
            )
        slots, out = self._slots, self._out
        if len(slots) == 1 and self._smooth():
            slots.clear()
            if not slot.muted and not self._transport.is_closing():
                self._transport.write(cast(bytes, slot.reply))
            if self.server.peers.draining:
                self.server.peers.settled.set()
            return
        while slots:
            reply = slots[0].reply
            if reply is None:
                break
            if not slots.popleft().muted:
                out.append(reply)
        if self._begun_count == 0 and not self._beginning:
            self._pump()
            if self.server.peers.draining:
                self.server.peers.settled.set()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def _smooth(self) -> bool:
        """Return whether there is nothing to do but to send one reply."""
        return not (
            self._begun_count
            or self._requests
            or self._out
            or self._closing
            or not self._flow.reading
            or self._reader.more
            or self._reader.failure
        )

    def _pump(self) -> None:
        """Begin requests that may begin, then send replies that are ready."""
        requests, out = self._requests, self._out
        turn, look = TURN_MAX, LOOK_EVERY
        began = 0.0
        while requests and not self._flow.paused:
            word = requests[0][0]
            command = self._commands.get(word) or self._commands.get(word.upper())
            if self._begun_count and (
                self._held_up
                or command is not self._command
                or self._begun_count >= self._together(command)
            ):
                break
            if turn <= 0:
                self._loop.call_soon(self._pump)
                break
            self._command = command
            request = requests.popleft()
            self._begin(command, request)
            cost = (
                1 + (len(request) >> 3) + (len(out[-1]) >> 10 if out else 0)
            )  # long ones take long to read and to make
            turn -= cost
            look -= cost
            if look <= 0:
                look, now = LOOK_EVERY, self.server.clock.monotonic()
                began = began or now
                if now - began > TURN_S:
                    turn = 0
        if self._reader.more and not requests and not self._parses:
            self._parses = True
            self._loop.call_soon(self._parse_on)
        if self._begun_count == 0 and not requests and not self._reader.more:
            if self._reader.failure is not None and not self._last_said:
                if self._reader.encrypted:
                    self.server.mismatches.met(
                        self.peer.address, "it speaks TLS, which is not set up (node.tls_cert)"
                    )
                self._out.append(self.refuse(self._reader.failure))
                self._closing = self._last_said = True
            if self._closing:
                if self.unauthenticated is not None and self._reader.failure is not None:
                    self.linger()
                    return
                self.flush()
                self._transport.close()
                return
        if not requests and not self._reader.more:
            self._flow.ahead = 0
        if not self._flow.reading and not self._flow.paused and self._has_room():
            self._flow.read(True)
        if self._out:
            self.flush()

    def _parse_on(self) -> None:
        """
        Read further requests of the peer's bytes, which were too many for one turn of the loop.
        """
        self._parses = False
        self._requests += self._reader.go_on()
        self._pump()

    def _together(self, command: Command[Connection] | None) -> int:
        """Return how many requests of this verb may be under way at a time."""
        if self.peer.may is UNAUTHENTICATED:
            return 1
        if command is None:
            return TOGETHER_MAX
        return (
            command.together if self._flow.short else min(command.together, command.together_long)
        )

    def _note(
        self,
        verb: str,
        name: bytes,
        bytes_in: int,
        reply: bytes,
        began: float,
        *,
        muted: bool,
        waits: bool,
    ) -> None:
        """Note that a request was answered by ``reply``."""
        server, peer = self.server, self.peer
        server.answered.note(
            peer.user,
            verb,
            name,
            peer.host,
            bytes_in,
            0 if muted else len(reply),
            encoder.word_of(reply) if reply[:1] == b"-" else "",
            server.monotonic() - began,
            waits,
        )

    def _begin(self, command: Command[Connection] | None, request: Request) -> None:
        server = self.server
        began = server.monotonic()
        verb, subject = (UNKNOWN, 0) if command is None else (command.name, command.subject)
        # what EXEC runs is noted then; what came in at another process, there
        noted = self._relayed is None and (
            self.transaction is None or command is None or command.immediate
        )
        self._beginning = True
        try:
            if command is None:
                if self.peer.may is UNAUTHENTICATED:
                    if self._reader.inline:
                        # perhaps a browser that was told to POST commands to us: no second try
                        self.hang_up()
                    self.peer.refuse()
                outcome: bytes | Pending | Slot = self._unknown(request)
            else:
                self.last_command = verb
                server.calls[verb] += 1
                if command.level not in self.peer.may:
                    self._check(command, request)
                if len(request) < command.least or len(request) > command.most:
                    raise command.misused(request)
                ACTING.set(self.peer.user or "")
                transaction = None if command.immediate else self.transaction
                outcome = (
                    command.handler(self, request)
                    if transaction is None
                    else transaction.add(request)
                )
        except Exception as error:
            if self.transaction is not None:
                self.transaction.failed = True
            outcome = self.refuse(error)
        self._beginning = False
        muted = self.mute > 0
        if muted:
            self.mute -= 1
        if isinstance(outcome, Slot):
            slot = outcome
        elif type(outcome) is bytes:
            slot = Slot(self)
            slot.reply = outcome
        else:
            slot = PendingSlot(self, cast(Pending, outcome), self._loop)
        slot.muted = muted
        reply = slot.reply
        name = request[subject] if subject and len(request) > 1 else b""
        bytes_in = 0 if server.answered.traffic is None else sum(map(len, request))
        if reply is None:
            slot.begun = True
            slot.began, slot.verb, slot.name, slot.bytes_in = began, verb, name, bytes_in
            self._begun_count += 1
            if slot.waits:
                self._held_up = True
                server.waiting += 1
                self._waiting_user = self.peer.user or ""
                server.limits.waits.add(self._waiting_user)
        elif noted:
            self._note(verb, name, bytes_in, reply, began, muted=muted, waits=False)
        if reply is not None and not self._slots:
            if not muted:
                self._out.append(reply)
            return
        self._slots.append(slot)
        if self._held_up and self._closing:
            # half closed: we would not see it go, and a task could be handed to a peer that is gone
            self.close()

    def _check(self, command: Command[Connection], request: Request) -> None:
        try:
            self.peer.check(command, request)
        except Denied as error:
            self.server.users.deny(self.peer.user or "", self.peer.address, error)
            raise

    def _unknown(self, request: Request) -> bytes:
        shown = request[0][:40].decode("utf-8", "backslashreplace")
        self.server.count_error("ERR")
        if self.transaction is not None:
            self.transaction.failed = True
        reply = encoder.error_line(
            "ERR", f"unknown command '{shown}'{meant(shown, self.server.names)}"
        )
        if self._reader.inline:
            # Not a RESP peer at all: perhaps a browser that was told to POST commands to us. No
            # second try.
            self.hang_up()
        return reply
