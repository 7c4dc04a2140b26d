"""``tidewarden doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import connected
from .options import DATA_DIR, REFUSED, AsJson, DataDir, Url, stop
from .output import cell, print_json, print_table


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Put right what is wrong.")] = False,
    queue: Annotated[str, typer.Option("--queue", help="Only this one.", show_default=False)] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Look for tasks and index entries that do not belong together, in every queue.

    Of stores that replicate it also says what is wrong with them: too few in sync for a minute,
    settings that are not the same, a loss that nobody has confirmed.

    Exit code 1 when something is left.

    It changes nothing without --repair. With it, a task that lies nowhere or in two places is ready
    again, and an entry without a task is dropped.

    Examples:

    tidewarden doctor

    tidewarden doctor --repair --json
    """
    with connected(url, data_dir) as node:
        answer = node.call("Q.CHECK", queue or "*", *(["REPAIR"] if repair else []))
        stores: list[str] = [] if queue else node.call("R.STATUS").get("store_problems", [])
    checked: list[dict[str, Any]] = [answer] if queue else answer
    left = sum(one["problems"] - one["repaired"] for one in checked)
    if as_json:
        print_json({"queues": checked, "left": left, "stores": stores})
    else:
        columns = ["queue", "tasks", "problems", "repaired"]
        print_table(columns, [[one[column] for column in columns] for one in checked])
        for one in checked:
            for kind, task_id, detail in one["examples"]:
                typer.echo(
                    f"{cell(one['queue'])}: {cell(kind)}: {cell(task_id)} {cell(detail)}".rstrip()
                )
        for sentence in stores:
            typer.echo(f"stores: {cell(sentence)}")
    if left:
        raise stop(
            f"{left} problems are left{'' if repair else '; --repair puts right what it can'}",
            REFUSED,
        )
    if stores:
        raise stop("somebody should look at the stores", REFUSED)
