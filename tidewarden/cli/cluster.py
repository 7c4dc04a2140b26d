"""``tidewarden cluster``: who is in it, who leads, and what changes that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer

from .backup import backup, restore
from .connection import NodeError, addresses, connected, dial, maybe_tls, shown
from .options import DATA_DIR, NOTHING, AsJson, DataDir, Url, stop
from .output import cell, moment, print_answer, print_json, print_table

app = typer.Typer(help="Members and leadership of a cluster.", no_args_is_help=True)
app.command("backup")(backup)
app.command("restore")(restore)
SILENCE_S = 5.0
OF_COPIES = ("in_sync", "loss", "proposal", "last_gap_ms")
"""Of stores that replicate, R.STATUS says these too."""
COLUMNS = ("node", "role", "votes", "epoch", "address", "store", "beat", "heard", "processes")


@app.command("status")
def status(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Show every member: its role, its epoch, and when the store and the leader last heard of it.

    Asks one node for the members, then each of them. `beat` is how long ago the store had its sign
    of life, `heard` how long ago the leader heard it by Raft. A member that does not answer is
    shown as silent.

    Examples:

    tidewarden cluster status

    tidewarden cluster status --url redis://admin:SECRET@10.0.0.5:7420 --json
    """
    with connected(url, data_dir) as node:
        first: dict[str, Any] = node.call("R.STATUS")
    seen: dict[str, dict[str, Any]] = {first["node"]: first}
    basis = addresses(url, data_dir)[0]
    for name, member in first["members"].items():
        if (
            name not in seen
            and member["address"]
            and (answer := _asked(at(basis, member["address"])))
        ):
            seen[name] = answer
    leading = (one for one in seen.values() if one["role"] == "leader")
    leader = seen.get(first["leader"]) or max(
        leading, key=lambda one: int(one["epoch"]), default=first
    )
    if proposals := [text for one in seen.values() if (text := one.get("proposal"))]:
        leader = leader | {"proposal": proposals[0]}  # the primary's node knows it
    rows = [
        _row(name, member, seen.get(name), leader) for name, member in leader["members"].items()
    ]
    if as_json:
        facts = {
            name: leader.get(name)
            for name in ("leader", "epoch", "view", "primary", "quorum", "store")
        }
        facts |= {name: leader[name] for name in OF_COPIES if name in leader}
        print_json({**facts, "seen_by": leader["node"], "nodes": rows})
        return
    print_table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
    store = leader.get("store", {})
    engine = f"{store.get('name', '')} {store.get('version', '')}".strip() or "not known yet"
    place = store.get("at") or leader["primary"]
    where = f" at {place}" if place else ""
    where += ", up" if store.get("up", True) else ", AWAY"
    quorum = "a quorum" if leader["quorum"] else "NO QUORUM"
    typer.echo(
        f"leader {leader['leader'] or 'unknown'}, epoch {leader['epoch']}, {quorum}; store {engine}"
        f"{where}"
    )
    if "in_sync" in leader:
        _show_copies(leader)


@app.command("transfer")
def transfer(
    node: Annotated[
        str,
        typer.Argument(
            metavar="[NODE]", help="Who is to lead. Without: whoever is most caught up."
        ),
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Make another node lead.

    Only the sweep moves; puts, takes and acks go on meanwhile.

    Examples:

    tidewarden cluster transfer

    tidewarden cluster transfer n2 --json
    """
    with connected(url, data_dir) as line:
        leader = line.call("R.TRANSFER", *([node] if node else []))
    print_answer(as_json, {"leader": leader}, f"{leader} leads")


@app.command("switchover")
def switchover(
    node: Annotated[
        str,
        typer.Argument(
            metavar="[NODE]", help="Whose store is to be primary. Without: the most caught up."
        ),
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Make another node's store the primary, of stores that replicate.

    Writes pause for some hundredths of a second; nothing is refused, nothing is lost.

    Examples:

    tidewarden cluster switchover

    tidewarden cluster switchover n2 --json
    """
    with connected(url, data_dir) as line:
        primary = line.call("R.SWITCHOVER", *([node] if node else []))
    print_answer(as_json, {"primary": primary}, f"{cell(primary)} has the primary")


@app.command("recover")
def recover(
    node: Annotated[
        str,
        typer.Argument(
            metavar="[NODE]",
            help="Whose store is to be primary. Without: the one with the newest data.",
        ),
    ] = "",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Do it; without, say what would be done."),
    ] = False,
    begin_empty: Annotated[
        bool,
        typer.Option("--begin-empty", help="With --accept-loss: also with a store that is empty."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Go on with a store that was not in sync: the last resort.

    For when the stores in sync do not come back. What only they had is lost. It says first what it
    would choose and what may be missing; with --accept-loss it then asks, and does it. A store
    that is empty is taken only with --begin-empty as well: all data are given up then.

    Examples:

    tidewarden cluster recover

    tidewarden cluster recover n2 --accept-loss --yes --json
    """
    named = [node] if node else []
    with connected(url, data_dir) as line:
        choice: dict[str, Any] = line.call("R.RECOVER", *named)
        if not accept_loss and as_json:
            print_json(choice)
            return
        _show_choice(choice, err=accept_loss)
        if not accept_loss:
            typer.echo("nothing was changed; --accept-loss does it")
            return
        chosen = str(choice["node"])
        if not yes and not typer.confirm(f"Make {chosen}'s store the primary?", err=True):
            raise stop("nothing was changed", NOTHING)
        words = ("ACCEPTLOSS", *(("BEGINEMPTY",) if begin_empty else ()))
        done: dict[str, Any] = line.call("R.RECOVER", chosen, *words)
    if as_json:
        print_json(done)
    else:
        typer.echo(
            f"{cell(done['node'])} has the primary. `tidewarden cluster status` shows how the"
            " others copy it; `tidewarden cluster confirm` ends the warning"
        )


@app.command("confirm")
def confirm(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Say that somebody knows of a loss, which ends its warning.

    Examples:

    tidewarden cluster confirm

    tidewarden cluster confirm --json
    """
    with connected(url, data_dir) as line:
        loss = line.call("R.CONFIRM")
    if as_json:
        print_json({"loss": loss})
    else:
        typer.echo(f"noted: a loss was {cell(loss)}" if loss else "there was no loss to confirm")


@app.command("discarded")
def discarded(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    List the data that stores set aside before they took the primary's.

    Asks one node for the members, then each of them. Each keeps two; delete them when you know that
    nothing in them is missed.

    Examples:

    tidewarden cluster discarded

    tidewarden cluster discarded --url redis://admin:SECRET@10.0.0.5:7420 --json
    """
    found: list[dict[str, Any]] = []
    with connected(url, data_dir) as line:
        first: dict[str, Any] = line.call("R.STATUS")
        found += ({"node": first["node"], **one} for one in line.call("R.DISCARDED"))
    basis = addresses(url, data_dir)[0]
    for name, member in first["members"].items():
        if name != first["node"] and member["address"] and member.get("votes", True):
            rows = _asked(at(basis, member["address"]), "R.DISCARDED")
            found += ({"node": name, **one} for one in rows or ())
    if as_json:
        print_json({"discarded": found})
        return
    columns = list(dict.fromkeys(key for one in found for key in one))
    print_table(
        [name.removesuffix("_ms") for name in columns],
        [
            [moment(one.get(key)) if key.endswith("at_ms") else one.get(key) for key in columns]
            for one in found
        ],
    )
    if not found:
        raise stop("nothing was set aside", NOTHING)


@app.command("join")
def join(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name.")],
    address: Annotated[
        str, typer.Argument(metavar="HOST:BASE_PORT", help="Where the other nodes reach it.")
    ],
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Let a node join a running cluster.

    Then start it, on an empty folder, with --join and a configuration that names the members.

    It has no vote until it was heard and has everything, so one that is never started stops nobody.

    Examples:

    tidewarden cluster join n3 10.0.0.4:7420

    tidewarden node --join --config /etc/tidewarden/config.toml   (on the new host)

    tidewarden cluster join n3 10.0.0.4:7420 --json
    """
    with connected(url, data_dir) as line:
        version = line.call("R.JOIN", node, address)
    if as_json:
        print_json({"node": node, "version": version})
    else:
        typer.echo(f"{node} may join (version {version} of the members): start it with --join")


@app.command("leave")
def leave(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name.")],
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Remove a member, whether it runs or is lost.

    One that leads hands leadership over first.

    Refused while its store is the primary (`tidewarden cluster switchover` hands that over), and
    when those that stay could not elect a leader. Stop the node afterwards: it serves on until
    then, but says that it is no member.

    Examples:

    tidewarden cluster leave n2

    tidewarden cluster leave n2 --json
    """
    with connected(url, data_dir) as line:
        version = line.call("R.LEAVE", node)
    if as_json:
        print_json({"node": node, "version": version})
    else:
        typer.echo(
            f"{node} is no member any more (version {version} of the members): stop it if it runs"
        )


def at(url: str, address: str) -> str:
    """Return ``url`` with another node's ``host:base_port``: the same scheme, user and secret."""
    parts = urlsplit(url)
    who = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{who}@{address}" if who else address))


def _asked(address: str, verb: str = "R.STATUS") -> Any:
    """Ask a node about itself; None: it does not answer."""
    try:
        line = dial(address, SILENCE_S)
        try:
            return line.call(verb)
        finally:
            line.close()
    except (NodeError, ValueError) as error:
        typer.echo(
            f"{shown(address)} does not answer: {error}{maybe_tls(address, error)}", err=True
        )
        return None


def _row(
    name: str, member: dict[str, Any], own: dict[str, Any] | None, leader: dict[str, Any]
) -> dict[str, Any]:
    """Describe one member by what it says of itself, and what the leader knows of it."""
    age_ms, heard_s = member["store_age_ms"], member["raft_heard_s"]
    if own:
        role = own["role"]
    elif heard_s is None and not member.get("votes", True) and member.get("met", True):
        role = "worker" if age_ms < 5000 else "silent"  # Raft hears none of them
    else:
        role = "silent" if member.get("met", True) else "awaited"
    return {
        "node": name,
        "role": role,
        "votes": member.get("votes", True),
        "epoch": own["epoch"] if own else None,
        "address": member["address"] or "-",
        "store": "-" if own is None else "up" if own["store"]["up"] else "away",
        "beat": f"{age_ms / 1000:.1f} s" if age_ms >= 0 else "never",
        "heard": "-" if heard_s is None or name == leader["node"] else f"{heard_s:.1f} s",
        "processes": 1 + len(own["processes"]) if own else None,
        **({"copy": member["store"]} if "store" in member else {}),
    }


def _show_copies(leader: dict[str, Any]) -> None:
    """Show each member's store, where stores replicate: its part, and why it is not in sync."""
    rows = [
        (
            name,
            copy["role"],
            "-" if copy["behind"] is None else f"{copy['behind']:,} bytes",
            "-" if copy["sync"] is None else f"{copy['sync']:.0%}",
            copy["why"] or "-",
        )
        for name, member in leader["members"].items()
        if (copy := member.get("store"))
    ]
    print_table(("node", "store", "behind", "copied", "why"), rows)
    typer.echo(
        f"view {leader['view']}, primary {leader['primary'] or 'nobody'}; in sync:"
        f" {leader['in_sync'] or 'nobody'}"
    )
    if leader.get("proposal"):
        typer.echo(f"proposed as in sync: {cell(leader['proposal'])}")
    if leader.get("loss"):
        typer.echo(
            f"acknowledged writes may be missing ({cell(leader['loss'])}): a last resort chose the"
            " primary. `tidewarden cluster confirm` ends this line"
        )


def _show_choice(choice: dict[str, Any], *, err: bool) -> None:
    """Show what a last resort would choose, and what may be missing then."""
    typer.echo(
        f"{cell(choice['node'])} would have the primary, whose data is of view {choice['view']}, as"
        f" far as mark {choice['seq']}",
        err=err,
    )
    typer.echo(f"loss: {cell(choice['loss']) or 'none'}", err=err)
    for sentence in (*choice["missing"], *choice["others"]):
        typer.echo(f"  {cell(sentence)}", err=err)
