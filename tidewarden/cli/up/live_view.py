"""
Draws the view of ``tidewarden up`` on a terminal.

Pure: a :class:`ViewSnapshot` goes in, something that rich prints comes out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidewarden.cli.options import DATA_DIR
from tidewarden.cli.output import in_trouble
from tidewarden.config.addresses import joined

TOKEN_STATES = {
    # state: (what it says of the time left, colour)
    "fresh": ("refresh not yet due", "green"),
    "expiring": ("refresh due, token still valid", "yellow"),
    "late": ("expired before its refresh", "red"),
    "failing": ("provider refuses or errs", "magenta"),
    "stopped": ("given up asking: token refresh", "red"),
    "dead": ("grant lost, new consent needed", "red"),
}
LEFT_S = {
    "expired": 0,
    "< 10 s": 10,
    "< 30 s": 30,
    "< 1 min": 60,
    "< 2 min": 120,
    "< 10 min": 600,
    "< 1 h": 3600,
}
LEFT_MORE = "≥ 1 h"
LEFT_NONE = "no token yet"
PROVIDERS_MAX = 4
"""Providers in trouble that are shown; of more it is said how many."""
BAR_CELLS = 30
BAR_CELLS_NARROW = 10
BESIDE_BAR_CELLS = 50
"""State, number, meaning and the gaps between: what is left of a narrow terminal is the bar's."""
ROWS_LOW = 32
"""A terminal with fewer rows shows the first hint only."""
HINTS_LOW = 1
COLUMNS = (
    *("node", "role", "epoch", "pid", "state", "store", "store pid"),
    *("Redis clients", "HTTP", "restarts"),
)
OF_OWN_STORES = ("store", "store pid")
"""Columns that there are where each node has a store of its own."""
NUMBERS = ("epoch", "pid", "store pid", "restarts")
DISPENSABLE = ("restarts", "epoch", "Redis clients", "HTTP")
"""
Columns that a narrow terminal does without, the first of them first: the console is at HTTP, and
the port for Redis clients one below.
"""
COLUMN_GAP = 2
OLD_S = 5.0
"""What was told so long ago is said to be old."""


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """Describes an event for a person."""

    at: str
    """Wall-clock time, ``12:00:01``."""
    subject: str
    """``up``, ``store``, ``sandbox`` or a node's name."""
    text: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Describes one node as ``up`` sees it."""

    name: str
    host: str
    base_port: int
    pid: int | None = None
    state: str = "starting"
    """``starting``, ``serves``, ``not ready``, ``silent`` or ``down``."""
    restarts: int = 0
    status: Mapping[str, Any] = field(default_factory=dict)
    """Its ``R.STATUS``; empty while it does not answer."""
    own_store: bool = False
    """Whether it has a store of its own; else all nodes share one."""
    store_pid: int | None = None


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """Holds everything there is to draw, at one moment."""

    nodes: Sequence[NodeRow]
    tokens: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``T.STATS``: accounts by state, and how it stands, per provider."""
    told_s: float = 0.0
    """How long ago that was told, seconds: no node may answer just now."""
    left: Mapping[str, int] = field(default_factory=dict)
    """
    A sample of accounts by the life that their access tokens have left: see :func:`by_time_left`.
    """
    refreshes_per_s: float | None = None
    """None while there is nothing to measure with."""
    refreshes_total: int = 0
    events: Sequence[ShownEvent] = ()
    up_s: float = 0.0
    data_dir: str = ""
    program: str = "tidewarden"
    """How whoever looks on can call the command line."""
    store: str = ""
    sandbox_url: str = ""


def leader_of(nodes: Sequence[NodeRow]) -> NodeRow | None:
    """
    Return the node that says it leads, by the greatest epoch when two believe so.

    One that has no epoch yet is about to.
    """
    leaders = [
        node
        for node in nodes
        if node.status.get("role") == "leader" and node.status.get("epoch") and node.pid is not None
    ]
    return max(leaders, key=lambda node: int(node.status.get("epoch") or 0), default=None)


def stores_of(nodes: Sequence[NodeRow]) -> Mapping[str, Any]:
    """
    Return the ``R.STATUS`` of the node that knows most of the stores; empty where none answers.

    That is the leader, else the node that knows the newest view.
    """
    leader = leader_of(nodes)
    known = [leader] if leader and leader.status.get("members") else nodes
    return max((node.status for node in known), key=lambda one: int(one.get("view") or 0))


def primary_of(nodes: Sequence[NodeRow]) -> NodeRow | None:
    """Return the node whose own store takes the writes; None: not known, or they share one."""
    primary = stores_of(nodes).get("primary") if nodes else None
    return next((node for node in nodes if node.own_store and node.name == primary), None)


def by_time_left(expires_at_ms: Iterable[int], now_ms: int) -> dict[str, int]:
    """Return counts by the life left, shortest first; 0: an account has no access token yet."""
    counts = dict.fromkeys((*LEFT_S, LEFT_MORE, LEFT_NONE), 0)
    for at_ms in expires_at_ms:
        left_s = (at_ms - now_ms) / 1000
        name = next((name for name, bound_s in LEFT_S.items() if left_s < bound_s), LEFT_MORE)
        counts[name if at_ms else LEFT_NONE] += 1
    return counts


def render(snapshot: ViewSnapshot, rows: int, columns: int) -> RenderableType:
    """
    Draw the screen for a terminal of that many rows and columns; events take the remaining rows.
    """
    hints = _hints(snapshot)
    above = [
        _headline(snapshot),
        _console(snapshot),
        Text(),
        _nodes(snapshot.nodes, columns),
        Text(),
        *_tokens(snapshot, columns),
        Text(),
        *(hints if rows >= ROWS_LOW else hints[:HINTS_LOW]),
        Text(),
    ]
    taken = sum(
        part.row_count + part.show_header if isinstance(part, Table) else 1 for part in above
    )
    return Group(*above, *_events(snapshot.events, max(0, rows - taken - 1)))


def _headline(snapshot: ViewSnapshot) -> Text:
    leader = leader_of(snapshot.nodes)
    line = Text("Tidewarden", style="bold cyan", no_wrap=True, overflow="ellipsis")
    if leader is None:
        line.append("  no leader", style="bold red")
    else:
        line.append(f"  {leader.name} leads, epoch {leader.status.get('epoch')}", style="bold")
    primary = primary_of(snapshot.nodes)
    if primary is not None:
        view = stores_of(snapshot.nodes).get("view")
        line.append(f"  {primary.name} is the primary, view {view}", style="bold")
    minutes, seconds = divmod(int(snapshot.up_s), 60)
    line.append(
        f"   up {minutes // 60}:{minutes % 60:02}:{seconds:02}   Ctrl-C stops all of it",
        style="dim",
    )
    return line


def _console(snapshot: ViewSnapshot) -> Text:
    """Say where the console is, and who may log in there."""
    secret = f"{snapshot.data_dir}/secrets/admin.secret"
    return _hint("console", f"{_http(_asked(snapshot))}/   (user admin, secret {secret})")


def _asked(snapshot: ViewSnapshot) -> NodeRow:
    """Return the node that hints name: one that serves, if any does."""
    return next((node for node in snapshot.nodes if node.state == "serves"), snapshot.nodes[0])


def _http(node: NodeRow) -> str:
    return f"http://{joined(node.host, node.base_port + 1)}"


def _nodes(nodes: Sequence[NodeRow], columns: int) -> Table:
    """Make a row for each node, in as many columns as there is room for."""
    members = stores_of(nodes).get("members") or {}
    rows = [_node(node, (members.get(node.name) or {}).get("store") or {}) for node in nodes]
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in COLUMNS}
    hidden = () if any(node.own_store for node in nodes) else OF_OWN_STORES
    shown = [name for name in COLUMNS if name not in hidden]
    for name in DISPENSABLE:
        if sum(widths[one] + COLUMN_GAP for one in shown) <= columns:
            break
        shown.remove(name)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, COLUMN_GAP, 0, 0))
    for name in shown:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _node(node: NodeRow, store: Mapping[str, Any]) -> dict[str, Text]:
    role = str(node.status.get("role") or "-") if node.pid is not None else "-"
    colour = {"serves": "green", "starting": "yellow", "silent": "yellow"}.get(node.state, "red")
    return {
        "node": Text(node.name, style="bold"),
        "role": Text(role, style={"leader": "bold cyan", "orphan": "bold red"}.get(role, "")),
        "epoch": Text(str(node.status.get("epoch", "-")) if node.pid is not None else "-"),
        "pid": Text(str(node.pid or "-")),
        "state": Text(node.state, style=colour),
        "store": _store(node, store),
        "store pid": Text(str(node.store_pid or "-")),
        "Redis clients": Text(joined(node.host, node.base_port)),
        "HTTP": Text(joined(node.host, node.base_port + 1)),
        "restarts": Text(str(node.restarts or "")),
    }


def _store(node: NodeRow, store: Mapping[str, Any]) -> Text:
    """Word what a node's own store is to the others; ``store``: as ``R.STATUS`` says of it."""
    role = str(store.get("role") or "")
    if node.store_pid is None:
        return Text("down", style="red")
    if role == "learner":
        share = store.get("sync")
        return Text(f"copies {share:.0%}" if share else "catches up", style="yellow")
    shown = {"primary": ("primary", "bold cyan"), "member": ("in sync", "green")}
    text, style = shown.get(role, ("away" if role else "-", "red" if role else ""))
    return Text(text, style=style)


def _tokens(snapshot: ViewSnapshot, columns: int) -> list[Text | Table]:
    counts = {
        state: sum(int(provider.get(state, 0)) for provider in snapshot.tokens.values())
        for state in TOKEN_STATES
    }
    counts["dead"] += sum(
        int(provider.get("lost_rotation", 0)) for provider in snapshot.tokens.values()
    )
    total = sum(int(provider.get("total", 0)) for provider in snapshot.tokens.values())
    line = Text("tokens", style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"  {total:,}")
    late = Text(f"   {counts['late']:,} late", style="red" if counts["late"] else "not bold")
    if snapshot.tokens and snapshot.told_s > OLD_S:
        line.append(f"   {snapshot.told_s:.0f} s ago: no node tells just now", style="yellow")
    elif snapshot.refreshes_per_s is not None:
        line.append(f"   {snapshot.refreshes_per_s:,.1f} refreshes/s")
        so_far = f"   {snapshot.refreshes_total:,} refreshed so far"
        if line.cell_len + len(so_far) + late.cell_len <= columns:
            line.append(so_far, style="not bold")
    line.append(late)
    if not total:
        line.append("   none yet: tidewarden token import FILE", style="dim")
        return [line]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=8)
    table.add_column(no_wrap=True, min_width=6, justify="right")
    cells_max = max(BAR_CELLS_NARROW, min(BAR_CELLS, columns - BESIDE_BAR_CELLS))
    table.add_column(no_wrap=True, min_width=cells_max)
    table.add_column(no_wrap=True, style="dim", overflow="ellipsis")
    for state, (meaning, colour) in TOKEN_STATES.items():
        cells = round(cells_max * counts[state] / total) or (1 if counts[state] else 0)
        bar = Text("█" * cells, style=colour).append("·" * (cells_max - cells), style="dim")
        table.add_row(
            Text(state, style=colour if counts[state] else "dim"),
            f"{counts[state]:,}",
            bar,
            meaning,
        )
    return [line, table, _time_left(snapshot.left, total), *_providers(snapshot.tokens)]


def _providers(stats: Mapping[str, Mapping[str, Any]]) -> list[Text]:
    """Make a line for each provider in trouble, those first whose accounts suffer most."""
    troubled = [(name, one) for name, one in stats.items() if in_trouble(one)]
    troubled.sort(key=lambda pair: -int(pair[1].get("failing", 0)))
    lines = [
        Text(f"{name} ", style="bold red", no_wrap=True, overflow="ellipsis")
        .append(_stands(one), style="not bold")
        .append(str(one.get("message") or one.get("error") or ""), style="not bold red")
        for name, one in troubled[:PROVIDERS_MAX]
    ]
    if len(troubled) > PROVIDERS_MAX:
        lines.append(
            Text(
                f"{len(troubled) - PROVIDERS_MAX} more: tidewarden token stats, token why PROVIDER",
                style="dim",
            )
        )
    return lines


def _stands(stands: Mapping[str, Any]) -> str:
    """Word how a provider in trouble stands, so that its error can follow."""
    if stands.get("state", "answers") != "answers":
        return f"is {stands['state']}{_since(stands)}, next try {_clock(stands.get('next_ms'))}: "
    since = _clock(stands["quarantined_since_ms"])
    return f"is in quarantine since {since}: no refusal counts, and nobody is given up"


def _since(stands: Mapping[str, Any]) -> str:
    return f" since {_clock(stands['since_ms'])}" if stands.get("since_ms") else ""


def _clock(unix_ms: int | None) -> str:
    """Write a time of day, as the events have it."""
    return (
        datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
        if unix_ms
        else "when due"
    )


def _time_left(left: Mapping[str, int], total: int) -> Text:
    sampled = sum(left.values())
    line = Text("time left", style="bold", no_wrap=True, overflow="ellipsis")
    if sampled < total:
        line.append(f" (of {sampled:,} looked at)", style="not bold dim")
    for name, count in left.items():
        if count:
            line.append(f"   {name}: ", style="not bold dim").append(f"{count:,}", style="not bold")
    return line


def _events(events: Sequence[ShownEvent], rows: int) -> list[Text]:
    lines = [
        Text(f"{event.at} ", style="dim", no_wrap=True, overflow="ellipsis")
        .append(f"{event.subject:8}", style="bold not dim")
        .append(event.text, style="not dim")
        for event in list(events)[-rows:]
    ]
    return [Text("events", style="bold"), *lines] if rows else []


def _hints(snapshot: ViewSnapshot) -> list[Text]:
    leader = leader_of(snapshot.nodes)
    first = _asked(snapshot)
    usual = Path(snapshot.data_dir) == Path(DATA_DIR)
    folder = "" if usual else f" --data-dir {shlex.quote(snapshot.data_dir)}"
    secret = f"$(cat {shlex.quote(snapshot.data_dir + '/secrets/admin.secret')})"
    http = _http(first)
    to = (
        f"-p {first.base_port}"
        if first.host == "127.0.0.1"
        else f"-h {first.host} -p {first.base_port}"
    )
    hints = {
        **_host_hint(snapshot.nodes),
        "kill the leader": f"kill -9 {leader.pid}" if leader else "nobody leads just now",
        "who leads": f"{snapshot.program} status{folder}",
        "tokens": f"{snapshot.program} token stats{folder}   (and: token list, show, why)",
        "Redis clients": f'redis-cli {to} --user admin --pass "{secret}" Q.LIST',
        "metrics": f'curl --oauth2-bearer "admin:{secret}" {http}/metrics',
        "store": snapshot.store,
    }
    if snapshot.sandbox_url:
        hints["make trouble"] = (
            f"curl '{snapshot.sandbox_url}/fault?status=503&every=2'   (without ?… it ends)"
        )
    return [_hint(name, text) for name, text in hints.items()]


def _hint(name: str, text: str) -> Text:
    style = "bold yellow not dim" if name.startswith("kill") else "not dim"
    return Text(f"{name:17}", style="dim", no_wrap=True, overflow="ellipsis").append(text, style)


def _host_hint(nodes: Sequence[NodeRow]) -> dict[str, str]:
    """Say how to lose the primary's whole host; nothing where all nodes share a store."""
    if not any(node.own_store for node in nodes):
        return {}
    primary = primary_of(nodes)
    if primary is None or primary.pid is None or primary.store_pid is None:
        return {"kill a host": "no primary just now"}
    return {
        "kill a host": f"kill -9 {primary.pid} {primary.store_pid}   (node and store of"
        f" {primary.name}, the primary)"
    }
