"""``tidewarden schedule …``: tasks that are put at times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import Refused, connected
from .options import DATA_DIR, NOTHING, USAGE, AsJson, DataDir, Url, stop
from .output import cell, moment, print_answer, print_json, print_map, print_table
from .task import payload_bytes

app = typer.Typer(
    help="Put a task at times: by cron, every so often, or once.", no_args_is_help=True
)
COLUMNS = ("name", "queue", "when", "zone", "catchup", "next (UTC)", "state", "last run (UTC)")
TICK_COLUMNS = ("at (UTC)", "schedule", "queue")
RATE_COLUMNS = ("next (UTC)", "schedule", "queue", "a day")
HOUR_MS = 3_600_000
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


@app.command("show")
def show(
    name: Name,
    count: Annotated[
        int, typer.Option("--next", min=1, max=100, help="How many next runs are shown.")
    ] = 5,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show one schedule: what it puts, its next runs, and what became of its last one.

    Exit code 5 when there is none of that name.

    Example: tidewarden schedule show nightly --next 10
    """
    found = _asked(url, data_dir, "S.GET", name, "COUNT", count)
    if as_json:
        print_json(found)
        return
    shown = {word: value for word, value in found.items() if word not in ("last", "next")}
    print_map(shown | {"next_ms": moment(found.get("next_ms")), "last run": _last(found)})
    for at_ms in found.get("next", ()):
        typer.echo(f"next run  {moment(at_ms)} UTC")


@app.command("next")
def next_(
    hours: Annotated[
        int, typer.Option("--hours", min=1, max=744, help="How many hours ahead.")
    ] = 24,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show what the schedules will put within a day.

    Those that tick more often than each half hour are shown as rates.

    Example: tidewarden schedule next --hours 8
    """
    with connected(url, data_dir) as node:
        found = node.call("S.NEXT", "MS", hours * HOUR_MS)
    if as_json:
        print_json(found)
        return
    ticks, rates = found["ticks"], found["rates"]
    if not ticks and not rates:
        raise stop(f"no schedule puts anything before {moment(found['until_ms'])} UTC", NOTHING)
    if ticks:
        rows = [(moment(one["at_ms"]), one["name"], one["queue"]) for one in ticks]
        print_table(TICK_COLUMNS, rows)
    if rates:
        print_table(
            RATE_COLUMNS,
            [(moment(one["next_ms"]), one["name"], one["queue"], one["per_day"]) for one in rates],
        )
    if found["more"]:
        typer.echo(f"there is more after {moment(found['until_ms'])} UTC")
    if found["resting"]:
        typer.echo(f"paused, stuck or unreadable: {found['resting']}")


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
    _asked(url, data_dir, "S.PAUSE", name)
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
    next_ms = _asked(url, data_dir, "S.RESUME", name)
    print_answer(as_json, {"name": name, "next_ms": next_ms}, f"OK, next at {moment(next_ms)} UTC")


@app.command("run")
def run(
    name: Name,
    task_id: Annotated[
        str,
        typer.Option("--id", help="Of this run: a second one with it puts nothing more."),
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Put a schedule's task now, once; prints its id. The schedule goes on as it was.

    Exit code 5 when there is none of that name.

    Example: tidewarden schedule run nightly
    """
    put = _asked(url, data_dir, "S.RUN", name, *(["ID", task_id] if task_id else []))
    print_answer(as_json, {"name": name, "id": put}, cell(put))


def _asked(url: str, data_dir: Path, verb: str, name: str, *words: str | int) -> Any:
    with connected(url, data_dir) as node:
        try:
            return node.call(verb, name, *words)
        except Refused as error:
            if str(error).startswith("NOTFOUND"):
                raise stop(f"there is no schedule {name!r}", NOTHING) from None
            raise


def _last(schedule: dict[str, Any]) -> str:
    """Write a schedule's last run on one line: when, and what became of its task."""
    run = schedule.get("last")
    if not run:
        return "-"
    text = f"{moment(run.get('put_ms'))} {run.get('state')}"
    if run.get("ended_ms"):
        text += f" at {moment(run['ended_ms'])}"
    return f"{text}: {run['reason']}" if run.get("reason") else text


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
        _last(schedule),
    ]
