"""Watches the nodes of a local cluster once a second, for a view on a terminal or as events."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.live import Live

from tidewarden.clock import Clock
from tidewarden.store.connect import redact
from tidewarden.store.redis_py import NoBackoff, Redis, RedisError, Retry

from .connection import plain
from .up.data_folder import ADMIN
from .up.live_view import (
    NodeRow,
    ViewSnapshot,
    by_time_left,
    leader_of,
    primary_of,
    render,
    stores_of,
)
from .up.local_cluster import LocalCluster

ASK_S = 1.0
"""Between two looks at the nodes."""
UNSEEN_ASK_S = 3.0
"""Likewise while nothing is drawn: a change of leader or primary is still told."""
ANSWER_S_MAX = 2.0
SAMPLE_S = 5.0
SAMPLE_MAX = 200
"""So that the view is not the heaviest user of the cluster that it shows."""
RATE_LOOKS = 6
REFRESHED = "tidewarden_queue_accounts_refreshed_total{"


class Watch:
    """
    Asks, and draws if there is a console; a change of leader, primary or in-sync set is an event.
    """

    def __init__(self, cluster: LocalCluster, clock: Clock, console: Console | None) -> None:
        self._cluster = cluster
        self._clock = clock
        self._console = console
        self._since = clock.monotonic()
        self._lines: dict[str, Redis] = {}
        self._status: dict[str, Mapping[str, Any]] = {}
        self._tokens: Mapping[str, Mapping[str, int]] = {}
        self._told_at = self._since
        self._left: Mapping[str, int] = {}
        self._rate = RefreshRate()
        self._sample_at = 0.0
        self._leader = ""
        self._stores = ("", 0, "")
        self.drawing = False
        """Whether the screen is ours just now, so that nobody may print."""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            if self._console is None:
                await self._ask_for_ever(None)
            with Live(console=self._console, screen=True, auto_refresh=False) as live:
                self.drawing = True
                await self._ask_for_ever(live)
        finally:
            self.drawing = False
            for line in self._lines.values():
                await line.aclose()

    def snapshot(self) -> ViewSnapshot:
        """Return the state to draw."""
        plan, cluster = self._cluster.plan, self._cluster
        return ViewSnapshot(
            nodes=[self._row(name) for name in plan.names],
            tokens=self._tokens,
            told_s=self._clock.monotonic() - self._told_at,
            left=self._left,
            refreshes_per_s=self._rate.per_s(),
            refreshes_total=self._rate.total,
            events=list(cluster.events),
            up_s=self._clock.monotonic() - self._since,
            data_dir=str(plan.data_dir),
            program=program(),
            store=self.store(),
            sandbox_url=f"http://127.0.0.1:{plan.sandbox_port}" if plan.sandbox_accounts else "",
        )

    async def _ask_for_ever(self, live: Live | None) -> None:
        while True:
            until = self._clock.monotonic() + (UNSEEN_ASK_S if live is None else ASK_S)
            await asyncio.gather(*(self._ask(name) for name in self._cluster.plan.names))
            first = next(
                (name for name in self._cluster.plan.names if self._status.get(name)), None
            )
            if first is not None and live is not None:
                await self._ask_of_tokens(first)
            self._note_leader()
            if live is not None:
                live.update(
                    render(self.snapshot(), live.console.height, live.console.width), refresh=True
                )
            await self._clock.sleep_until(until)

    async def _ask(self, name: str) -> None:
        """
        Ask one node for its status, which a node that is not ready has, too; empty: no answer.
        """
        child = self._cluster.nodes[name]
        if child.pid is None or not child.served.is_set():
            self._status.pop(name, None)
            return
        try:
            self._status[name] = await self._call(name, "R.STATUS")
        except (RedisError, OSError, TimeoutError):
            self._status[name] = {}

    async def _ask_of_tokens(self, name: str) -> None:
        """Ask one node about all tokens; what it does not answer stays as it was."""
        now = self._clock.monotonic()
        try:
            self._tokens = await self._call(name, "T.STATS")
            self._told_at = self._clock.monotonic()
            if now >= self._sample_at:
                self._sample_at = now + SAMPLE_S
                rows, _ = await self._call(name, "T.LIST", "COUNT", SAMPLE_MAX)
                self._left = by_time_left(
                    (int(row["expires_at_ms"]) for row in rows), self._clock.unix_ms()
                )
                self._rate.add(now, await self._refreshed(name))
        except (RedisError, OSError, TimeoutError, aiohttp.ClientError):
            return

    async def _call(self, name: str, *command: str | int) -> Any:
        line: Any = self._line(name)
        async with asyncio.timeout(ANSWER_S_MAX):
            return plain(await line.execute_command(*command))

    async def _refreshed(self, name: str) -> int:
        """Return how many refreshes were stored since there is data, as ``/metrics`` tells it."""
        plan = self._cluster.plan
        headers = {"Authorization": f"Bearer {ADMIN}:{plan.secret('admin.secret')}"}
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        url = f"http://{plan.address(name, 1)}/metrics"
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as http,
            http.get(url, headers=headers) as answer,
        ):
            text = await answer.text()
        return round(
            sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(REFRESHED))
        )

    def _line(self, name: str) -> Redis:
        if name not in self._lines:
            plan = self._cluster.plan
            self._lines[name] = Redis(
                host=plan.config.node.host,
                port=plan.base_port(name),
                username=ADMIN,
                password=plan.secret("admin.secret"),
                protocol=3,
                # No socket_timeout: redis-py then sends under asyncio.wait_for, which on Python
                # 3.11 can lose a cancel.
                socket_timeout=None,
                single_connection_client=True,
                retry=Retry(NoBackoff(), 0),
            )
        return self._lines[name]

    def _row(self, name: str) -> NodeRow:
        child = self._cluster.nodes[name]
        status = self._status.get(name)
        if child.pid is None:
            state = "down"
        elif not child.serves:
            state = "not ready" if child.served.is_set() else "starting"
        else:
            state = "silent" if status == {} else "serves"
        plan, stores = self._cluster.plan, self._cluster.stores
        return NodeRow(
            name,
            plan.config.node.host,
            plan.base_port(name),
            child.pid,
            state,
            child.restarts,
            status or {},
            own_store=name in stores.hosts,
            store_pid=stores.pid(name),
        )

    def _note_leader(self) -> None:
        rows = [self._row(name) for name in self._cluster.plan.names]
        leader = leader_of(rows)
        found = f"{leader.name} leads, epoch {leader.status.get('epoch')}" if leader else ""
        if found != self._leader:
            self._cluster.tell("up", found or "no leader")
            self._leader = found
        if (primary := primary_of(rows)) is not None:
            status = stores_of(rows)
            known = primary.name, int(status.get("view") or 0), str(status.get("in_sync") or "")
            if known != self._stores:
                name, view, in_sync = known
                self._cluster.tell("up", f"{name} is the primary, view {view}; in sync: {in_sync}")
                self._stores = known

    def store(self) -> str:
        """Describe the store in a line, or how many there are and which of them are in sync."""
        plan, store = self._cluster.plan, self._cluster.stores.one
        if hosts := self._cluster.stores.hosts:
            status = stores_of([self._row(name) for name in plan.names])
            in_sync = str(status.get("in_sync") or "").split()
            loss = status.get("loss")
            return f"{len(in_sync)} of {len(hosts)} in sync: {' '.join(in_sync) or 'none'}" + (
                f"; acknowledged writes may be missing ({loss}): {program()} cluster status"
                if loss
                else ""
            )
        if store is None:
            return redact(plan.config.store.url)
        return f"valkey-server, pid {store.pid or '-'}, view {store.view}, {store.socket_path}"


def program() -> str:
    """
    Return how to call the command line from here.

    It is the name only if a shell finds this very program by it.
    """
    called = sys.argv[0]
    if Path(called).name != "tidewarden":
        return "python -m tidewarden"
    found = shutil.which("tidewarden")
    return (
        "tidewarden"
        if found and Path(found).resolve() == Path(called).resolve()
        else shlex.quote(called)
    )


class RefreshRate:
    """Measures a counter's growth a second, over the last few looks at it."""

    def __init__(self) -> None:
        self.total = 0
        self._history: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS)

    def add(self, now: float, total: int) -> None:
        """Take the count at one moment: ``now`` in monotonic seconds."""
        if total < self.total:
            self._history.clear()
        self.total = total
        self._history.append((now, total))

    def per_s(self) -> float | None:
        """Return the rate per second; None before the second look."""
        if len(self._history) < 2:
            return None
        (since, before), (now, after) = self._history[0], self._history[-1]
        return (after - before) / (now - since)
