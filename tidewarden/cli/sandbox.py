"""``tidewarden sandbox``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidewarden.errors import ConfigError

from .options import CONFIG, DATA_DIR, AsJson, server_part, stop
from .output import print_json

if TYPE_CHECKING:
    from tidewarden.sandbox.server import Sandbox


def sandbox(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="TCP port on 127.0.0.1; 0: a free one.")
    ] = 7490,
    accounts: Annotated[
        int, typer.Option("--accounts", min=0, max=1_000_000, help="Accounts to have at the start.")
    ] = 100,
    life_s: Annotated[
        float, typer.Option("--life", min=1, max=86_400, help="Life of an access token, seconds.")
    ] = 120,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            min=0,
            max=86_400,
            help="How long a used refresh token still works, seconds; 0: not.",
        ),
    ] = 0,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Its state lies in DATA/sandbox.")
    ] = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Run the sandbox: an authorization server to try Tidewarden against, on this machine only.

    Never for real accounts.

    Refresh tokens rotate and work once; a reuse revokes the grant. State outlives the process.

    Examples:

    tidewarden sandbox --accounts 1000 --life 60

    curl 'http://127.0.0.1:7490/seed?n=1000' > accounts.tsv

    curl 'http://127.0.0.1:7490/fault?status=503&retry_after=2&every=10'
    """
    import asyncio

    from tidewarden.clock import SystemClock

    with server_part():
        from tidewarden.sandbox.server import Sandbox

    try:
        asyncio.run(
            _serve(
                Sandbox(data_dir / "sandbox", SystemClock(), life_s=life_s, grace_s=grace_s),
                port,
                accounts,
                as_json,
            )
        )
    except ConfigError as error:
        raise stop("; ".join(error.problems), CONFIG) from None
    except OSError as error:
        raise stop(
            f"port {port} cannot be used: {error.strerror or error}; --port gives another one",
            CONFIG,
        ) from None


async def _serve(sandbox: Sandbox, port: int, accounts: int, as_json: bool) -> None:
    import asyncio

    from tidewarden.sandbox.grants import CLIENT_ID, CLIENT_SECRET

    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    try:
        await sandbox.start("127.0.0.1", port)
        sandbox.mint(accounts)
        ready = {
            "url": sandbox.url,
            "token_url": sandbox.token_url,
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        }
        if as_json:
            print_json(ready)
        else:
            typer.echo(
                f"READY sandbox authorization server at {sandbox.url} (never for real accounts);"
                " Ctrl-C stops it"
            )
            typer.echo(f"In a node's configuration:\n{_provider(ready)}")
        await over.wait()
    finally:
        await sandbox.stop()


def _provider(ready: dict[str, str]) -> str:
    lines = [f'{key} = "{ready[key]}"' for key in ("token_url", "client_id", "client_secret")]
    return "\n".join(["[providers.sandbox]", *lines, "margin_s = 30"])
