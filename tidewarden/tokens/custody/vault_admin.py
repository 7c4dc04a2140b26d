"""Serves an operator's verbs of the vault: status, rotation, export, import, unreadable answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights
from tidewarden.tokens.shared_parts import Job, SharedParts

from .export import Export, Page, Put, Results, Sealing, Told, ignored, put_lines
from .key_sync import KeySync
from .rotation import Rotator
from .unreadable_answers import UnreadableAnswers


class VaultAdmin:
    """
    Administers the vault of one node.

    Call :meth:`start` first, then run the coroutines of :meth:`jobs`, and call :meth:`stop` last.
    """

    def __init__(self, shared: SharedParts, put: Put) -> None:
        """Put accounts of ``provider/name`` by ``put``."""
        accounts, directory, clock = shared.accounts, shared.directory, shared.clock
        vault, keys, journal = shared.vault, shared.key_store, shared.journal
        node, address = shared.config.node.name, shared.config.node.address
        self.keeper = KeySync(node, vault, keys, journal, clock, address)
        self.rotator = Rotator(node, shared.queues, accounts, vault, keys, shared.records, clock)
        self._exporting = Export(accounts, vault, directory.known, directory.queues)
        self.unreadable = UnreadableAnswers(
            node, directory.queues, journal, vault, keys, accounts, shared.peers, clock
        )
        self._put = put
        self._journal = journal
        self._directory = directory

    async def start(self) -> None:
        """Write down in the store which keys this node knows. Raises what the store raises."""
        await self.keeper.look()

    def jobs(self) -> Sequence[Job]:
        """Return the jobs that run for ever."""
        return self.keeper.run, self.rotator.run, self.unreadable.run

    async def stop(self) -> None:
        """
        Hand a rotation on, and let none wait for this node unless its journal has answers left.

        Call it after the jobs have ended.
        """
        await self.rotator.stop()
        # Else its answers are sealed under keys that must not be dropped.
        if not (self._journal.pending() or self._journal.consents()):
            await self.keeper.leave()

    async def status(self) -> dict[str, Any]:
        """
        Describe the vault's keys by their ids, which nodes have them, and the rotation; no secrets.
        """
        return await self.rotator.status()

    async def rotate(self, *, force: bool = False) -> dict[str, Any]:
        """Begin a rotation; see :meth:`Rotator.ask`."""
        return await self.rotator.ask(force=force)

    async def export(
        self,
        sealing: Sealing,
        provider: str = "",
        count: int = 100,
        after: str = "",
        exported: AccountRights = EVERY_ACCOUNT,
        told: Told = ignored,
    ) -> Page:
        """
        Return a page of accounts with their tokens, sealed for a file; see :meth:`Export.page`.
        """
        names = self._directory.names(provider, exported)
        if not names:
            return [], "", []
        return await self._exporting.page(sealing, names, count, after, exported, told)

    async def import_sealed(
        self,
        sealing: Sealing,
        lines: Sequence[bytes],
        written: AccountRights = EVERY_ACCOUNT,
        told: Told = ignored,
    ) -> Results:
        """
        Put accounts from the lines of a sealed file, as far as they may be ``written``.

        See :func:`tidewarden.tokens.custody.export.put_lines`.
        """
        return await put_lines(self._put, sealing, lines, written, told)

    async def answers(self, account: str) -> dict[str, Any]:
        """
        List the successes of providers for ``provider/account`` that could not be read.

        See :meth:`UnreadableAnswers.of`.
        """
        provider, _, name = self._directory.account(account)
        return await self.unreadable.of(provider.name, name)
