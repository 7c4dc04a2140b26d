"""Goes on with a store that was not in sync, by an operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.errors import BadArg, StoreDown

from .chooser import Chooser
from .election import Choice
from .raft_stores import RaftStores
from .store_report import StoreReport

_MISSING = {
    "possible": (
        "every member of the in-sync set was heard, but one may have lost its newest writes: what"
        " only it had acknowledged may be missing"
    ),
    "likely": (
        "not every store that may have acknowledged writes was heard with its data: what was"
        " acknowledged and has not come to the chosen store is lost"
    ),
}


class LastResort:
    """Shows the store that the last resort would choose, and chooses it."""

    def __init__(self, member: RaftStores, chooser: Chooser) -> None:
        self._member, self._chooser = member, chooser

    async def choice(self, node: str | None) -> dict[str, Any]:
        """
        Return what :meth:`recover` would choose, and change nothing.

        Raises: StoreDown: there is nothing to recover, or no store can be chosen; why. NoLeader,
        Timeout.
        """
        choice, reports = await self._choose(node)
        return self._told(choice, reports)

    async def recover(self, node: str | None, begin_empty: bool) -> dict[str, Any]:
        """
        Make the store of ``node`` primary (None: the one whose data came furthest).

        Returns: what was chosen, as :meth:`choice`. Raises: the same. BadArg: that store is empty,
        others may not be, and ``begin_empty`` was not said.
        """
        choice, reports = await self._choose(node)
        told = self._told(choice, reports)
        assert choice.command is not None
        if not told["view"] and told["loss"] and not begin_empty:
            raise BadArg(
                f"{told['node']}'s store is empty: the cluster would begin anew, without any of its"
                " data. Bring back a store that has them; to begin anew, say BEGINEMPTY as well"
                " (`tidewarden cluster recover NODE --accept-loss --begin-empty`)."
            )
        before = self._member.store_facts()
        facts = await self._member.store_command(choice.command)
        if facts.version == before.version or facts.primary != told["node"]:
            raise StoreDown(
                f"another change came first: the primary is {facts.primary or 'nobody'}, in view"
                f" {facts.view}; ask again if that is not enough"
            )
        return told

    async def confirm(self) -> str:
        """
        Note that an operator knows of the loss, and return what it was.

        Raises: NoLeader, Timeout.
        """
        facts = await self._member.look_stores()
        if not facts.loss:
            return ""
        await self._member.store_command(("confirm", facts.version))
        return facts.loss

    async def _choose(self, node: str | None) -> tuple[Choice, Mapping[str, StoreReport]]:
        if fault := self._member.quorum_fault():
            raise StoreDown(
                f"no store can be chosen while no majority of the nodes is heard: {fault}. Of hosts"
                ' that are lost for good: docs/replication.md, "Two of three hosts are gone"'
            )
        return await self._chooser.choose(node or "")

    def _told(self, choice: Choice, reports: Mapping[str, StoreReport]) -> dict[str, Any]:
        if choice.command is None:
            raise StoreDown(choice.why or "the primary is well: there is nothing to recover")
        name, *rest = choice.command
        node, loss = "", ""
        if name == "recover":
            node, loss = rest[2], rest[5]
        elif name == "found":
            node, loss = rest[0], (*rest[3:], "")[0]
        else:
            node = rest[1]
        report = reports[node]
        others = sorted((self._member.voters() | reports.keys()) - {node})
        unheard = [other for other in others if _has(reports.get(other)) in _WITHOUT]
        missing = [_MISSING[loss]] if loss else []
        if loss and unheard:
            missing.append(f"without data, or not heard: {', '.join(unheard)}")
        if loss and not report.view:
            missing.append(f"{node}'s store is empty: everything is lost that no other store has")
        return {
            "node": node,
            "view": report.view,
            "seq": report.seq,
            "loss": loss,
            "missing": missing,
            "others": [f"{other}: {_has(reports.get(other))}" for other in others],
        }


_WITHOUT = _AWAY, _DOWN, _EMPTY = "its node is not heard", "away", "empty"


def _has(report: StoreReport | None) -> str:
    """Word the data of a store."""
    if report is None:
        return _AWAY
    if not report.incarnation:
        return _DOWN
    return f"view {report.view}, mark {report.seq}" if report.view else _EMPTY
