"""Serves the ``Q.*`` of the hot path, each by one call of the queue."""

from __future__ import annotations

from collections.abc import Iterable

from tidewarden.errors import BadArg, Denied, Draining, NotHeld
from tidewarden.queue.task import Taken, TaskSpec
from tidewarden.server.access.required_rights import Arguments, Requirement, depends, name_of, on
from tidewarden.server.resp import encoder, fast_path
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending, Slot

from .command import ANY, TOGETHER_LONG_MAX, Command
from .options import Option, Options, lowered, number, shown, text, unsupported

TASK_OPTIONS = {
    "ID": Option("id", text),
    "DELAY": Option("delay_ms", number, rival="at_ms"),
    "AT": Option("at_ms", number, rival="delay_ms"),
    "DEADLINE": Option("deadline_ms", number, rival="within_ms"),
    "WITHIN": Option("within_ms", number, rival="deadline_ms"),
    "PRIORITY": Option("priority", number),
    "LEASE": Option("lease_ms", number),
    "ATTEMPTS": Option("attempts", number),
    "BACKOFF": Option("backoff_ms", number),
    "IFEXISTS": Option("if_exists", lowered),
    "TTL": Option("ttl_ms", number),
    "LANE": Option("lane", text),
    "WAIT": Option("wait_ms", unsupported),
}
PUT = Options(
    "Q.PUT", {**TASK_OPTIONS, "WAIT": Option("wait_ms", number), "TRACE": Option("trace", text)}
)
TAKE = Options(
    "Q.TAKE",
    {
        "COUNT": Option("count", number),
        "WAIT": Option("wait_ms", number),
        "LEASE": Option("lease_ms", number),
        "ID": Option("task_id", text),
    },
    until="FROM",
)
REASONED = {"DELAY": Option("delay_ms", number), "REASON": Option("reason", text)}
RELEASE = Options("Q.RELEASE", REASONED)
FAIL = Options("Q.FAIL", REASONED)
BURY = Options("Q.BURY", {"REASON": Option("reason", text)})
TOUCH = Options("Q.TOUCH", {"LEASE": Option("lease_ms", number)})


def queue_name(argument: bytes) -> str:
    """Read a user's queue. Raises: Denied: its name begins with ``_``."""
    if argument[:1] == b"_":
        raise Denied(f"Queues whose names begin with _ are the system's: found {shown(argument)}.")
    return text("A queue's name", argument)


def put(connection: Connection, request: Request) -> Pending | Slot:
    """Answer ``Q.PUT``."""
    if len(request) == 3 and (slot := fast_path.put(connection, request)) is not None:
        return slot
    queue = queue_name(request[1])
    fields = PUT.parse(request, 3) if len(request) > 3 else {}
    server = connection.server
    wait_ms = fields.pop("wait_ms", 0)
    if wait_ms:
        connection.check_wait()
        return Pending(
            server.queues.put_waiting(queue, TaskSpec(request[2], **fields), wait_ms), _id, True
        )
    return Pending(server.queues.put(queue, TaskSpec(request[2], **fields)), _id)


def take(connection: Connection, request: Request) -> Pending | Slot:
    """Answer ``Q.TAKE``."""
    if len(request) <= 5 and (slot := fast_path.take(connection, request)) is not None:
        return slot
    server = connection.server
    fields, start = TAKE.parse_until(request, 1)
    names = [queue_name(name) for name in request[start:]]
    if not names:
        raise BadArg("Q.TAKE needs the name of a queue after FROM.")
    if server.peers.draining:
        raise Draining("This node is going down and hands out nothing new. Connect to another.")
    waits = fields.get("wait_ms", 0) > 0
    if waits:
        connection.check_wait()
    return Pending(server.queues.take(connection.open_session(), names, **fields), _taken, waits)


def ack(connection: Connection, request: Request) -> Pending | Slot:
    """Answer ``Q.ACK``."""
    if len(request) == 4 and (slot := fast_path.ack(connection, request)) is not None:
        return slot
    result = b""
    if len(request) >= 6 and len(request) % 2 == 0 and request[-2].upper() == b"RESULT":
        if len(request) > 6:
            raise BadArg("Q.ACK takes a RESULT with one task only.")
        request, result = request[:4], request[5]
    if len(request) % 2:
        raise BadArg(
            f"Q.ACK has {len(request) - 2} arguments after the queue: it takes an id and a lease"
            " for each task."
        )
    queue = queue_name(request[1])
    queues, session = connection.server.queues, connection.session or connection.open_session()
    if len(request) == 4:
        pair = (text("An id", request[2]), number("A lease", request[3]))
        return Pending(queues.ack(session, queue, (pair,), result), _acked)
    pairs = [
        (text("An id", request[i]), number("A lease", request[i + 1]))
        for i in range(2, len(request), 2)
    ]
    return Pending(queues.ack(session, queue, pairs), _list)


def release(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.RELEASE``."""
    queue, task_id, lease = _leased(request)
    fields = RELEASE.parse(request, 4)
    return Pending(
        connection.server.queues.release(
            connection.open_session(), queue, task_id, lease, **fields
        ),
        ok,
    )


def fail(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.FAIL``."""
    queue, task_id, lease = _leased(request)
    fields = {"delay_ms": None, **FAIL.parse(request, 4)}
    return Pending(
        connection.server.queues.fail(connection.open_session(), queue, task_id, lease, **fields),
        ok,
    )


def bury(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.BURY``."""
    queue, task_id, lease = _leased(request)
    reason = BURY.parse(request, 4).get("reason", "")
    return Pending(
        connection.server.queues.bury(connection.open_session(), queue, task_id, lease, reason), ok
    )


def touch(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.TOUCH``."""
    queue, task_id, lease = _leased(request)
    lease_ms = TOUCH.parse(request, 4).get("lease_ms", 0)
    return Pending(
        connection.server.queues.touch(connection.open_session(), queue, task_id, lease, lease_ms),
        integer,
    )


def _leased(request: Request) -> tuple[str, str, int]:
    return queue_name(request[1]), text("An id", request[2]), number("A lease", request[3])


def _id(task_id: str, resp: int) -> bytes:
    return encoder.bulk(task_id)


def ok(result: object, resp: int) -> bytes:
    return encoder.OK


def integer(result: int, resp: int) -> bytes:
    return encoder.integer(result)


def _list(result: list[int], resp: int) -> bytes:
    return encoder.encode(result, resp)


def _acked(result: list[int], resp: int) -> bytes:
    if not result[0]:
        raise NotHeld(NotHeld.ENDED)
    return encoder.OK


def _taken(tasks: list[Taken], resp: int) -> bytes:
    return fast_path.taken(tasks)


def _take_requires(request: Arguments) -> Iterable[Requirement]:
    _, start = TAKE.parse_until(request, 1)
    return [(("take",), name_of(name)) for name in request[start:]]


LEASED = "queue id lease"
COMMANDS = (
    Command(
        "Q.PUT",
        put,
        3,
        ANY,
        on(("put",), 1),
        "queue payload [ID id] [DELAY ms | AT unix_ms] [DEADLINE unix_ms | WITHIN ms] [PRIORITY n]"
        " [LEASE ms] [ATTEMPTS n] [BACKOFF ms] [TTL ms] [LANE key] [IFEXISTS keep|fail|replace]"
        " [WAIT ms] [TRACE traceparent]",
        group="queue",
    ),
    Command(
        "Q.TAKE",
        take,
        3,
        ANY,
        depends(("take",), _take_requires),
        "[COUNT n] [WAIT ms] [LEASE ms] [ID id] FROM queue [queue …]",
        group="queue",
        together_long=TOGETHER_LONG_MAX,
    ),
    Command(
        "Q.ACK",
        ack,
        4,
        ANY,
        on(("take",), 1),
        f"{LEASED} [id lease …] [RESULT bytes]",
        group="queue",
    ),
    Command(
        "Q.RELEASE",
        release,
        4,
        8,
        on(("take",), 1),
        f"{LEASED} [DELAY ms] [REASON text]",
        group="queue",
    ),
    Command(
        "Q.FAIL", fail, 4, 8, on(("take",), 1), f"{LEASED} [DELAY ms] [REASON text]", group="queue"
    ),
    Command("Q.TOUCH", touch, 4, 6, on(("take",), 1), f"{LEASED} [LEASE ms]", group="queue"),
    Command("Q.BURY", bury, 4, 6, on(("take",), 1), f"{LEASED} [REASON text]", group="queue"),
)
