"""Options that verbs of the command line share, and their exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
CONFIG = 4
NOTHING = 5
DATA_DIR = "./tidewarden-data"
NEEDS_SERVER = (
    "this needs the server part of Tidewarden, which is not installed here (there is no module"
    " {name!r}): pip install 'tidewarden[server]'"
)

EXIT_CODES = (
    "Exit codes: 0 done, 1 the node refused (or lines of a file were bad, or damage is left), 2"
    " wrong usage, 3 no node can be reached, 4 the configuration cannot be used, 5 there was"
    " nothing to show, 130 interrupted."
)

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="TIDEWARDEN_URL",
        metavar="redis://USER:SECRET@HOST:PORT",
        help=(
            "The node to ask. Without it: the nodes of a local cluster whose data is in --data-dir,"
            " else 127.0.0.1:7420."
        ),
        show_default=False,
        show_envvar=True,
    ),
]
DataDir = Annotated[
    Path,
    typer.Option("--data-dir", help="Data folder of `tidewarden up`: its nodes and its secret."),
]
NodeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The node's TOML file. Without one: defaults.",
        show_default=False,
    ),
]
SetFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one setting; may be repeated.",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Answer with JSON on standard output, for programs.")
]


class Group(TyperGroup):
    """
    Groups verbs. Its flags that were not given are False.

    Of None, which --help and the shell's completion are else, typer asks pydantic whether it is a
    bool, and that takes longer to import than all of a help.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options, --help among them."""
        params = super().get_params(ctx)
        for option in params:
            if getattr(option, "is_flag", False) and option.default is None:
                option.default = False
        return params


def _version(wanted: bool) -> None:
    if wanted:
        from .version import version  # what it asks for its answer is not for every verb to import

        version()
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="The same as `tidewarden version`."
        ),
    ] = False,
) -> None:  # without a docstring, which would take the place of the program's help
    pass


def stop(message: str, code: int) -> typer.Exit:
    """Say ``message`` on standard error; raise what this returns to end with ``code``."""
    typer.echo(f"tidewarden: {message}", err=True)
    return typer.Exit(code)


@contextmanager
def server_part() -> Iterator[None]:
    """
    Import in this block what only a node needs.

    Ends the program, as for wrong usage, where the extra that has it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] in ("", "tidewarden"):
            raise  # a defect of ours
        raise stop(NEEDS_SERVER.format(name=name), USAGE) from None
