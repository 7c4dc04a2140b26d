"""``tidewarden vault …``: the keys that seal the tokens, and their rotation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.errors import ConfigError

from .connection import NodeLine, connected
from .options import CONFIG, DATA_DIR, REFUSED, AsJson, DataDir, Url, stop
from .output import moment, print_json, print_map, print_table

app = typer.Typer(help="See and rotate the keys that seal the tokens.", no_args_is_help=True)
LOOK_S = 0.5
KEY_FILE = Path(DATA_DIR) / "secrets" / "vault.key"


@app.command("status")
def status(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Show the vault's keys by their ids, which nodes have them, and the rotation. No key is shown.

    Example: tidewarden vault status
    """
    with connected(url, data_dir) as node:
        found = node.call("V.STATUS")
    if as_json:
        print_json(found)
        return
    print_map(
        {
            "key-encryption key": found["kek"],
            "this node reads": f"{', '.join(found['keks'])} from {found['origin']}",
            "data keys": f"{found['data_keys']}, the newest {found['data_key']}",
            "wrapped otherwise": found["wrapped_otherwise"],
        }
    )
    print_table(
        ("node", "key-encryption keys", "newest data key", "said"),
        [
            (name, one["keks"], one["newest"], moment(one["said_ms"]))
            for name, one in found["nodes"].items()
        ],
    )
    if found["rotation"]:
        print_map(
            {"rotation": _told(found["rotation"]), "begun": moment(found["rotation"]["started_ms"])}
        )


@app.command("rotate")
def rotate(
    force: Annotated[
        bool, typer.Option("--force", help="Without the nodes that do not answer.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Stay until it is done, and show how far it is."),
    ] = True,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Make a new data key, and seal every token under it anew.

    The first key of the node's key file wraps the data keys.

    Everything goes on meanwhile. It survives the death of nodes, and this program may end: run it
    again to see how far it is. To go to another key-encryption key, first give it to every node,
    before the old one: `tidewarden vault new-key FILE`.

    Example: tidewarden vault rotate
    """
    import asyncio

    with connected(url, data_dir) as node:
        found = node.call("V.ROTATE", *(["FORCE"] if force else []))
        if wait:
            found = asyncio.run(_watch(node))
    rotation = found["rotation"]
    if as_json:
        print_json(found)
    else:
        typer.echo(_told(rotation))
    if rotation["state"] == "refused":
        raise typer.Exit(REFUSED)


@app.command("new-key")
def new_key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The key file, as of vault.key_file.")
    ] = KEY_FILE,
) -> None:
    """
    Put a fresh key before those in FILE, where they stay until the rotation to it is done.

    Then copy FILE to every node.

    Example: tidewarden vault new-key /etc/tidewarden/vault.key
    """
    from tidewarden.config.key_file import prepend_key

    try:
        made = prepend_key(file)
    except ConfigError as error:
        raise stop("; ".join(error.problems), CONFIG) from None
    except OSError as error:
        raise stop(f"{file}: {error.strerror or error}", CONFIG) from None
    typer.echo(
        f"key {made.hex()} stands first in {file} now. Have it on every node, then: tidewarden"
        " vault rotate"
    )


async def _watch(node: NodeLine) -> Mapping[str, Any]:
    """Return the status when the rotation has ended; meanwhile draw it on a terminal."""
    from rich.console import Console

    from tidewarden.clock import SystemClock, sleep

    clock, console = SystemClock(), Console(stderr=True)
    with console.status("rotating") as shown:
        while True:
            found: Mapping[str, Any] = node.call("V.STATUS")
            if found["rotation"]["state"] in ("done", "refused"):
                return found
            shown.update(_told(found["rotation"]))
            await sleep(clock, LOOK_S)


def _told(rotation: Mapping[str, Any]) -> str:
    state, total = rotation["state"], rotation["total"]
    words = {
        "asked": "asking every node for its keys",
        "wrapping": "wrapping the data keys",
        "sealing": f"sealing anew: {rotation['seen']:,} of {total:,} accounts",
        "done": f"done: {rotation['sealed']:,} pairs sealed anew under data key {rotation['key']}",
        "refused": "refused",
    }[state]
    more = [rotation["message"]] if rotation["message"] else []
    if rotation["unreadable"]:
        more.append(
            f"{rotation['unreadable']:,} pairs do not open and stay as they are: see the nodes'"
            " logs"
        )
    if rotation["dropped"]:
        more.append(f"{rotation['dropped']} old data keys dropped")
    if state not in ("done", "refused"):
        more.append(f"by node {rotation['node']}")
    return "; ".join([words, *more])
