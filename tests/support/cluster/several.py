"""Three node processes whose embedded stores replicate; each runs its own store."""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from support.cluster.harness import ADMIN, START_S, Node, free_base_port, until
from support.doors.command_line import app
from typer.testing import CliRunner, Result

from tidewarden.config.load import hash_generated

SECRET = "of-the-tests"
NAMES = ("n0", "n1", "n2")


def nodes(folder: Path, processes: int = 1, extra: str = "") -> dict[str, Node]:
    """
    Three nodes with their data in ``folder``/NAME, which find their keys in ``folder``; each has so
    many processes. ``extra``: TOML put at the end of every node's configuration.
    """
    folder.mkdir(exist_ok=True)
    for key in ("cluster.key", "vault.key"):
        if not (folder / key).exists():
            (folder / key).write_text(base64.b64encode(secrets.token_bytes(32)).decode())
            (folder / key).chmod(0o600)
    bases: dict[str, int] = {}
    while len(bases) < len(NAMES):
        base = free_base_port()
        if base not in bases.values():
            bases[NAMES[len(bases)]] = base
    members = ", ".join(f'{name} = "127.0.0.1:{base}"' for name, base in bases.items())
    made = {}
    for name, base in bases.items():
        text = f"""
[cluster]
secret_file = "{folder}/cluster.key"
members = {{{members}}}
[node]
name = "{name}"
base_port = {base}
processes = {processes}
data_dir = "{folder}/{name}"
[vault]
key_file = "{folder}/vault.key"
[[users]]
name = "{ADMIN}"
secret_hash = "{hash_generated(SECRET)}"
{extra}"""
        made[name] = Node(name, folder / f"{name}.files", base, text, SECRET)
    return made


def cli(one: Node, *words: str) -> Result:
    """The command line, asking that node."""
    url = f"redis://{ADMIN}:{SECRET}@127.0.0.1:{one.base_port}"
    return CliRunner().invoke(app, [*words, "--url", url])


def all_in_sync(of: dict[str, Node]) -> dict[str, Any]:
    """
    The status of a node once the stores of all are in sync, and have confirmed a write to each node:
    one that could not be confirmed a moment ago refuses the next for a moment more.
    """

    def whole() -> dict[str, Any] | None:
        found = [node.status() for node in of.values()]
        same = {(one["primary"], one["in_sync"]) for one in found}
        return found[0] if len(same) == 1 and found[0]["in_sync"] == " ".join(NAMES) else None

    status = until(whole, START_S, what="all stores are in sync")
    for node in of.values():
        until(lambda node=node: node.say("Q.PUT", "probe", "", "ID", node.name), START_S)
    return status


def start(of: Iterable[Node]) -> None:
    """Start these, and return when each serves."""
    started = list(of)
    for node in started:
        node.start()
    for node in started:
        until(node.ready, START_S, what=f"{node.name} serves")


@contextlib.contextmanager
def serving_nodes(folder: Path, processes: int = 1, extra: str = "") -> Iterator[dict[str, Node]]:
    """Three that serve, until the block is left; see :func:`nodes`."""
    made = nodes(folder, processes, extra)
    try:
        start(made.values())
        yield made
    finally:
        for node in made.values():
            node.close()
