"""``tidewarden consumer …``: end consumers, by their connections or their session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.consumers import tell_unreachable
from tidewarden.cli.options import DATA_DIR, NOTHING, REFUSED, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import print_answer, print_number

app = typer.Typer(help="End consumers: `tidewarden consumers` shows them.", no_args_is_help=True)


@app.command("end")
def end(
    user: Annotated[str, typer.Option("--user", help="Of this user.")] = "",
    name: Annotated[str, typer.Option("--name", help="With this name.")] = "",
    address: Annotated[
        str, typer.Option("--address", metavar="IP:PORT", help="From this address.")
    ] = "",
    session: Annotated[str, typer.Option("--session", metavar="UUID", help="In it.")] = "",
    client: Annotated[
        str, typer.Option("--client", metavar="NODE:NUMBER", help="As it is listed.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Close the connections that fit everything given, on all nodes; prints how many.

    What they held without a session is ready again at once, and no loss is counted; a session has
    its grace (see `consumer end-session`). A client may connect again.

    Example: tidewarden consumer end --user mailer --name worker-7
    """
    node, _, number = client.rpartition(":")
    if client and not (node and number.isdecimal()):
        raise stop(
            f"--client {client!r}: it is NODE:NUMBER, as `tidewarden consumers` lists", USAGE
        )
    options = {"USER": user, "NAME": name, "ADDR": address, "SESSION": session}
    words = [word for what, value in options.items() if value for word in (what, value)]
    words += ["ID", number, "NODE", node] if client else []
    if not words:
        raise stop("give --user, --name, --address, --session or --client", USAGE)
    if not yes and not typer.confirm(f"Close connections: {' '.join(words)}?", err=True):
        raise stop("nobody was ended", NOTHING)
    with connected(url, data_dir) as line:
        print_number("closed", line.call("CLIENT", "KILL", *words), as_json)


@app.command("end-session")
def end_session(
    session: Annotated[str, typer.Argument(metavar="UUID", help="The session.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    End a session, wherever its connections are: what it held is ready again; prints how much.

    Example: tidewarden consumer end-session 9f6a2c1e-5b7d-4c55-8a9e-0d6c3a1f2b44
    """
    if not yes and not typer.confirm(f"End the session {session}?", err=True):
        raise stop("nothing was ended", NOTHING)
    with connected(url, data_dir) as line:
        found = line.call("SESSION", "END", session)
    print_answer(as_json, found, found["released"])
    if found["unreachable"]:
        tell_unreachable({one["node"]: one["why"] for one in found["unreachable"]})
        raise stop("the session has ended, and not all nodes know", REFUSED)
