"""
``tidewarden token why``: tells the story of an account or a provider.

It has answers, conclusions, what comes next, and what can be done.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, AsJson, DataDir, Url
from tidewarden.cli.output import cell, moment, print_json, print_mark

Subject = Annotated[
    str,
    typer.Argument(
        metavar="PROVIDER[/ACCOUNT]",
        help="An account, as sandbox/user-000001, or a provider, as sandbox.",
    ),
]
WIDTH_MAX = 110


def why(
    subject: Subject, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Tell why an account, or a provider as a whole, is in its state.

    The story says what was answered lately, what was concluded from which evidence, what happens
    next and when, and what you can do.

    Examples:

    tidewarden token why sandbox/user-000001

    tidewarden token why sandbox
    """
    with connected(url, data_dir) as node:
        story = node.call("T.WHY", subject)
    show(story, as_json=as_json)


def show(story: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a story."""
    if as_json:
        print_json(story)
        return
    for line in lines_of(story, min(WIDTH_MAX, shutil.get_terminal_size().columns)):
        typer.echo(line)
    print_mark((story,))


def lines_of(story: Mapping[str, Any], width: int) -> list[str]:
    """
    Write the story for a person, in lines of at most ``width`` columns where its words allow it.
    """
    now_ms = int(story["now_ms"])
    lines = [*_wrapped(story["summary"], "", width)]
    lines += ["", f"What was answered lately (UTC; it is {moment(now_ms)} now)"]
    lines += [_answered(one, now_ms) for one in story["asked"]] or ["  nothing is on record"]
    lines += ["", "What was concluded"]
    for one in story["concluded"]:
        lines += _wrapped(one["text"], "- ", width)
    lines += ["", "What happens next", *_wrapped(story["next"]["text"], "- ", width)]
    lines += ["", "What you can do"]
    for text in story["advice"] or ["Nothing need be done."]:
        lines += _wrapped(text, "- ", width)
    return lines


def _answered(one: Mapping[str, Any], now_ms: int) -> str:
    brief = cell(one["brief"])
    words = cell(one["outcome"])
    return (
        f"  {moment(one['at_ms'])}  {_ago(now_ms - one['at_ms']):>10}  {words:<14} "
        f" {brief if brief != words else ''}".rstrip()
    )


def _ago(passed_ms: int) -> str:
    passed_s = round(max(0, passed_ms) / 1000)
    for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if passed_s >= 2 * size_s:
            return f"{passed_s // size_s} {unit} ago"
    return f"{passed_s} s ago"


def _wrapped(text: Any, bullet: str, width: int) -> Sequence[str]:
    first = f"  {bullet}" if bullet else ""
    return textwrap.wrap(
        cell(text),
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
