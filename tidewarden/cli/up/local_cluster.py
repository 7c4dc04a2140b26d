"""
The local cluster of ``tidewarden up``: stores, nodes and perhaps a sandbox, all children of it.

Nothing outlives ``up``: it stops its children in order, and should it be killed itself the kernel
kills each of them. For a node that is as if its host had died, which intents and journals are made
for; a signal that it might sit out would leave it behind without a store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import aiohttp

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error
from tidewarden.store.child_process import FolderLock, how_ended, kill_group, start_child

from . import resize
from .data_folder import (
    SANDBOX_LIFE_S,
    FolderPlan,
    check_ports,
    make_secrets,
    write_node_files,
    write_private,
)
from .live_view import ShownEvent
from .stores import LocalStores, check_stores
from .supervise import Child, either

NODE_GRACE_S = 20.0
SANDBOX_GRACE_S = 3.0
READY_S_MAX = 60.0
EVENTS_KEPT = 200

OnEvent = Callable[[ShownEvent], None]
Argv = Callable[[str], Sequence[str]]


class NotReady(Error):
    """A part of the cluster did not come up; the message says which and why."""


class LocalCluster:
    """Runs everything of one ``tidewarden up``."""

    def __init__(
        self, plan: FolderPlan, clock: Clock, on_event: OnEvent, node_argv: Argv | None = None
    ) -> None:
        """
        Args:
            on_event: told of everything that happens, at once.
            node_argv: a node's command line by its name; ``None``: ``python -m tidewarden node
                --config …``.
        """
        self.plan = plan
        self.events: deque[ShownEvent] = deque(maxlen=EVENTS_KEPT)
        self.stores = LocalStores(plan, clock, self.tell)
        self.sandbox: Child | None = None
        self.nodes: dict[str, Child] = {}
        self._clock = clock
        self._on_event = on_event
        self._node_argv = node_argv or self._tidewarden_node
        self._lock = FolderLock(plan.data_dir)
        self._watchers: list[asyncio.Task[None]] = []

    def tell(self, subject: str, text: str) -> None:
        """Note an event."""
        now = datetime.fromtimestamp(self._clock.unix_ms() / 1000, UTC).astimezone()
        event = ShownEvent(now.strftime("%H:%M:%S"), subject, text)
        self.events.append(event)
        self._on_event(event)

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """
        Start everything, run ``body`` once every node serves, and stop everything when it ends.

        It ends by a return, an exception or a cancellation.

        Raises:
            ConfigError: a port is busy, the folder is not ours to write, a key is gone, …
            NotReady, StoreDown: a part did not come up.
        """
        await self._lock.acquire(self._clock)
        try:
            check_stores(self.plan)
            check_ports(self.plan)
            make_secrets(self.plan)
            try:
                async with asyncio.TaskGroup() as group:
                    await self._start(group)
                    await body()
                    for task in self._watchers:
                        task.cancel()
            except BaseExceptionGroup as failed:
                # What we foresee comes out as it is; the first is the cause, the others follow from
                # it.
                foreseen, defects = failed.split(Error)
                if foreseen is None or defects is not None:
                    raise
                raise foreseen.exceptions[0] from None
            finally:
                await self._stop()
        finally:
            self._lock.release()

    def kill(self) -> None:
        """End every child at once, after a second request to stop."""
        for child in (*self.nodes.values(), self.sandbox):
            if child is not None:
                child.kill()
        self.stores.kill()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        plan = self.plan
        store_url = await self.stores.start()
        self._watchers += [group.create_task(watch) for watch in self.stores.watches()]
        gone = resize.surplus(plan)
        write_node_files(plan, store_url)
        if plan.sandbox_accounts:
            self.sandbox = self._sandbox_child()
            self._watchers.append(group.create_task(self.sandbox.run()))
        settled = resize.settled(plan)
        self._run_nodes(group, settled or plan.names)
        if settled:
            await self._admit(group)
        if self.sandbox is not None:  # which has started long before a node refreshes anything
            await self._ready(self.sandbox)
        for child in self.nodes.values():
            await self._ready(child)
        # A folder whose nodes never agreed on who is a member could not tell so at its next start.
        await self._members()
        resize.settle(plan)
        for name in gone:
            await self._dismiss(name)
        if self.sandbox is not None:
            self._watchers.append(group.create_task(self._import_sandbox()))

    def _run_nodes(self, group: asyncio.TaskGroup, names: Sequence[str]) -> None:
        plan = self.plan
        for name in names:
            self.nodes[name] = Child(
                name,
                self._node_argv(name),
                plan.folder(name) / "output.log",
                self.tell,
                self._clock,
                ready_url=f"http://{plan.address(name, 1)}/health/ready",
                keep_fds=[self._lock.fd],
            )
            self._watchers.append(group.create_task(self.nodes[name].run()))

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        """
        Let nodes join that are new to the folder or have left, and start those that do not run.
        """
        members = await self._members()
        for name in self.plan.names:
            if name not in members:

                async def joined(name: str = name) -> bool:
                    await asyncio.to_thread(resize.join, self.plan, name)
                    return True

                await resize.keep_trying(self._clock, joined)
                self.tell(name, "joins the cluster")
        self._run_nodes(group, [name for name in self.plan.names if name not in self.nodes])

    async def _members(self) -> set[str]:
        """Return the members once the nodes have agreed on them."""

        async def known() -> set[str]:
            return await asyncio.to_thread(resize.members, self.plan)

        members: set[str] = await resize.keep_trying(self._clock, known)
        return members

    async def _dismiss(self, name: str) -> None:
        async def left() -> bool:
            members = await asyncio.to_thread(resize.members, self.plan)
            if name in members:
                await asyncio.to_thread(resize.leave, self.plan, name)
            return bool(members)

        await resize.keep_trying(self._clock, left)
        resize.forget(self.plan, name)
        self.tell(name, "left the cluster")

    async def _stop(self) -> None:
        """
        Stop the nodes, then the sandbox, then the stores.

        Nodes come first, so that what they have under way can still be stored.
        """
        if self.nodes:
            self.tell("up", "stopping the nodes")
        await asyncio.gather(*(child.stop(NODE_GRACE_S) for child in self.nodes.values()))
        if self.sandbox is not None:
            await self.sandbox.stop(SANDBOX_GRACE_S)
        await self.stores.stop()
        self.tell("up", "stopped")

    async def _ready(self, child: Child) -> None:
        served = asyncio.ensure_future(child.served.wait())
        try:
            await either(served, sleep(self._clock, READY_S_MAX))
            if not served.done():
                raise NotReady(
                    f"{child.name} did not serve within {READY_S_MAX:.0f} s: {child.last_words()}"
                    f" (all of it: {child.output})"
                )
        finally:
            served.cancel()

    def _tidewarden_node(self, name: str) -> Sequence[str]:
        return [
            sys.executable,
            "-m",
            "tidewarden",
            "node",
            "--config",
            str(self.plan.folder(name) / "node.toml"),
        ]

    def _sandbox_child(self) -> Child:
        plan = self.plan
        argv = [sys.executable, "-m", "tidewarden", "sandbox", "--data-dir", str(plan.data_dir)]
        argv += ["--port", str(plan.sandbox_port), "--accounts", str(plan.sandbox_accounts)]
        return Child(
            "sandbox",
            [*argv, "--life", str(SANDBOX_LIFE_S)],
            plan.data_dir / "sandbox" / "output.log",
            self.tell,
            self._clock,
            ready_url=f"http://127.0.0.1:{plan.sandbox_port}/stats",
            keep_fds=[self._lock.fd],
        )

    async def _import_sandbox(self) -> None:
        """
        Give the sandbox's accounts to the nodes, as ``tidewarden token import`` would; each account
        once.

        A failure is an event; the next start tries it again.
        """
        plan, folder = self.plan, self.plan.data_dir / "sandbox"
        marker = folder / "imported"
        done = int(marker.read_text()) if marker.exists() else 0
        if done >= plan.sandbox_accounts:
            return
        self.tell("sandbox", f"importing {plan.sandbox_accounts - done:,} accounts")
        seed = f"http://127.0.0.1:{plan.sandbox_port}/seed?n={plan.sandbox_accounts}&from={done}"
        try:
            async with (
                aiohttp.ClientSession(raise_for_status=True) as http,
                http.get(seed) as answer,
            ):
                rows = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.tell(
                "sandbox",
                f"gave no accounts: {str(error) or type(error).__name__}; the next start tries it"
                " again",
            )
            return
        table = folder / "accounts.tsv"
        write_private(table, rows)
        argv = [
            sys.executable,
            "-m",
            "tidewarden",
            "token",
            "import",
            str(table),
            "--provider",
            "sandbox",
        ]
        output = folder / "import.log"
        with output.open("wb") as file:
            process = await start_child(
                [*argv, "--data-dir", str(plan.data_dir), "--json"],
                output=file,
                environ={
                    name: value for name, value in os.environ.items() if name != "TIDEWARDEN_URL"
                },
            )
        try:
            returncode = await process.wait()
        finally:
            kill_group(process)
            table.unlink(missing_ok=True)
        if returncode:
            words = output.read_text("utf-8", errors="replace").strip()[-500:]
            self.tell(
                "sandbox",
                f"the import {how_ended(returncode)}: {words}; the next start tries it again",
            )
            return
        write_private(marker, str(plan.sandbox_accounts))
        self.tell("sandbox", f"{plan.sandbox_accounts - done:,} accounts imported")
