"""
Nodes that stop at a given step of a given account's refresh, to be killed or paused exactly there.

They are real nodes, and it is a real SIGKILL: what the product does is wrapped in the node's
process, before it is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from support.cluster.harness import Cluster, Node
from support.cluster.nursery import Child

STEPS = {
    "leased": "before the intent",
    "intended": "after the intent, before the request's first byte",
    "sent": "after the request was sent; it never arrives",
    "answered": "after the provider has answered; the answer never arrives",
    "heard": "after the answer came, before the journal",
    "torn": "in the middle of the journal's write",
    "written": "after the journal's fsync, before the write-back",
    "storing": "during the write-back: the store has done it and was not heard",
    "stored": "after the write-back, before the journal knows",
}
"""
Every step of a refresh in its order. At ``sent`` and ``answered`` :mod:`support.providers.gateway`
holds what is under way.
"""

Method = Callable[..., Awaitable[Any]]


@dataclass
class Stage:
    """
    What a node's process does at the steps. ``plan``: account (with its provider) -> the step at
    which it stops.

    ``marks``: a folder in which each that has stopped leaves a file; they go on when there is one
    named ``go``. ``suicide``: the last that stops kills the process there and then.
    """

    marks: Path
    plan: dict[str, str]
    suicide: bool

    async def reach(self, step: str) -> None:
        """The account whose refresh this is has come to a step."""
        account = asyncio.current_task().get_name().removeprefix("refresh ")  # type: ignore[union-attr]
        if self.plan.get(account) != step:
            return
        del self.plan[account]
        while step == "torn" and self.plan:
            await asyncio.sleep(0.02)  # All their answers are here, when the first is written.
        if step == "torn":
            return
        if self.suicide and not self.plan:
            os.kill(os.getpid(), signal.SIGKILL)
        mark(self.marks, account).touch()
        while not (self.marks / "go").exists():
            await asyncio.sleep(0.02)

    def before(self, step: str, method: Method) -> Method:
        @wraps(method)
        async def wrapped(*args: Any, **options: Any) -> Any:
            await self.reach(step)
            return await method(*args, **options)

        return wrapped

    def after(self, step: str, method: Method) -> Method:
        @wraps(method)
        async def wrapped(*args: Any, **options: Any) -> Any:
            result = await method(*args, **options)
            await self.reach(step)
            return result

        return wrapped


def mark(marks: Path, account: str) -> Path:
    """The file that tells that this account has stopped."""
    return marks / account.replace("/", "~")


def install(marks: Path, plan: Mapping[str, str], suicide: bool, lease_slack_s: float) -> None:
    """
    Wrap what this process does of a refresh. ``lease_slack_s``: of the leases; 0: as they are.
    """
    from tidewarden.tokens.accounts.account_store import AccountStore
    from tidewarden.tokens.journal.journal import Journal
    from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
    from tidewarden.tokens.refresh import refresher
    from tidewarden.tokens.refresh.write_back import WriteBack

    refresher.LEASE_SLACK_S = lease_slack_s or refresher.LEASE_SLACK_S
    if not plan:
        return
    stage = Stage(marks, dict(plan), suicide)

    def wrap(where: Any, name: str, how: Callable[[str, Method], Method], step: str) -> None:
        setattr(where, name, how(step, getattr(where, name)))

    wrap(AccountStore, "intend", stage.before, "leased")
    wrap(TokenEndpoint, "refresh", stage.before, "intended")
    wrap(WriteBack, "settle", stage.before, "heard")
    wrap(WriteBack, "settle", stage.before, "torn")
    wrap(Journal, "add_answer", stage.after, "written")
    wrap(AccountStore, "stored", stage.after, "storing")
    wrap(WriteBack, "_write", stage.after, "stored")
    if "torn" in stage.plan.values():
        Journal._write = _tear  # type: ignore[method-assign]


def _tear(journal: Any, data: bytes) -> None:
    os.write(journal._file, data[:40])
    os.kill(os.getpid(), signal.SIGKILL)


class MortalNode(Node):
    """
    A node whose next start, and that alone, is of a process that stops at the steps of ``plan``.
    """

    lease_slack_s = 0.0
    plan: Mapping[str, str] = {}
    suicide = False

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    def start(self) -> None:
        self.marks.mkdir(parents=True, exist_ok=True)
        before = partial(install, self.marks, dict(self.plan), self.suicide, self.lease_slack_s)
        self._process = Child(self.config, self.output, self._namespace, before=before)
        self.plan = {}

    def stopped_at_steps(self) -> set[str]:
        """The accounts whose refreshes have stopped where they should."""
        return {path.name.replace("~", "/") for path in self.marks.iterdir()}

    def go(self) -> None:
        """Let them go on."""
        (self.marks / "go").touch()


class MortalCluster(Cluster):
    """A cluster of such nodes."""

    nodes: dict[str, MortalNode]  # type: ignore[assignment]

    def make_node(self, name: str, base: int, text: str) -> Node:
        return MortalNode(name, self.folder / name, base, text, self.secret)
