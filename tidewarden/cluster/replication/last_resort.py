"""Goes on with a store that was not in sync, by an operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.errors import StoreDown

from .chooser import Chooser
from .election import Choice
from .raft_stores import RaftStores
from .store_report import StoreReport

_MISSING = {
    "possible": [
        "every member of the in-sync set was heard, but one had lost its newest writes, or its"
        " disk: what only it had acknowledged may be missing"
    ],
    "likely": [
        "not every member of the in-sync set was heard: what was acknowledged and has not come to"
        " the chosen store is lost"
    ],
}


class LastResort:
    """Says what would be chosen, and chooses it."""

    def __init__(self, member: RaftStores, chooser: Chooser) -> None:
        self._member, self._chooser = member, chooser

    async def choice(self, node: str | None) -> dict[str, Any]:
        """
        Return what :meth:`recover` would choose, and change nothing.

        Raises: StoreDown: there is nothing to recover, or no store can be chosen; why. NoLeader,
        Timeout.
        """
        choice, reports = await self._chooser.choose(node or "")
        return self._told(choice, reports)

    async def recover(self, node: str | None) -> dict[str, Any]:
        """
        Make the store of ``node`` primary (None: the one whose data came furthest).

        Returns: what was chosen, as :meth:`choice`. Raises: the same.
        """
        choice, reports = await self._chooser.choose(node or "")
        told = self._told(choice, reports)
        assert choice.command is not None
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
        Note that somebody knows of the loss, and return what it was.

        Raises: NoLeader, Timeout.
        """
        facts = await self._member.look_stores()
        if not facts.loss:
            return ""
        await self._member.store_command(("confirm", facts.version))
        return facts.loss

    def _told(self, choice: Choice, reports: Mapping[str, StoreReport]) -> dict[str, Any]:
        if choice.command is None:
            raise StoreDown(choice.why or "the primary is well: there is nothing to recover")
        name, *rest = choice.command
        node, loss = "", ""
        if name == "recover":
            node, loss = rest[2], rest[5]
        else:
            node = rest[0] if name == "found" else rest[1]
        report = reports[node]
        return {
            "node": node,
            "view": report.view,
            "seq": report.seq,
            "loss": loss,
            "missing": _MISSING.get(loss, []),
            "others": [
                f"{other}: view {one.view}, mark {one.seq}" if one.incarnation else f"{other}: away"
                for other, one in sorted(reports.items())
                if other != node
            ],
        }
