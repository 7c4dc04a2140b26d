"""
Serves the ``Q.*`` that look at tasks and queues and steer them.

Each goes from arguments to one call, and from its result to a reply.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import pairwise
from typing import Any

from tidewarden.clock import in_turns
from tidewarden.config.rights import QUEUE_WORDS, Rights
from tidewarden.errors import BadArg, Internal, NotFound
from tidewarden.queue import Queues
from tidewarden.queue.buried import ALL
from tidewarden.queue.reads.condition import condition_of
from tidewarden.queue.task import Changes
from tidewarden.server.access.required_rights import (
    ADMIN,
    LOGIN,
    TAKE_OR_ADMIN,
    Arguments,
    Requirement,
    depends,
    name_of,
    on,
)
from tidewarden.server.audit.audited import but_payloads, when, whole
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending

from .command import ANY, TOGETHER_LONG_MAX, Command
from .consumer import some_text
from .options import MAX_STALE, Option, Options, data, lowered, number, text
from .queue import TASK_OPTIONS, integer, ok, queue_name

BURIED = {
    "COUNT": Option("count", number, rival="all"),
    "ALL": Option("all", None, rival="count"),
    "REASON": Option("reason_prefix", text, rival="reason"),
    "REASONIS": Option("reason", text, rival="reason_prefix"),
    "AGE": Option("age_ms", number),
}
KICK = Options(
    "Q.KICK",
    {
        "ID": Option("task_id", text),
        "PAYLOAD": Option("payload", data),
        "BURIED": Option("buried_ms", number),
        **BURIED,
    },
)
UPDATE = Options(
    "Q.UPDATE",
    {
        "PAYLOAD": Option("payload", data),
        "DELAY": TASK_OPTIONS["DELAY"],
        "AT": TASK_OPTIONS["AT"],
        "DEADLINE": TASK_OPTIONS["DEADLINE"],
        "WITHIN": TASK_OPTIONS["WITHIN"],
        "PRIORITY": TASK_OPTIONS["PRIORITY"],
        "LEASE": Option("lease", number),
    },
)
DELETE = Options(
    "Q.DELETE",
    {
        "LEASE": Option("lease", number, rival="force"),
        "FORCE": Option("force", None, rival="lease"),
    },
)
PAGE = Options(
    "Q.PEEK",
    {
        "STATE": Option("state", lowered),
        "COUNT": Option("count", number),
        "AFTER": Option("after", text),
        "MATCH": Option("match", text),
        "IN": Option("match_in", lowered),
        "WHERE": Option("where", text),
        "MAXSTALE": MAX_STALE,
    },
)
PEEK = Options("Q.PEEK", {"MAXSTALE": MAX_STALE})
REASONS = Options("Q.REASONS", {"MAXSTALE": MAX_STALE})
PAUSE = Options("Q.PAUSE", {"MS": Option("ms", number)})
PURGE = Options("Q.PURGE", {"STATE": Option("state", lowered), **BURIED})
MOVE = Options("Q.MOVE", {"TO": Option("target", lambda word, value: queue_name(value)), **BURIED})
LINK = Options(
    "Q.LINK", {"EXPIRE": Option("expire_ms", number), "CAPACITY": Option("capacity", number)}
)
RELEASE_ALL = Options(
    "Q.RELEASEALL",
    {
        "HOLDER": Option("holder", some_text, rival="session"),
        "SESSION": Option("session", some_text, rival="holder"),
    },
)
DROP = Options("Q.DROP", {"FORCE": Option("force", None)})
STATS = Options("Q.STATS", {"SHARDS": Option("by_shard", None), "MAXSTALE": MAX_STALE})
LIST = Options("Q.LIST", {"TOPICS": Option("topics", None)})
CHECK = Options("Q.CHECK", {"REPAIR": Option("repair", None)})
PAGE_COUNT = 100


def kick(connection: Connection, request: Request) -> Pending:
    """Q.KICK."""
    queue, buried = queue_name(request[1]), connection.server.queues.buried
    fields = KICK.parse(request, 2)
    if "payload" in fields and "task_id" in fields:
        return Pending(buried.put_again(queue, fields.pop("task_id"), **fields), integer)
    if "task_id" in fields:
        if len(fields) > 1:
            raise BadArg(
                "Q.KICK takes ID id, which names the task, with no other option but PAYLOAD and"
                " BURIED."
            )
        return Pending(buried.kick(queue, ids=[fields["task_id"]]), integer)
    if fields.keys() & {"payload", "buried_ms"}:
        raise BadArg("Q.KICK takes PAYLOAD and BURIED with ID id, which names the task.")
    _count_of(fields, "Q.KICK needs COUNT n, ALL or ID id.")
    return Pending(buried.kick(queue, **fields), integer)


def _count_of(fields: dict[str, Any], missing: str) -> None:
    """Read a count; ALL is no limit. Raises: BadArg: neither was given."""
    if fields.pop("all", False):
        fields["count"] = ALL
    if "count" not in fields:
        raise BadArg(missing)


def update(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.UPDATE``."""
    queue, task_id = queue_name(request[1]), text("An id", request[2])
    fields = UPDATE.parse(request, 3)
    if not fields.keys() - {"lease"}:
        raise BadArg(
            "Q.UPDATE needs something to change: PAYLOAD, DELAY, AT, DEADLINE, WITHIN or PRIORITY."
        )
    return Pending(connection.server.queues.admin.update(queue, task_id, Changes(**fields)), ok)


def delete(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.DELETE``."""
    queue, task_id = queue_name(request[1]), text("An id", request[2])
    return Pending(
        connection.server.queues.admin.delete(queue, task_id, **DELETE.parse(request, 3)), integer
    )


def peek(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.PEEK`` of one task, or of a page of those in one state."""
    queue = queue_name(request[1])
    queues = connection.server.queues
    if len(request) == 3 or (len(request) == 5 and request[3].upper() == b"MAXSTALE"):
        task_id, stale = text("An id", request[2]), PEEK.parse(request, 3)
        return Pending(queues.admin.peek(queue, task_id, **stale, marks=True), encoder.encode)
    fields = PAGE.parse(request, 2)
    if "state" not in fields:
        raise BadArg(
            "Q.PEEK needs an id, or STATE and one of delayed, ready, leased, buried, waiting."
        )
    if fields.keys() & {"match", "match_in", "where"}:
        return _search(queues, queue, fields)
    page = queues.admin.page(
        queue,
        fields["state"],
        fields.get("count", PAGE_COUNT),
        fields.get("after", ""),
        fields.get("max_stale_ms", 0),
        marks=True,
    )
    return Pending(page, encoder.encode)


def _search(queues: Queues, queue: str, fields: dict[str, Any]) -> Pending:
    """Find tasks, answered as a page of them is, and how far it was looked."""
    glob, place = fields.pop("match", None), fields.pop("match_in", "")
    if place and glob is None:
        raise BadArg("Q.PEEK takes IN with MATCH glob.")
    condition = condition_of(glob, place or "payload", fields.pop("where", None))

    async def found() -> list[Any]:
        told = await queues.search.find(queue, condition=condition, **fields, marks=True)
        return [told.pop("tasks"), told.pop("after"), told]

    return Pending(found(), encoder.encode)


def reasons(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.REASONS``."""
    queue, stale = queue_name(request[1]), REASONS.parse(request, 2)
    found = connection.server.queues.buried.reasons(queue, **stale, marks=True)
    return Pending(found, encoder.encode)


def wait(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.WAIT``."""
    server = connection.server
    queue, task_id, wait_ms = (
        queue_name(request[1]),
        text("An id", request[2]),
        number("The time to wait", request[3]),
    )
    if wait_ms:
        connection.check_wait()
    return Pending(server.queues.wait(queue, task_id, wait_ms), _ending, wait_ms > 0)


def pause(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.PAUSE``."""
    ms = PAUSE.parse(request, 2).get("ms")
    return Pending(connection.server.queues.admin.pause(queue_name(request[1]), ms), ok)


def resume(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.RESUME``."""
    return Pending(connection.server.queues.admin.resume(queue_name(request[1])), ok)


def purge(connection: Connection, request: Request) -> Pending:
    """Q.PURGE."""
    queue, queues = queue_name(request[1]), connection.server.queues
    fields = PURGE.parse(request, 2)
    state = fields.pop("state", "")
    if not fields:
        return Pending(queues.bulk.purge(queue, state), integer)
    if state != "buried":
        raise BadArg("Q.PURGE takes COUNT, REASON, REASONIS and AGE with STATE buried alone.")
    if not fields.keys() & {"count", "all"}:
        fields["count"] = ALL
    _count_of(fields, "")
    return Pending(queues.buried.delete(queue, **fields), integer)


def drop(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.DROP``."""
    queue, fields = queue_name(request[1]), DROP.parse(request, 2)
    return Pending(connection.server.queues.dropped.drop(queue, **fields), integer)


def drop_topic(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.DROPTOPIC``."""
    return Pending(connection.server.queues.dropped.drop_topic(queue_name(request[1])), integer)


def release_all(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.RELEASEALL``."""
    queue, fields = queue_name(request[1]), RELEASE_ALL.parse(request, 2)
    return Pending(connection.server.queues.bulk.release_all(queue, **fields), integer)


def move(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.MOVE``."""
    fields = MOVE.parse(request, 2)
    _count_of(fields, "Q.MOVE needs COUNT n, or ALL, and TO queue.")
    if "target" not in fields:
        raise BadArg("Q.MOVE needs TO queue.")
    return Pending(
        connection.server.queues.buried.move(
            queue_name(request[1]), fields.pop("target"), **fields
        ),
        integer,
    )


def link(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.LINK``."""
    topic, queue = queue_name(request[1]), queue_name(request[2])
    return Pending(
        connection.server.queues.topics.link(topic, queue, LINK.parse(request, 3)), integer
    )


def unlink(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.UNLINK``."""
    return Pending(
        connection.server.queues.topics.unlink(queue_name(request[1]), queue_name(request[2])),
        integer,
    )


def check(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.CHECK`` of one queue, or of all, the system's too: it shows no task's content."""
    queues = connection.server.queues
    if len(request) == 1:
        request = [request[0], b"*"]
    repair = "repair" in CHECK.parse(request, 2)
    if request[1] != b"*":
        return Pending(
            queues.consistency.check(text("A queue's name", request[1]), repair=repair),
            encoder.encode,
        )

    async def every() -> AsyncIterator[Mapping[str, Any]]:
        for name in await queues.catalog.names():
            with contextlib.suppress(NotFound):  # it was dropped since the names were read
                yield await queues.consistency.check(name, repair=repair)

    return Pending(encoder.encode_list(every(), connection.resp), encoder.encoded)


def stats(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.STATS`` of one queue, or of all."""
    queues = connection.server.queues
    rights = connection.peer.rights
    if len(request) > 1:
        name, fields = queue_name(request[1]), STATS.parse(request, 2)

        async def one() -> Mapping[str, Any]:
            found = await queues.admin.stats(name, **fields, marks=True)
            if "queues" in found:  # a topic
                found = {
                    **found,
                    "queues": [queue for queue in found["queues"] if rights.see(queue)],
                }
            return found

        return Pending(one(), encoder.encode)

    async def every() -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        for name in await seen_names(await queues.admin.names(), rights):
            # Its settings cannot be read (the doctor names it), or it was dropped meanwhile.
            with contextlib.suppress(Internal, NotFound):
                yield name, await queues.admin.stats(name, marks=True)

    return Pending(encoder.encode_map(every(), connection.resp), encoder.encoded)


def names(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.LIST``."""
    queues, rights = connection.server.queues, connection.peer.rights
    if LIST.parse(request, 1):
        return Pending(seen_topics(queues, rights), encoder.encode)

    async def seen() -> list[str]:
        return await seen_names(await queues.catalog.names(), rights)

    return Pending(seen(), encoder.encode)


async def seen_names(names: Iterable[str], rights: Rights) -> list[str]:
    """Choose the users' queues of which a user of these rights may know."""
    return [name async for name in in_turns(names) if name[:1] != "_" and rights.see(name)]


async def seen_topics(queues: Queues, rights: Rights) -> dict[str, list[str]]:
    """List the topics of which a user of these rights may know, and of their queues likewise."""
    found = {}
    async for topic, linked in in_turns((await queues.topics.all()).items(), 1):
        if rights.see(topic):
            found[topic] = [name async for name in in_turns(linked) if rights.see(name)]
    return found


def config(connection: Connection, request: Request) -> Pending:
    """Answer ``Q.CONFIG``, which reads or sets."""
    queue = queue_name(request[1])
    queues = connection.server.queues
    if len(request) == 2:
        return Pending(queues.admin.settings(queue), encoder.encode)
    if request[2].upper() != b"SET" or len(request) < 5 or len(request) % 2 == 0:
        raise BadArg("Q.CONFIG takes a queue, and then nothing or SET and a value for each name.")
    values: dict[str, Any] = {}
    for position in range(3, len(request), 2):
        name = text("A setting's name", request[position]).lower()
        if name in values:
            raise BadArg(f"{name} is given twice.")
        values[name] = text(name, request[position + 1])
    return Pending(queues.admin.configure(queue, values), ok)


def _ending(result: tuple[str, bytes], resp: int) -> bytes:
    return encoder.encode(list(result), resp)


def _change_requires(request: Arguments) -> Iterable[Requirement]:
    """
    Require a right for Q.UPDATE and Q.DELETE: a consumer's, or an administrator's.

    Under a lease number, which 0 is not, it is the consumer's affair.
    """
    leases = [
        after
        for word, after in zip(request[3::2], request[4::2], strict=False)
        if word.upper() == b"LEASE"
    ]
    held = any(lease.isdigit() and lease.strip(b"0") for lease in leases)
    return [(TAKE_OR_ADMIN if held else ADMIN, name_of(request[1]))]


def _config_requires(request: Arguments) -> Iterable[Requirement]:
    return [(QUEUE_WORDS if len(request) == 2 else ADMIN, name_of(request[1]))]


def _move_requires(request: Arguments) -> Iterable[Requirement]:
    targets = [after for word, after in pairwise(request[2:]) if word.upper() == b"TO"]
    return [(ADMIN, name_of(name)) for name in (request[1], *targets)]


def _check_requires(request: Arguments) -> Iterable[Requirement]:
    one = len(request) > 1 and request[1] != b"*"
    return [(ADMIN, name_of(request[1]) if one else None)]


def _stats_requires(request: Arguments) -> Iterable[Requirement]:
    return [(QUEUE_WORDS, name_of(request[1]))] if len(request) > 1 else ()


COMMANDS = (
    Command(
        "Q.KICK",
        kick,
        3,
        8,
        on(ADMIN, 1),
        "queue {COUNT n | ALL} [REASON prefix | REASONIS reason] [AGE ms]"
        " | queue ID id [PAYLOAD bytes [BURIED unix_ms]]",
        group="queue",
        audited=but_payloads(),
    ),
    Command(
        "Q.UPDATE",
        update,
        4,
        ANY,
        depends(TAKE_OR_ADMIN, _change_requires),
        "queue id [PAYLOAD bytes] [AT unix_ms | DELAY ms] [DEADLINE unix_ms | WITHIN ms] "
        "[PRIORITY n] [LEASE n]",
        group="queue",
    ),
    Command(
        "Q.DELETE",
        delete,
        3,
        5,
        depends(TAKE_OR_ADMIN, _change_requires),
        "queue id [LEASE n | FORCE]",
        group="queue",
    ),
    Command(
        "Q.PEEK",
        peek,
        3,
        16,
        on(TAKE_OR_ADMIN, 1),
        "queue id [MAXSTALE ms] | queue STATE s [MATCH glob [IN payload|id|reason]]"
        " [WHERE $.path=value] [COUNT n] [AFTER cursor] [MAXSTALE ms]",
        group="queue",
        together=TOGETHER_LONG_MAX,
    ),
    Command("Q.REASONS", reasons, 2, 4, on(TAKE_OR_ADMIN, 1), "queue [MAXSTALE ms]", group="queue"),
    Command("Q.WAIT", wait, 4, 4, on(("put", "admin"), 1), "queue id ms", group="queue"),
    Command("Q.PAUSE", pause, 2, 4, on(ADMIN, 1), "queue [MS ms]", group="queue", audited=whole()),
    Command("Q.RESUME", resume, 2, 2, on(ADMIN, 1), "queue", group="queue", audited=whole()),
    Command(
        "Q.STATS",
        stats,
        1,
        5,
        depends(QUEUE_WORDS, _stats_requires),
        "[queue [SHARDS] [MAXSTALE ms]]",
        group="queue",
    ),
    Command("Q.LIST", names, 1, 2, LOGIN, "[TOPICS]", group="queue"),
    Command(
        "Q.LINK",
        link,
        3,
        7,
        on(ADMIN, 1, 2),
        "topic queue [EXPIRE ms] [CAPACITY n]",
        group="queue",
        audited=whole(),
    ),
    Command(
        "Q.UNLINK", unlink, 3, 3, on(ADMIN, 1, 2), "topic queue", group="queue", audited=whole()
    ),
    Command(
        "Q.CONFIG",
        config,
        2,
        ANY,
        depends(QUEUE_WORDS, _config_requires),
        "queue [SET name value …]",
        group="queue",
        audited=when(b"SET"),
    ),
    Command(
        "Q.PURGE",
        purge,
        2,
        10,
        on(ADMIN, 1),
        "queue [STATE s] | queue STATE buried [COUNT n | ALL] [REASON prefix | REASONIS reason]"
        " [AGE ms]",
        group="queue",
        audited=whole(),
    ),
    Command("Q.DROP", drop, 2, 3, on(ADMIN, 1), "queue [FORCE]", group="queue", audited=whole()),
    Command("Q.DROPTOPIC", drop_topic, 2, 2, on(ADMIN, 1), "topic", group="queue", audited=whole()),
    Command(
        "Q.RELEASEALL",
        release_all,
        2,
        4,
        on(ADMIN, 1),
        "queue [HOLDER node.boot | SESSION uuid]",
        group="queue",
        audited=whole(),
    ),
    Command(
        "Q.MOVE",
        move,
        5,
        10,
        depends(ADMIN, _move_requires),
        "queue {COUNT n | ALL} TO queue [REASON prefix | REASONIS reason] [AGE ms]",
        group="queue",
        audited=whole(),
    ),
    Command(
        "Q.CHECK",
        check,
        1,
        3,
        depends(ADMIN, _check_requires),
        "queue|* [REPAIR]",
        group="queue",
        audited=when(b"REPAIR"),
    ),
)
