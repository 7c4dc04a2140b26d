"""The command line: ``tidewarden VERB``. One file per noun; this one only puts them together."""

from __future__ import annotations

import importlib
import sys

from tidewarden.process import hold_hangups

if sys.argv[1:2] == ["node"]:
    # SIGHUP has a node read its users anew. Until it can, which takes it a second or two, the signal waits instead of killing.
    hold_hangups()

import typer

from . import cluster, doctor, lock, node, queue, sandbox, schedule, status, token, vault, version, worker
from .connection import EXIT_CODES

app = typer.Typer(
    name="tidewarden",
    help="A cluster daemon that keeps OAuth tokens fresh: a deadline-ordered delay queue under an elected leader.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its traces show local variables, secrets among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _up() -> None:
    """``up`` pulls in the daemon's rooms; an installation that lacks them keeps its client verbs."""
    try:
        up = importlib.import_module("tidewarden.cli.up")
    except ModuleNotFoundError as error:
        if error.name != "tidewarden.cli.up":
            raise
    else:
        app.command("up")(up.up)


_up()
app.command("node")(node.node)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.add_typer(cluster.app, name="cluster")
app.add_typer(queue.app, name="queue")
app.add_typer(token.app, name="token")
app.add_typer(vault.app, name="vault")
app.add_typer(schedule.app, name="schedule")
app.add_typer(lock.app, name="lock")
app.command("worker")(worker.worker)
app.command("sandbox")(sandbox.sandbox)
app.command("version")(version.version)


def main() -> None:
    """The console script. Ends the process with an exit code; see ``tidewarden --help``."""
    app()
