"""``tidewarden node``."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidewarden.errors import ConfigError

from .options import CONFIG, USAGE, AsJson, NodeFile, SetFlags, server_part, stop
from .output import print_json

if TYPE_CHECKING:
    from tidewarden.config.load import Config


def node(
    config: NodeFile = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read and check the configuration, start nothing.")
    ] = False,
    settings: SetFlags = None,
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Wait until a running cluster lets this node in: `tidewarden cluster join`.",
        ),
    ] = False,
    hash_a_secret: Annotated[
        bool,
        typer.Option(
            "--hash-secret",
            help="Ask for a secret, print its hash for [[users]] secret_hash, start nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Run one node of a cluster, until SIGINT or SIGTERM. SIGHUP reloads parts of its file.

    The file overrides the defaults, TIDEWARDEN_SECTION_KEY in the environment overrides the file,
    --set overrides both.

    Examples:

    tidewarden node --config /etc/tidewarden/config.toml

    tidewarden node --config config.toml --join

    tidewarden node --config config.toml --check

    tidewarden node --config config.toml --set node.base_port=7430 --set log.level=debug
    """
    with server_part():
        from tidewarden.config.load import hash_secret, load

    if hash_a_secret:
        typed = sys.stdin.isatty()
        secret = (
            typer.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True)
            if typed
            else _line()
        )
        typer.echo(hash_secret(secret))
        return
    flags = set_flags(settings or []) | ({"node.role": "joining"} if join else {})
    read = functools.partial(load, str(config) if config else None, os.environ, flags)
    try:
        loaded = read()
        if check and loaded.store.url == "embedded":
            _report(loaded, as_json)
            return
        # These take a second to import, which --help and most of --check need not wait for.
        with server_part():
            from tidewarden.node import main as node_main
            from tidewarden.node.store_links import check_store_url

        if check:
            check_store_url(loaded.store.url)
            _report(loaded, as_json)
            return
        node_main.main(loaded, read)
    except ConfigError as error:
        raise problems_of(error, as_json) from None


def _line() -> str:
    """Read a secret that a program gives: the first line of standard input."""
    if secret := sys.stdin.readline().rstrip("\r\n"):
        return secret
    raise stop(
        "--hash-secret: found nothing on standard input; allowed: the secret, in a line", USAGE
    )


def set_flags(settings: list[str]) -> dict[str, str]:
    """Return the settings that ``--set`` gives, by their names."""
    flags: dict[str, str] = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator:
            raise stop(f"--set {text}: found no '='; allowed: --set SECTION.KEY=VALUE", USAGE)
        flags[name.strip()] = value
    return flags


def _report(config: Config, as_json: bool) -> None:
    from tidewarden.config.addresses import joined

    if as_json:
        print_json({"ok": True, "source": config.source, "node": config.node.name, "problems": []})
        return
    peers = ", ".join(sorted(config.peers())) or "none"
    store = "embedded" if config.store.url == "embedded" else "by store.url"
    if config.replicated:
        store = "embedded, replicated among the members"
    typer.echo(
        f"{config.source}: good. Node {config.node.name} at"
        f" {joined(config.node.host, config.node.base_port)}, peers: {peers}."
    )
    typer.echo(
        f"Store: {store}. Users: {len(config.users)}. Providers:"
        f" {', '.join(sorted(config.providers)) or 'none'}."
    )
    if config.loss_warning:
        typer.echo(config.loss_warning)
    if config.providers and not config.users:
        typer.echo(
            "Tokens are for named users alone, on loopback, too: add [[users]] (tidewarden node"
            " --hash-secret); `tidewarden up` makes one."
        )


def problems_of(error: ConfigError, as_json: bool) -> typer.Exit:
    """Say every problem of a configuration; raise what this returns to end with ``CONFIG``."""
    if as_json:
        print_json({"ok": False, "problems": error.problems})
        return typer.Exit(CONFIG)
    count = len(error.problems)
    return stop(
        f"the configuration has {count} problem{'s' if count > 1 else ''}:\n"
        + "\n".join(f"  {line}" for line in error.problems),
        CONFIG,
    )
