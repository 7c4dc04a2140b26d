"""``tidewarden token provider``: what an operator has done about a provider as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, AsJson, DataDir, Url

from .why import show

app = typer.Typer(
    help="Release, probe or quarantine a provider. Needs the right token:admin.",
    no_args_is_help=True,
)
Provider = Annotated[str, typer.Argument(metavar="PROVIDER", help="The provider, as sandbox.")]


@app.command("release")
def release(
    provider: Provider, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    End a quarantine, a hold or a rate of a provider: its accounts are asked again.

    Where there was a quarantine, you say with it that the refusals are true: each refused account
    is asked once more, and given up when it is refused again. Look first: `tidewarden token why
    PROVIDER`.

    Example: tidewarden token provider release sandbox
    """
    _steer("RELEASE", provider, url, data_dir, as_json)


@app.command("probe")
def probe(
    provider: Provider, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Ask a provider once now that all hold back from. If it answers well, all go on.

    Example: tidewarden token provider probe sandbox
    """
    _steer("PROBE", provider, url, data_dir, as_json)


@app.command("quarantine")
def quarantine(
    provider: Provider, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Keep a provider's accounts from being given up until it is released.

    Refusals from now on do not count.

    Example: tidewarden token provider quarantine sandbox
    """
    _steer("QUARANTINE", provider, url, data_dir, as_json)


def _steer(action: str, provider: str, url: str, data_dir: Path, as_json: bool) -> None:
    with connected(url, data_dir) as node:
        story = node.call("T.PROVIDER", action, provider)
    show(story, as_json=as_json)
