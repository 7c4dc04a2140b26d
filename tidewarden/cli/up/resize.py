"""
Resizes the cluster of ``tidewarden up``.

When the number of nodes differs from its data folder's, members change while it runs.

Which nodes are members is what the cluster has committed, not what ``up`` was told: so newcomers
are let in by those that were there, and those that are no longer wanted leave once all others
serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.cli.connection import Broken, NodeError, dial
from tidewarden.clock import Clock, sleep
from tidewarden.errors import ConfigError, Error

from .data_folder import ADMIN, FolderPlan

MARKER = "member"
"""
A file in the folder of each node that has served as a member. Its journal is no sign of that: it is
there before the node is let in.
"""
JOURNALS = ("raft.journal", "raft.journal.meta", "raft.dump")
TRIES_S = 30.0
SILENCE_S = 8.0


class NotResized(Error):
    """The members could not be changed; the message says why."""


def settled(plan: FolderPlan) -> list[str]:
    """List the nodes of the plan that have taken part before; empty at a first start."""
    return [name for name in plan.names if (plan.folder(name) / MARKER).exists()]


def surplus(plan: FolderPlan) -> list[str]:
    """
    List the nodes that took part before and are not in the plan.

    Raises: ConfigError: those that stay are no majority of all, so they could not let the others
    go.
    """
    gone = sorted(
        path.parent.name
        for path in plan.data_dir.glob(f"n*/{MARKER}")
        if path.parent.name not in plan.names
    )
    stay = len(settled(plan))
    if gone and 2 * stay <= stay + len(gone):
        total = stay + len(gone)
        fewest = total // 2 + 1
        way = (
            f"start it with --nodes {total}, `tidewarden cluster leave {gone[-1]}`, stop it, then"
            f" --nodes {total - 1}"
        )
        if fewest < total:
            way = f"go by --nodes {fewest} first"
        raise ConfigError(
            [
                f"--nodes {plan.node_total}: {plan.data_dir} has {total} nodes, so a majority must"
                f" stay; {way}"
            ]
        )
    return gone


def forget(plan: FolderPlan, name: str) -> None:
    """Forget a node that has left: its votes are over, and should it come back it is a newcomer."""
    for file in (MARKER, *JOURNALS):
        (plan.data_dir / name / file).unlink(missing_ok=True)


def settle(plan: FolderPlan) -> None:
    """Note that all nodes of the plan serve and are members from now on."""
    for name in plan.names:
        (plan.folder(name) / MARKER).touch()


def members(plan: FolderPlan) -> set[str]:
    """Return the members as a node that serves knows them; empty as long as none does."""
    for name in plan.names:
        try:
            status: Mapping[str, Any] = _ask(plan, name, "R.STATUS")
        except NodeError:
            continue
        if status["raft"].get("members_version"):
            return set(status["members"])
    return set()


def join(plan: FolderPlan, name: str) -> None:
    """Let a node join. Raises: NodeError: the last node's answer."""
    _everywhere(plan, "R.JOIN", name, plan.address(name))


def leave(plan: FolderPlan, name: str) -> None:
    """
    Remove a node from the members.

    Raises: NodeError: the last node's answer.
    """
    _everywhere(plan, "R.LEAVE", name)


async def keep_trying(clock: Clock, attempt: Any) -> Any:
    """
    Repeat ``attempt()``, a coroutine function, until it returns something true, and return that.

    Raises: NotResized: it did not in time.
    """
    until = clock.monotonic() + TRIES_S
    why = "no node knows the members"
    while clock.monotonic() < until:
        try:
            if found := await attempt():
                return found
        except NodeError as error:
            why = str(error)
        await sleep(clock, 0.1)
    raise NotResized(f"the members were not changed within {TRIES_S:.0f} s: {why}")


def _everywhere(plan: FolderPlan, *command: str) -> None:
    trouble: NodeError = Broken("there is no node")
    for name in plan.names:
        try:
            _ask(plan, name, *command)
            return
        except NodeError as error:
            trouble = error
    raise trouble


def _ask(plan: FolderPlan, name: str, *command: str) -> Any:
    secret = plan.secret("admin.secret")
    line = dial(f"redis://{ADMIN}:{secret}@{plan.address(name)}", SILENCE_S)
    try:
        return line.call(*command)
    finally:
        line.close()
