"""Runs the refreshers of every configured provider, and takes over changed ones while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidewarden.config.load import Provider
from tidewarden.duties import Duties
from tidewarden.tokens.accounts.directory import Directory
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint

from .offline_refresh import OfflineClient
from .pool import Pool

log = logging.getLogger("tidewarden.tokens")


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """Holds the parts that refresh the accounts of one provider's client."""

    provider: Provider
    pool: Pool
    offline: OfflineClient


class ProviderClients:
    """
    Holds the clients of one node by provider.

    A changed one begins when what its former self had under way has ended: two of one name never
    run at a time.

    Args:
        make: makes a provider's client.
        directory: knows what is configured; others look there, too.
        endpoint: forgets what it kept of former settings.
        offline: the clients that refresh without the store, which others read.
        whole: the providers whose rows are cached whole, likewise.

    ``pools``: by provider, which others read.
    """

    def __init__(
        self,
        make: Callable[[Provider], ProviderClient],
        directory: Directory,
        endpoint: TokenEndpoint,
        offline: dict[str, OfflineClient],
        whole: set[str],
    ) -> None:
        self._make = make
        self._directory = directory
        self._endpoint = endpoint
        self._offline = offline
        self._whole = whole
        self._group: asyncio.TaskGroup | None = None
        self._duties: Duties | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        """The end of a provider's former clients, all of them, while one goes on."""
        self.pools: dict[str, Pool] = {}
        for provider in directory.providers.values():
            self._add(provider)

    def start(self, group: asyncio.TaskGroup, duties: Duties) -> None:
        """Begin to refresh, in tasks of ``group`` that ``duties`` keeps going."""
        self._group, self._duties = group, duties
        for name in self.pools:
            self._begin(name)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """
        Use these providers: begin those that are new, end those that are gone or changed.

        A provider whose every setting is the same goes on untouched. Accounts of providers that are
        gone stay.
        """
        before = dict(self._directory.providers)
        self._directory.change(providers)
        self._endpoint.credentials.forget_keys()
        for name, old in before.items():
            if providers.get(name) != old:
                self._replace(old, providers.get(name))
        for name, new in providers.items():
            if name not in before:
                self._add(new)
                self._begin(name)

    def _add(self, provider: Provider, former: Pool | None = None) -> None:
        client = self._make(provider)
        if former is not None and former.queue == client.pool.queue:
            client.pool.limits.carry_over(former.limits)
        self.pools[provider.name] = client.pool
        if provider.orphan == "refresh":
            self._offline[provider.name] = client.offline
            self._whole.add(provider.name)

    def _replace(self, old: Provider, new: Provider | None) -> None:
        former, running = self.pools.pop(old.name), self._tasks.pop(old.name, None)
        self._offline.pop(old.name, None)
        self._whole.discard(old.name)
        if new is not None:
            self._add(new, former)
        if self._group is None:
            return
        if running is not None:
            running.cancel()
        former_end = self._endings.get(old.name)
        ending = self._group.create_task(self._end(old, running, former_end))
        self._endings[old.name] = ending
        ending.add_done_callback(lambda _: self._ended(old.name, ending))
        if new is not None:
            self._begin(old.name)

    def _ended(self, name: str, ending: asyncio.Task[None]) -> None:
        if self._endings.get(name) is ending:
            del self._endings[name]

    def _begin(self, name: str) -> None:
        """Begin to refresh, once every former client of the provider has ended."""
        if self._group is None or self._duties is None:
            return
        duties, after = self._duties, self._endings.get(name)

        async def refresh() -> None:
            pool = self.pools[name]
            try:
                await pool.run()
            except Exception:
                # It has given back what it held, and takes nothing more: the next try has another.
                if (provider := self._directory.providers.get(name)) is not None:
                    self._add(provider, pool)
                raise

        async def run() -> None:
            if after is not None:
                await asyncio.wait([after])
            await duties.keep(f"refreshers of {name}", refresh)

        self._tasks[name] = self._group.create_task(run())

    async def _end(self, provider: Provider, *former: asyncio.Task[None] | None) -> None:
        """Wait until refreshes that were under way have ended, then drop the connections."""
        if going_on := [one for one in former if one is not None]:
            await asyncio.wait(going_on)
        await self._endpoint.forget(provider)
