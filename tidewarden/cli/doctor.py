"""``tidewarden doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import NodeLine, Refused, connected
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

    It also says how many tasks are buried, and what is wrong among the nodes: too few are heard,
    some belong to another cluster. Of stores that replicate: too few in sync for a minute, settings
    that are not the same, a loss that nobody has confirmed. Where no store answers, it says so, and
    why. Where a node's journal cannot be written, it names the providers that wait for it.

    Exit code 1 when something is left.

    It changes nothing without --repair. With it, a task that lies nowhere or in two places is ready
    again, and an entry without a task is dropped.

    Examples:

    tidewarden doctor

    tidewarden doctor --repair --json
    """
    with connected(url, data_dir) as node:
        status: dict[str, Any] = {} if queue else node.call("R.STATUS")
        stores: list[str] = list(status.get("store_problems", []))
        if trouble := status.get("raft", {}).get("trouble", ""):
            stores.insert(0, trouble)
        journals = [] if queue else _journals(node)
        try:
            answer = node.call("Q.CHECK", queue or "*", *(["REPAIR"] if repair else []))
        except Refused as error:
            if queue or not str(error).startswith(("STOREDOWN", "NOQUORUM")):
                raise
            stores.append(str(error))
            answer = []
    checked: list[dict[str, Any]] = [answer] if queue else answer
    left = sum(one["problems"] - one["repaired"] for one in checked)
    if as_json:
        print_json({"queues": checked, "left": left, "stores": stores, "journals": journals})
    else:
        columns = ["queue", "tasks", "buried", "problems", "repaired"]
        print_table(columns, [[one.get(column) for column in columns] for one in checked])
        if buried := sum(one.get("buried", 0) for one in checked):
            typer.echo(f"{buried} tasks are buried: `tidewarden queue reasons QUEUE` says why")
        for one in checked:
            for kind, task_id, detail in one["examples"]:
                typer.echo(
                    f"{cell(one['queue'])}: {cell(kind)}: {cell(task_id)} {cell(detail)}".rstrip()
                )
        for sentence in stores:
            typer.echo(f"stores: {cell(sentence)}")
        for sentence in journals:
            typer.echo(f"journals: {cell(sentence)}")
    if left:
        raise stop(
            f"{left} problems are left{'' if repair else '; --repair puts right what it can'}",
            REFUSED,
        )
    if stores:
        raise stop("somebody should look at the stores and their nodes", REFUSED)
    if journals:
        raise stop("somebody should look at the journals", REFUSED)


def _journals(node: NodeLine) -> list[str]:
    """Say what keeps nodes from asking providers, and which, as far as it may be known."""
    try:
        stats: dict[str, dict[str, Any]] = node.call("T.STATS")
    except Refused:
        return []  # no store, which is told beside it, or no right to see accounts
    waiting: dict[str, list[str]] = {}
    for name, stands in sorted(stats.items()):
        if stands.get("error") == "journal":
            waiting.setdefault(str(stands["message"]), []).append(name)
    return [f"{told}; {', '.join(names)} wait for it" for told, names in waiting.items()]
