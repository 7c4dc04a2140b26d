"""``tidewarden queue put|take|peek|kick|delete``: tasks by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import NodeLine, connected
from .options import DATA_DIR, NOTHING, USAGE, AsJson, DataDir, Url, stop
from .output import cell, print_answer, print_json, print_map, print_number, print_table

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]


def put(
    queue: Queue,
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="What to do; - reads it from standard input.")
    ],
    task_id: Annotated[
        str, typer.Option("--id", help="Its id: makes repeating the put safe.", show_default=False)
    ] = "",
    delay_ms: Annotated[
        int | None, typer.Option("--delay-ms", min=0, help="Not taken before so long.")
    ] = None,
    at_ms: Annotated[
        int | None, typer.Option("--at-ms", min=0, help="Not taken before this unix time.")
    ] = None,
    within_ms: Annotated[
        int | None, typer.Option("--within-ms", min=0, help="Wanted done within so long.")
    ] = None,
    deadline_ms: Annotated[
        int | None, typer.Option("--deadline-ms", min=0, help="Wanted done by this unix time.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=99, help="Lower goes first; 50 without.")
    ] = None,
    lease_ms: Annotated[
        int | None, typer.Option("--lease-ms", min=1, help="How long a take holds it.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", min=0, help="Takes before it is buried; 0: any.")
    ] = None,
    backoff_ms: Annotated[
        int | None, typer.Option("--backoff-ms", min=0, help="Wait after a failure, doubling.")
    ] = None,
    ttl_ms: Annotated[
        int | None,
        typer.Option("--ttl-ms", min=1, help="Buried when nobody took it within so long."),
    ] = None,
    lane: Annotated[
        str,
        typer.Option(
            "--lane",
            help="Few of one lane run at a time (lane_limit), lanes in turn.",
            show_default=False,
        ),
    ] = "",
    wait_ms: Annotated[
        int | None,
        typer.Option("--wait-ms", min=1, help="Wait so long for room in a queue with a capacity."),
    ] = None,
    if_exists: Annotated[
        str, typer.Option("--if-exists", help="keep, fail or replace a task of that --id.")
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Put a task; prints its id.

    Examples:

    tidewarden queue put mails '{"to": "ada@example.org"}' --delay-ms 5000 --priority 10

    gzip -c report | tidewarden queue put reports - --id report-7
    """
    options = {
        "ID": task_id or None,
        "DELAY": delay_ms,
        "AT": at_ms,
        "WITHIN": within_ms,
        "DEADLINE": deadline_ms,
        "PRIORITY": priority,
        "LEASE": lease_ms,
        "ATTEMPTS": attempts,
        "BACKOFF": backoff_ms,
        "TTL": ttl_ms,
        "LANE": lane or None,
        "IFEXISTS": if_exists or None,
        "WAIT": wait_ms,
    }
    with connected(url, data_dir) as node:
        answer = node.call("Q.PUT", queue, payload_bytes(payload), *_words(options))
    print_answer(as_json, {"id": answer}, cell(answer))


def take(
    queue: Queue,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="At most so many.")] = 1,
    wait_ms: Annotated[
        int, typer.Option("--wait-ms", min=0, help="Wait so long for the first.")
    ] = 0,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack", help="They are done: acknowledge them. Without it they are handed back."
        ),
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Take tasks and print their payloads, a line each. Exit code 5 when none came in time.

    A lease ends with its connection, and this one ends here: so the tasks are either acknowledged
    (--ack) or handed back.

    Examples:

    tidewarden queue take mails --wait-ms 10000

    tidewarden queue take mails --count 100 --ack --json
    """
    with connected(url, data_dir) as node:
        wait: list[str | int] = ["WAIT", wait_ms] if wait_ms else []
        tasks = node.call("Q.TAKE", "COUNT", count, *wait, "FROM", queue)
        # Printed first: should printing fail, the tasks come back with the closing connection.
        for task in tasks:
            fields = dict(
                zip(
                    ("queue", "id", "lease", "payload", "attempt", "deadline_ms", "lease_end_ms"),
                    task,
                    strict=False,
                )
            )
            print_answer(as_json, fields, f"{cell(fields['id'])}  {cell(fields['payload'])}")
        _settle(node, queue, tasks, ack)
    if not tasks:
        raise stop("no task came in time", NOTHING)


def peek(
    queue: Queue,
    task_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="One task.", show_default=False)
    ] = "",
    state: Annotated[
        str,
        typer.Option("--state", help="A page of those delayed, ready, leased, buried or waiting."),
    ] = "",
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="Tasks on the page.")] = 20,
    after: Annotated[
        str, typer.Option("--after", help="Cursor that the page before ended with.")
    ] = "",
    match: Annotated[
        str, typer.Option("--match", help="Only those that fit a glob; * stands for anything.")
    ] = "",
    match_in: Annotated[
        str, typer.Option("--match-in", help="What has to fit: payload, id or reason.")
    ] = "",
    where: Annotated[
        str,
        typer.Option("--where", help="Only those with a value in their JSON: '$.user.id=42'."),
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Look at a task, or at a page of those in one state, without taking anything.

    A search looks at a thousand tasks at most, says at how many, and goes on with --after.

    Examples:

    tidewarden queue peek mails report-7

    tidewarden queue peek mails --state buried --count 50

    tidewarden queue peek mails --state buried --match '*@example.org*' --where '$.try=3'
    """
    if bool(task_id) == bool(state) or (task_id and (match or match_in or where)):
        raise stop("give an ID or --state, one of the two; a search is with --state", USAGE)
    with connected(url, data_dir) as node:
        if task_id:
            task = node.call("Q.PEEK", queue, task_id)
            if as_json:
                print_json(task)
            else:
                print_map(task)
            return
        options = {"AFTER": after, "MATCH": match, "IN": match_in, "WHERE": where}
        words = _words({name: value or None for name, value in options.items()})
        tasks, following, *told = node.call("Q.PEEK", queue, "STATE", state, "COUNT", count, *words)
    if as_json:
        print_json({"tasks": tasks, "after": following, **dict(*told)})
        return
    for looked in told:
        long = f", {looked['unread']} of them too long for --where" if looked["unread"] else ""
        typer.echo(f"looked at {looked['looked']} tasks{long}")
    if not tasks and not following:
        fit = " and fits" if told else ""
        raise stop(f"no task of {queue} is {state}{fit}", NOTHING)
    columns = list(dict.fromkeys(key for task in tasks for key in task))
    print_table(columns, [[task.get(column) for column in columns] for task in tasks])
    if following:
        typer.echo(f"more: --after {cell(following)}")


Every = Annotated[bool, typer.Option("--all", help="All of them.")]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", help="Only those buried for a reason that begins so.", show_default=False
    ),
]
ReasonIs = Annotated[
    str | None,
    typer.Option("--reason-is", help="Only those buried for this very reason.", show_default=False),
]
Age = Annotated[
    int | None,
    typer.Option("--age-ms", min=0, help="Only those buried so long ago.", show_default=False),
]


def kick(
    queue: Queue,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="At most so many.", show_default=False)
    ] = None,
    task_id: Annotated[str, typer.Option("--id", help="This one.", show_default=False)] = "",
    every: Every = False,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    age_ms: Age = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            help="Another payload for the one of --id; - reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Make buried tasks ready again, with their attempts forgotten; prints how many.

    Examples:

    tidewarden queue kick mails --count 100 --reason 'http 5'

    tidewarden queue kick mails --all --age-ms 3600000

    tidewarden queue kick mails --id report-7 --payload '{"to": "ada@example.org"}'
    """
    if (count is not None) + bool(task_id) + every != 1:
        raise stop("give --count, --id or --all, one of them", USAGE)
    if payload is not None and not task_id:
        raise stop("a --payload is that of one task: give its --id", USAGE)
    if task_id and _chosen(count, reason, reason_is, age_ms):
        raise stop("--id names the task, with no other option but --payload", USAGE)
    what: list[str | int | bytes] = [*_buried(count, reason, reason_is, age_ms)]
    if task_id:
        what = ["ID", task_id]
    if payload is not None:
        what += ["PAYLOAD", payload_bytes(payload)]
    with connected(url, data_dir) as node:
        kicked = node.call("Q.KICK", queue, *what)
    print_answer(as_json, {"kicked": kicked}, kicked)


def delete(
    queue: Queue,
    task_id: Id,
    force: Annotated[bool, typer.Option("--force", help="Even while somebody holds it.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Delete a task. Exit code 5 when there is none of that id.

    Example: tidewarden queue delete mails report-7
    """
    with connected(url, data_dir) as node:
        deleted = bool(node.call("Q.DELETE", queue, task_id, *(["FORCE"] if force else [])))
    if as_json:
        print_json({"deleted": deleted})
    if not deleted:
        raise stop(f"there is no task {task_id!r}", NOTHING)


def purge(
    queue: Queue,
    state: Annotated[
        str,
        typer.Option(
            "--state",
            help="Only those delayed, ready, leased, buried or waiting.",
            show_default=False,
        ),
    ] = "",
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="At most so many.", show_default=False)
    ] = None,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    age_ms: Age = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Delete every task of a queue, or those in one state; prints how many.

    Of buried tasks some may be chosen as for a kick.

    Examples:

    tidewarden queue purge mails --state ready --yes

    tidewarden queue purge mails --state buried --reason-is '550 no such mailbox' --yes
    """
    some = _chosen(count, reason, reason_is, age_ms)
    if some and state != "buried":
        raise stop("--count, --reason, --reason-is and --age-ms are for --state buried", USAGE)
    if not yes and not typer.confirm(
        f"Delete {f'all {state}' if state else 'all'} tasks of {queue}"
        f"{' that are chosen' if some else ''}?",
        err=True,
    ):
        raise stop("nothing was deleted", NOTHING)
    with connected(url, data_dir) as node:
        words = ["STATE", state] if state else []
        print_number("purged", node.call("Q.PURGE", queue, *words, *some), as_json)


def drop(
    queue: Queue,
    force: Annotated[
        bool, typer.Option("--force", help="With its tasks, and from its topics.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Drop a queue, which has to be empty; prints how many tasks went with it.

    Example: tidewarden queue drop mails --force --yes
    """
    what = f"{queue} with all its tasks" if force else queue
    if not yes and not typer.confirm(f"Drop {what}?", err=True):
        raise stop("nothing was dropped", NOTHING)
    with connected(url, data_dir) as node:
        print_number("dropped", node.call("Q.DROP", queue, *(["FORCE"] if force else [])), as_json)


def release_all(
    queue: Queue,
    holder: Annotated[
        str, typer.Option("--holder", metavar="NODE.BOOT", help="What this process took.")
    ] = "",
    session: Annotated[
        str, typer.Option("--session", metavar="UUID", help="What this session holds.")
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    End every lease of a queue, or those of one holder: its tasks are ready again; prints how many.

    Example: tidewarden queue release-all mails
    """
    whose = _words({"HOLDER": holder or None, "SESSION": session or None})
    with connected(url, data_dir) as node:
        print_number("released", node.call("Q.RELEASEALL", queue, *whose), as_json)


def move(
    queue: Queue,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The queue they go to.")],
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="At most so many.", show_default=False)
    ] = None,
    every: Every = False,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    age_ms: Age = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Move buried tasks to another queue, where they are new; prints how many.

    Example: tidewarden queue move mails-dead mails --count 100
    """
    if (count is None) != every:
        raise stop("give --count or --all, one of the two", USAGE)
    with connected(url, data_dir) as node:
        print_number(
            "moved",
            node.call("Q.MOVE", queue, *_buried(count, reason, reason_is, age_ms), "TO", target),
            as_json,
        )


def _buried(
    count: int | None, reason: str | None, reason_is: str | None, age_ms: int | None
) -> list[str | int]:
    words = _chosen(count, reason, reason_is, age_ms)
    return words if count is not None else ["ALL", *words]


def _chosen(
    count: int | None, reason: str | None, reason_is: str | None, age_ms: int | None
) -> list[str | int]:
    if reason == "":  # as of a shell's variable that is not set
        raise stop("--reason is empty, which every reason begins with: leave it out", USAGE)
    reasons = {"REASON": reason, "REASONIS": reason_is}
    return _words({"COUNT": count, **reasons, "AGE": age_ms})


def payload_bytes(text: str) -> bytes:
    """Return a payload argument's bytes; ``-`` stands for all of standard input."""
    return sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")


def _words(options: dict[str, str | int | None]) -> list[str | int]:
    return [word for name, value in options.items() if value is not None for word in (name, value)]


def _settle(node: NodeLine, queue: str, tasks: list[Any], ack: bool) -> None:
    """Acknowledge what was taken, or give it back so that the take counts for nothing."""
    if ack and tasks:
        answer = node.call("Q.ACK", queue, *(word for task in tasks for word in (task[1], task[2])))
        lost = (
            [task[1] for task, done in zip(tasks, answer, strict=True) if not done]
            if isinstance(answer, list)
            else []
        )
        for task_id in lost:
            typer.echo(
                f"tidewarden: {cell(task_id)}: the lease had ended; somebody else gets it", err=True
            )
    elif tasks:
        node.batch([("Q.RELEASE", queue, task[1], task[2]) for task in tasks])
