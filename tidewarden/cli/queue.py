"""
``tidewarden queue …``: look at queues and steer them; their tasks are :mod:`tidewarden.cli.task`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import consumers, task
from .connection import connected
from .options import DATA_DIR, USAGE, AsJson, DataDir, Url, stop
from .output import (
    cell,
    moment,
    print_answer,
    print_json,
    print_map,
    print_mark,
    print_number,
    print_table,
)
from .task import Queue

app = typer.Typer(
    help="Look at queues, and put, take and mend tasks by hand.", no_args_is_help=True
)
app.command("put")(task.put)
app.command("take")(task.take)
app.command("peek")(task.peek)
app.command("kick")(task.kick)
app.command("delete")(task.delete)
app.command("purge")(task.purge)
app.command("drop")(task.drop)
app.command("release-all")(task.release_all)
app.command("holders")(consumers.holders)
app.command("move")(task.move)


@app.command("list")
def list_(
    topics: Annotated[
        bool, typer.Option("--topics", help="The topics, each with its queues.")
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    List the queues, or the topics.

    Example: tidewarden queue list
    """
    with connected(url, data_dir) as node:
        names = node.call("Q.LIST", *(["TOPICS"] if topics else []))
    if as_json:
        print_json(names)
    elif topics:
        print_map(names)
    else:
        for name in names:
            typer.echo(cell(name))


@app.command("stats")
def stats(
    queue: Annotated[
        str,
        typer.Argument(metavar="[QUEUE]", help="One queue; without it, all.", show_default=False),
    ] = "",
    shards: Annotated[
        bool, typer.Option("--shards", help="Each shard's counts, too; needs a QUEUE.")
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Count tasks by state, and what has happened to them.

    Example: tidewarden queue stats mails --json
    """
    if shards and not queue:
        raise stop("--shards needs a QUEUE", USAGE)
    with connected(url, data_dir) as node:
        answer = node.call("Q.STATS", *([queue] if queue else []), *(["SHARDS"] if shards else []))
    if as_json:
        print_json(answer)
    else:
        print_map(answer)


@app.command("reasons")
def reasons(
    queue: Queue, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Count a queue's buried tasks by why they were buried.

    `queue kick`, `move` and `purge` take those of one reason by --reason-is.

    Example: tidewarden queue reasons mails
    """
    with connected(url, data_dir) as node:
        found = node.call("Q.REASONS", queue)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["tasks"],
            moment(one["first_ms"]),
            moment(one["last_ms"]),
            one["example"],
            one["reason"],
        )
        for one in found["reasons"]
    ]
    print_table(("tasks", "first", "last", "example", "reason"), rows)
    if found["others"]:
        typer.echo(f"{found['others']} tasks have further reasons")
    if found["more"]:
        typer.echo(f"the {found['tasks']} tasks that were buried first were looked at")
    print_mark((found,))


@app.command("pause")
def pause(
    queue: Queue,
    ms: Annotated[
        int | None, typer.Option("--ms", min=1, help="So long; without it, until resumed.")
    ] = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Stop takes from a queue. Puts go on.

    Example: tidewarden queue pause mails --ms 60000
    """
    with connected(url, data_dir) as node:
        _done(node.call("Q.PAUSE", queue, *(("MS", ms) if ms else ())), as_json)


@app.command("resume")
def resume(
    queue: Queue, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Let takes go on after a pause.

    Example: tidewarden queue resume mails
    """
    with connected(url, data_dir) as node:
        _done(node.call("Q.RESUME", queue), as_json)


@app.command("config")
def config(
    queue: Queue,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="What to set.")
    ] = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show a queue's settings, or change some.

    Example: tidewarden queue config mails lease_ms=60000 late_share=4
    """
    pairs = [text.partition("=") for text in settings or []]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise stop(f"{wrong[0]!r}: found no '='; allowed: NAME=VALUE", USAGE)
    changes = [word for name, _, value in pairs for word in (name, value)]
    with connected(url, data_dir) as node:
        if changes:
            node.call("Q.CONFIG", queue, "SET", *changes)
        answer = node.call("Q.CONFIG", queue)
    if as_json:
        print_json(answer)
    else:
        print_map(answer)


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A name that no queue has.")]


@app.command("link")
def link(
    topic: Topic,
    queue: Queue,
    expire_ms: Annotated[
        int | None,
        typer.Option("--expire-ms", min=1, help="The queue ends when nobody uses it for so long."),
    ] = None,
    capacity: Annotated[
        int | None, typer.Option("--capacity", min=1, help="The queue holds so many tasks at most.")
    ] = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Subscribe a queue to a topic: what is put into the topic reaches each of its queues.

    Prints 1, or 0 when it was.

    Example: tidewarden queue link orders mails
    """
    with connected(url, data_dir) as node:
        options = [("EXPIRE", expire_ms), ("CAPACITY", capacity)]
        words = [word for name, value in options if value is not None for word in (name, value)]
        print_number("linked", node.call("Q.LINK", topic, queue, *words), as_json)


@app.command("unlink")
def unlink(
    topic: Topic,
    queue: Queue,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Take a queue from a topic; what it holds stays. Prints 1, or 0 when it was not linked.

    Example: tidewarden queue unlink orders mails
    """
    with connected(url, data_dir) as node:
        print_number("unlinked", node.call("Q.UNLINK", topic, queue), as_json)


@app.command("drop-topic")
def drop_topic(
    topic: Topic,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Drop a topic; its queues stay. Prints how many were linked to it.

    Example: tidewarden queue drop-topic orders
    """
    with connected(url, data_dir) as node:
        print_number("unlinked", node.call("Q.DROPTOPIC", topic), as_json)


def _done(answer: Any, as_json: bool) -> None:
    print_answer(as_json, {"ok": True}, cell(answer))
