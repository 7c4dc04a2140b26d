"""``tidewarden tap``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import connected
from .options import DATA_DIR, AsJson, DataDir, Url
from .output import cell, moment


def tap(
    user: Annotated[str, typer.Option("--user", help="Of this user alone.")] = "",
    queue: Annotated[
        str, typer.Option("--queue", help="About this name alone: a queue, provider, lock.")
    ] = "",
    one_in: Annotated[
        int, typer.Option("--one-in", min=1, max=1_000_000, help="Every so many-th.")
    ] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.001, max=60, help="How long.")
    ] = 10.0,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show the requests that one node answers, as they pass, without what is in them.

    It needs the right admin, and ends by itself, at the latest after a minute.

    Examples:

    tidewarden tap --queue mails

    tidewarden tap --user shop --one-in 100 --seconds 60 --json
    """
    words: list[str | int] = ["MS", round(seconds * 1000), "RATE", f"1/{one_in}"]
    words += ["USER", user] if user else []
    words += ["QUEUE", queue] if queue else []
    with connected(url, data_dir) as line:
        for found in line.stream("R.TAP", *words):
            if isinstance(found, dict):
                typer.echo(_said(found), err=True)
            else:
                typer.echo(found[1] if as_json else _shown(json.loads(found[1])))


def _shown(one: dict[str, Any]) -> str:
    at = f"{moment(one['at_ms'])}.{one['at_ms'] % 1000:03}"
    error = f"  {cell(one['error'])}" if one["error"] else ""
    return (
        f"{at}  {cell(one['peer'])}  {cell(one['user']) or '-'}  {cell(one['verb'])}"
        f"  {cell(one['name']) or '-'}  {one['bytes_in']} B in  {one['bytes_out']} B out"
        f"  {one['us'] / 1000:.3f} ms{error}"
    )


def _said(end: dict[str, Any]) -> str:
    dropped = f", {end['dropped']} had no room" if end["dropped"] else ""
    return f"{end['matched']} requests, {end['shown']} shown{dropped}"
