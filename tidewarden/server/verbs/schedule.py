"""Serves ``S.*``, the verbs of schedules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tidewarden.errors import BadArg, Error
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import parse
from tidewarden.server.access.required_rights import (
    LOGIN,
    Arguments,
    Requirement,
    depends,
    name_of,
    on,
)
from tidewarden.server.audit.audited import first
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending

from .command import ANY, Command
from .options import Option, Options, number, text
from .queue import TASK_OPTIONS, queue_name

TASK = Options("S.PUT", TASK_OPTIONS)
TRIGGER_WORDS_MAX = 6
GET = Options("S.GET", {"COUNT": Option("count", number)})
NEXT = Options("S.NEXT", {"MS": Option("within_ms", number)})
RUN = Options("S.RUN", {"ID": Option("key", text)})


def put(connection: Connection, request: Request) -> Pending:
    """Answer ``S.PUT``."""
    schedules = _schedules(connection)
    name = text("A schedule's name", request[1])
    words = [
        word.decode("utf-8", "backslashreplace") for word in request[2 : 2 + TRIGGER_WORDS_MAX]
    ]
    spec, used = parse(words)
    rest = 2 + used
    if len(request) < rest + 2:
        raise BadArg("S.PUT needs a queue and a payload after its trigger.")
    queue = queue_name(request[rest])
    task = TaskSpec(request[rest + 1], **TASK.parse(request, rest + 2))
    return Pending(schedules.put(name, spec, queue, task), _integer)


def listing(connection: Connection, request: Request) -> Pending:
    """Answer ``S.LIST``."""
    rights, schedules = connection.peer.rights, _schedules(connection)

    async def seen() -> list[dict[str, Any]]:
        return [row for row in await schedules.list() if rights.allow("schedule", row["name"])]

    return Pending(seen(), encoder.encode)


def get(connection: Connection, request: Request) -> Pending:
    """S.GET."""
    name, fields = text("A schedule's name", request[1]), GET.parse(request, 2)
    return Pending(_schedules(connection).get(name, **fields), encoder.encode)


def following(connection: Connection, request: Request) -> Pending:
    """S.NEXT."""
    fields, seen = NEXT.parse(request, 1), partial(connection.peer.rights.allow, "schedule")
    return Pending(_schedules(connection).outlook(**fields, seen=seen), encoder.encode)


def delete(connection: Connection, request: Request) -> Pending:
    """Answer ``S.DELETE``."""
    return Pending(_schedules(connection).delete(text("A schedule's name", request[1])), _integer)


def pause(connection: Connection, request: Request) -> Pending:
    """Answer ``S.PAUSE``."""
    return Pending(_schedules(connection).pause(text("A schedule's name", request[1])), _ok)


def resume(connection: Connection, request: Request) -> Pending:
    """Answer ``S.RESUME``."""
    return Pending(_schedules(connection).resume(text("A schedule's name", request[1])), _integer)


def run(connection: Connection, request: Request) -> Pending:
    """S.RUN."""
    fields = RUN.parse(request, 2)
    if fields.get("key") == "":
        raise BadArg("ID is empty; give an id, or no ID.")
    found = _schedules(connection).run(text("A schedule's name", request[1]), **fields)
    return Pending(found, encoder.encode)


def _schedules(connection: Connection) -> Schedules:
    schedules = connection.server.services.schedules
    if schedules is None:
        raise Error("This node serves no schedules.")
    return schedules


def _ok(result: None, resp: int) -> bytes:
    return encoder.OK


def _integer(result: int | bool, resp: int) -> bytes:
    return encoder.integer(int(result))


def _put_requires(request: Arguments) -> Iterable[Requirement]:
    """Require rights to the schedule, and to its queue, which stands behind the trigger."""
    _, used = parse(
        [word.decode("utf-8", "backslashreplace") for word in request[2 : 2 + TRIGGER_WORDS_MAX]]
    )
    yield ("schedule",), name_of(request[1])
    if len(request) > 2 + used:
        yield ("put",), name_of(request[2 + used])


COMMANDS = (
    Command(
        "S.PUT",
        put,
        6,
        ANY,
        depends(("schedule", "put"), _put_requires),
        "name {CRON expr [TZ zone] | EVERY ms | AT unix_ms} [CATCHUP none|one|all] "
        "queue payload [task options]",
        group="schedule",
        audited=first(1),
    ),
    Command("S.LIST", listing, 1, 1, LOGIN, group="schedule"),
    Command("S.GET", get, 2, 4, on(("schedule",), 1), "name [COUNT n]", group="schedule"),
    Command("S.NEXT", following, 1, 3, LOGIN, "[MS ms]", group="schedule"),
    Command(
        "S.DELETE", delete, 2, 2, on(("schedule",), 1), "name", group="schedule", audited=first(1)
    ),
    Command(
        "S.PAUSE", pause, 2, 2, on(("schedule",), 1), "name", group="schedule", audited=first(1)
    ),
    Command(
        "S.RESUME", resume, 2, 2, on(("schedule",), 1), "name", group="schedule", audited=first(1)
    ),
    Command(
        "S.RUN", run, 2, 4, on(("schedule",), 1), "name [ID id]", group="schedule", audited=first(1)
    ),
)
