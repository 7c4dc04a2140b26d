"""``tidewarden schedule …``: tasks that are put at times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import redis
import typer

from .connection import connected
from .options import DATA_DIR, NOTHING, USAGE, AsJson, DataDir, Url, stop
from .output import cell, moment, print_answer, print_json, print_table
from .task import payload_bytes

app = typer.Typer(
    help="Put a task at times: by cron, every so often, or once.", no_args_is_help=True
)
COLUMNS = ("name", "queue", "when", "zone", "catchup", "next (UTC)", "state")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@app.command("put")
def put(
    name: Name,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue that gets the task.")],
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD", help="The task's payload; - reads it from standard input."
        ),
    ],
    cron: Annotated[
        str,
        typer.Option(
            "--cron", help="Five fields: minute hour day month weekday (0 and 7: Sunday)."
        ),
    ] = "",
    zone: Annotated[
        str, typer.Option("--tz", help="Time zone of --cron, as Europe/Berlin. Without it: UTC.")
    ] = "",
    every_ms: Annotated[
        int, typer.Option("--every-ms", min=0, help="Every so many milliseconds.")
    ] = 0,
    at_ms: Annotated[
        int, typer.Option("--at-ms", min=0, help="Once, at this unix time in milliseconds.")
    ] = 0,
    catchup: Annotated[
        str,
        typer.Option(
            "--catchup",
            help="Ticks missed while no leader was, or while it was paused: none, one or all.",
        ),
    ] = "",
    priority: Annotated[
        int | None,
        typer.Option("--priority", min=0, max=99, help="Of each task; lower goes first."),
    ] = None,
    within_ms: Annotated[
        int | None, typer.Option("--within-ms", min=0, help="Its deadline, from the tick on.")
    ] = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Put a schedule, or replace the one of that name.

    Give exactly one of --cron, --every-ms and --at-ms.

    Each tick puts one task in the whole cluster, whoever leads.

    Examples:

    tidewarden schedule put nightly reports '{"kind": "daily"}' --cron '30 2 * * 1-5' --tz
    Europe/Berlin

    tidewarden schedule put beat pings hello --every-ms 15000
    """
    if (bool(cron) + bool(every_ms) + bool(at_ms)) != 1:
        raise stop("give exactly one of --cron, --every-ms and --at-ms", USAGE)
    if zone and not cron:
        raise stop("--tz belongs to --cron", USAGE)
    command: list[str | bytes | int] = ["S.PUT", name]
    if cron:
        command += ["CRON", cron, *(["TZ", zone] if zone else [])]
    else:
        command += ["EVERY", every_ms] if every_ms else ["AT", at_ms]
    if catchup:
        command += ["CATCHUP", catchup]
    command += [queue, payload_bytes(payload)]
    for word, value in (("PRIORITY", priority), ("WITHIN", within_ms)):
        if value is not None:
            command += [word, value]
    with connected(url, data_dir) as node:
        answer = node.call(*command)
    if as_json:
        print_json({"name": name, "next_ms": answer})
    else:
        typer.echo(f"OK, next at {moment(answer)} UTC" if isinstance(answer, int) else answer)


@app.command("list")
def list_(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    List the schedules.

    Example: tidewarden schedule list --json
    """
    with connected(url, data_dir) as node:
        schedules: list[dict[str, Any]] = node.call("S.LIST")
    if as_json:
        print_json(schedules)
    elif not schedules:
        raise stop("there are no schedules", NOTHING)
    else:
        print_table(COLUMNS, [_row(schedule) for schedule in schedules])


@app.command("delete")
def delete(
    name: Name, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Delete a schedule.

    Tasks that it has put already stay. Exit code 5 when there is none of that name.

    Example: tidewarden schedule delete nightly
    """
    with connected(url, data_dir) as node:
        deleted = bool(node.call("S.DELETE", name))
    if as_json:
        print_json({"deleted": deleted})
    if not deleted:
        raise stop(f"there is no schedule {name!r}", NOTHING)
    if not as_json:
        typer.echo("OK")


@app.command("pause")
def pause(
    name: Name, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Pause a schedule: it puts nothing until it is resumed.

    Exit code 5 when there is none of that name.

    Example: tidewarden schedule pause nightly
    """
    _stand("S.PAUSE", name, url, data_dir)
    print_answer(as_json, {"name": name, "state": "paused"}, "OK")


@app.command("resume")
def resume(
    name: Name, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Resume a paused schedule.

    What it missed is made up for as its --catchup says: one task (unless told otherwise), none, or
    all. Exit code 5 when there is none of that name.

    Example: tidewarden schedule resume nightly
    """
    next_ms = _stand("S.RESUME", name, url, data_dir)
    print_answer(as_json, {"name": name, "next_ms": next_ms}, f"OK, next at {moment(next_ms)} UTC")


@app.command("run")
def run(
    name: Name, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Put a schedule's task now, once; prints its id. The schedule goes on as it was.

    Exit code 5 when there is none of that name.

    Example: tidewarden schedule run nightly
    """
    task_id = _stand("S.RUN", name, url, data_dir)
    print_answer(as_json, {"name": name, "id": task_id}, cell(task_id))


def _stand(verb: str, name: str, url: str, data_dir: Path) -> Any:
    with connected(url, data_dir) as node:
        try:
            return node.call(verb, name)
        except redis.ResponseError as error:
            if str(error).startswith("NOTFOUND"):
                raise stop(f"there is no schedule {name!r}", NOTHING) from None
            raise


def _row(schedule: dict[str, Any]) -> list[Any]:
    kind = schedule.get("kind")
    whens = {
        "cron": schedule.get("expr"),
        "every": f"every {schedule.get('every_ms')} ms",
        "at": f"at {moment(schedule.get('at_ms'))}",
    }
    when = whens.get(str(kind), kind)
    zone = schedule.get("zone") or ("UTC" if kind == "cron" else None)
    return [
        schedule.get("name"),
        schedule.get("queue"),
        when,
        zone,
        schedule.get("catchup"),
        moment(schedule.get("next_ms")),
        schedule.get("state"),
    ]
