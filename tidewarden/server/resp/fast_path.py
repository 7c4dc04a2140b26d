"""
Answers plain puts, takes and acks by the shortest way through the door.

They go straight from the arguments to the queue, and from the script's reply to bytes. Each
function returns None when the request is not plain (:mod:`tidewarden.queue.fast_path`) or not
right: the ordinary handler then does it, or says what is wrong.
"""

from __future__ import annotations

from typing import Any

from tidewarden.errors import NotHeld
from tidewarden.queue.put import put_error
from tidewarden.queue.task import Taken, traceparent
from tidewarden.server.verbs.options import DIGITS_MAX

from . import encoder
from .connection import Connection
from .parser import Request
from .reply_slot import Slot

FROM = (b"FROM", b"from")
WAIT = (b"WAIT", b"wait")
TRACEPARENT_BYTES = 55


class PutSlot(Slot):
    """Awaits the answer of put.lua; 1 becomes the id."""

    __slots__ = ("queue", "task_id")

    def __init__(self, connection: Connection, queue: bytes) -> None:
        self.connection = connection
        self.waits = self.muted = self.begun = False
        self.reply = self.work = None
        self.queue = queue
        self.task_id = ""

    def render(self, result: Any) -> bytes:
        if result == 1:
            return b"$%d\r\n%b\r\n" % (len(self.task_id), self.task_id.encode())
        raise put_error(result, self.queue.decode(), self.task_id)


class TakeSlot(Slot):
    """Awaits the task that was taken, or none."""

    __slots__ = ()

    def __init__(self, connection: Connection, waits: bool) -> None:
        self.connection = connection
        self.waits = waits
        self.muted = self.begun = False
        self.reply = self.work = None

    def render(self, tasks: list[Taken]) -> bytes:
        return taken(tasks)


class AckSlot(Slot):
    """Awaits 1 or 0 from ack.lua."""

    __slots__ = ()

    def render(self, result: Any) -> bytes:
        if not result:
            raise NotHeld(NotHeld.ENDED)
        return encoder.OK


def taken(tasks: list[Taken]) -> bytes:
    """Encode the reply of every take: seven fields a task, an eighth where its put was traced."""
    if not tasks:
        return encoder.EMPTY
    out = [b"*%d\r\n" % len(tasks)]
    for task in tasks:
        queue = task.queue.encode()
        task_id = task.id.encode("utf-8", "surrogateescape")
        out.append(
            b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:%d\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n:%d\r\n"
            % (
                8 if task.trace else 7,
                len(queue),
                queue,
                len(task_id),
                task_id,
                task.lease,
                len(task.payload),
                task.payload,
                task.attempt,
                task.deadline_ms,
                task.lease_end_ms,
            )
        )
        if task.trace:
            out.append(b"$%d\r\n%b\r\n" % (TRACEPARENT_BYTES, traceparent(task.trace).encode()))
    return b"".join(out)


def put(connection: Connection, request: Request) -> Slot | None:
    """Answer ``Q.PUT queue payload``."""
    slot = PutSlot(connection, request[1])
    task_id = connection.server.queues.fast_path.put(slot.queue, request[2], slot)
    if task_id is None:
        return None
    slot.task_id = task_id
    return slot


def take(connection: Connection, request: Request) -> Slot | None:
    """Answer ``Q.TAKE [WAIT ms] FROM queue``."""
    server = connection.server
    wait_ms = 0
    if len(request) == 5:
        if request[1] not in WAIT or request[3] not in FROM:
            return None
        digits = request[2]
        if not digits.isdigit() or len(digits) > DIGITS_MAX:
            return None
        if not server.limits.waits.has_room(connection.peer.user or ""):
            return None
        wait_ms = int(digits)
    elif len(request) != 3 or request[1] not in FROM:
        return None
    if server.peers.draining:
        return None
    slot = TakeSlot(connection, wait_ms > 0)
    session = connection.session or connection.open_session()
    slot.work = server.queues.fast_path.take(session, request[-1], wait_ms, slot)
    return None if slot.work is None else slot


def ack(connection: Connection, request: Request) -> Slot | None:
    """Answer ``Q.ACK queue id lease``."""
    digits = request[3]
    if not digits.isdigit() or len(digits) > DIGITS_MAX:
        return None
    server = connection.server
    session = connection.session or connection.open_session()
    slot = AckSlot(connection)
    return (
        slot
        if server.queues.fast_path.ack(session, request[1], request[2], int(digits), slot)
        else None
    )
