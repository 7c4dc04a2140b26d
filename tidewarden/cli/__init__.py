"""Runs the command line ``tidewarden VERB``: one file for each noun."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer
    from typer.models import CommandInfo, TyperInfo

# In the order of the help. A module has a function of its name or, those at the end, an ``app``
# with verbs of its own.
VERBS = (
    "up",
    "node",
    "store",
    "status",
    "top",
    "tap",
    "consumers",
    "doctor",
    "worker",
    "sandbox",
    "version",
    "audit",
    "cluster",
    "queue",
    "consumer",
    "token",
    "provider",
    "vault",
    "schedule",
    "lock",
)

COMPLETES = "_TIDEWARDEN_COMPLETE"
COLUMNS_MAX = 100
"""Of a help, on however wide a terminal."""

if sys.argv[1:2] == ["node"]:
    # SIGHUP has a node read its users anew. Until it can, which takes it a second or two, the
    # signal waits instead of killing.
    from tidewarden.node.os_process import hold_hangups

    hold_hangups()


def command_line(*verbs: str) -> typer.Typer:
    """
    Build the command line with these ``verbs``.

    What they import takes longer than most of them run.
    """
    import typer

    from .options import EXIT_CODES, Group, root

    app = typer.Typer(
        name="tidewarden",
        cls=Group,
        help=(
            "A cluster daemon that keeps OAuth tokens fresh: a deadline-ordered delay queue under"
            " an elected leader."
        ),
        epilog=EXIT_CODES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # its traces show local variables, secrets among them
        rich_markup_mode=None,  # to import rich takes as long as the rest of a help
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": COLUMNS_MAX},
    )
    app.callback()(root)  # without one typer would take a lone verb for the whole program
    for verb in verbs:
        module = importlib.import_module(f"{__name__}.{verb}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb, cls=Group)
        else:
            app.command(verb)(getattr(module, verb))
    for command in (
        *app.registered_commands,
        *(one for group in app.registered_groups for one in _verbs(group)),
    ):
        command.help = flowing(command.callback.__doc__ or "")
    return app


def _verbs(group: TyperInfo) -> list[CommandInfo]:
    return group.typer_instance.registered_commands if group.typer_instance else []


def flowing(text: str) -> str:
    """Join each paragraph to one line, to be broken by the terminal and not by the source."""
    return "\n\n".join(" ".join(one.split()) for one in text.strip().split("\n\n"))


def main() -> None:
    """Run the console script. Ends the process with an exit code; see ``tidewarden --help``."""
    # imports make much that stays, which it would look through again and again
    gc.set_threshold(50_000, 20, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that is no UTF-8 shows what it can, and the rest so.
            stream.reconfigure(errors="backslashreplace")
    # A shell that completes a line hands it over in the environment.
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    named = [
        verb for verb in VERBS if verb in (words if COMPLETES in os.environ else sys.argv)[1:2]
    ]
    command_line(*(named or VERBS))()
