"""``tidewarden worker``."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidewarden.errors import BadArg

from .connection import addresses
from .options import DATA_DIR, REFUSED, USAGE, DataDir, stop

if TYPE_CHECKING:
    from tidewarden.client import Worker


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="Where the Worker is; without :NAME it is called worker."
        ),
    ],
    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="TIDEWARDEN_URL",
            metavar="redis://USER:SECRET@HOST:PORT[,…]",
            help=(
                "The nodes, the first is used until it fails. Without it: those of the Worker, else"
                " those of --data-dir."
            ),
            show_default=False,
            show_envvar=True,
        ),
    ] = "",
    data_dir: DataDir = Path(DATA_DIR),
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=1,
            help="Tasks at a time, instead of the Worker's.",
            show_default=False,
        ),
    ] = None,
    grace_s: Annotated[
        float | None,
        typer.Option(
            "--grace-s",
            min=0.0,
            help="How long tasks may finish after SIGTERM, instead of the Worker's.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each step of each task.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON objects on a terminal, too.")
    ] = False,
) -> None:
    """
    Run a Worker: take tasks and call its handlers, until SIGINT or SIGTERM.

    After the signal it takes nothing more, lets its tasks finish for --grace-s seconds, and
    releases those that have not. On a terminal it tells of each task that is done, elsewhere every
    ten seconds of how many.

    Examples:

    tidewarden worker examples.worker_app:worker

    tidewarden worker shop.tasks --concurrency 50 --url
    redis://shop:SECRET@10.0.0.1:7420,redis://shop:SECRET@10.0.0.2:7420
    """
    from tidewarden.log import close

    found = load(app)
    if url or found.urls is None:
        found.urls = url or addresses("", data_dir)
    if concurrency is not None:
        found.concurrency = concurrency
    if grace_s is not None:
        found.grace_s = grace_s
    found.name = found.name or app.replace(":", ".")
    is_for_people = _log(found.name, verbose, as_json)
    if found.each_task is None:
        found.each_task = is_for_people
    try:
        code = found.run()
    except BadArg as error:
        raise stop(str(error), USAGE) from None
    finally:
        close()
    if code:
        raise typer.Exit(REFUSED)


def load(app: str) -> Worker:
    """
    Load the Worker that ``module:name`` means; modules of the working directory are found, too.

    Ends the program with a message and the code for wrong usage when there is none.
    """
    from tidewarden.client import Worker

    module_name, _, name = app.partition(":")
    name = name or "worker"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (
            module_name == error.name or module_name.startswith(f"{error.name}.")
        ):
            raise  # something that the module itself imports: its trace tells what
        raise stop(
            f"there is no module {module_name!r} (searched: the working directory, and where Python"
            " looks)",
            USAGE,
        ) from None
    except (TypeError, ValueError):
        raise stop(f"{app!r} is no MODULE:NAME", USAGE) from None
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        what = "there is none" if found is None else f"it is a {type(found).__name__}"
        raise stop(f"{module_name} should have a Worker called {name}: {what}", USAGE)
    return found


def _log(name: str, verbose: bool, as_json: bool) -> bool:
    """Log to standard error; return whether a person reads it there."""
    from tidewarden.log import Human, Json

    is_for_people = sys.stderr.isatty() and not as_json
    handler = logging.StreamHandler()
    handler.setFormatter(Human(name, colour=True) if is_for_people else Json(name))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("tidewarden").setLevel(logging.DEBUG if verbose else logging.INFO)
    return is_for_people
