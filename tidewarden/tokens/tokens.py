"""Serves the tokens of one node: grants are put, tokens read, and refreshed before they expire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidewarden import errors
from tidewarden.config.load import Config, Provider
from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights
from tidewarden.duties import Duties
from tidewarden.histograms import told_of
from tidewarden.queue.reads.near_reads import Mark
from tidewarden.queue.task import check_range

from .connect.connecting import Connecting
from .connect.devices import Devices
from .custody.stored_providers import StoredProviders
from .custody.vault_admin import VaultAdmin
from .events.account_events import AccountEvents
from .limits import judgement
from .limits.client_limits import ClientLimits
from .limits.client_record import ClientRecord, read_client
from .refresh.pool import figures as pool_figures
from .refresh.refreshing import Refreshing
from .shared_parts import SharedParts
from .verbs.figures import Figures
from .verbs.grants import Grants, Put
from .verbs.listing import Listing
from .verbs.reader import AccountToken, Reader
from .why.story_reader import StoryReader

FORCED_MS = 5000
"""
An account is refreshed at most once in so long by hand, or for readers whom its token does not
serve.
"""
GENERATION_MAX = 4_294_967_295

MANY_A_TURN = 32
"""Reads that begin in one turn of the loop, if many tokens are asked for at once."""


class Tokens:
    """
    Serves the verbs of tokens and runs this node's refreshers.

    ``open_tokens`` makes it; :meth:`run` runs beside the verbs, :meth:`stop` ends it last.

    ``account`` is always ``provider/name``. Every verb raises BadArg on a name that is not allowed,
    NotFound on a provider that is not configured, and what the store raises.
    """

    def __init__(
        self,
        shared: SharedParts,
        stored: StoredProviders,
        account_events: AccountEvents,
        custody: VaultAdmin,
        refreshing: Refreshing,
        grants: Grants,
        reader: Reader,
        connecting: Connecting,
        devices: Devices,
        forced_ms: int,
        closing: contextlib.AsyncExitStack,
    ) -> None:
        """Serve by these parts; ``closing`` ends them, the last one first."""
        accounts, directory, cache = shared.accounts, shared.directory, shared.cache
        clock, near, queue_of = shared.clock, shared.near, directory.queues
        self._shared = shared
        self._config = shared.config
        self._directory = directory
        self._accounts = accounts
        self._journal = shared.journal
        self._cache = cache
        self.stored_providers = stored
        """The providers that are put while nodes run."""
        stored.follow(self._take_over)
        self.custody = custody
        """The operators' verbs of the vault."""
        self.connecting = connecting
        """Leads browsers to consents, and back."""
        self.devices = devices
        """Lets people consent on other devices."""
        self._account_events = account_events
        self.events = account_events.events
        self._refreshing = refreshing
        self.counts = refreshing.counts
        self._pools = refreshing.clients.pools
        self._grants = grants
        self._reader = reader
        self._listing = Listing(accounts, queue_of, directory.known, near)
        self._figures = Figures(directory.providers, self._listing.stats, clock)
        closing.push_async_callback(self._figures.stop)
        self._story_reader = StoryReader(accounts, queue_of, cache, clock, shared.patience, near)
        self._forced_ms = forced_ms
        self._closing = closing
        self._running: asyncio.Task[None] | None = None

    # --- life

    async def run(self, duties: Duties) -> None:
        """
        Refresh due accounts on this node until cancelled or stopped.

        ``duties`` keeps the jobs going. Refreshes that are under way are finished, in 13 s at most.
        """
        self._running = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                self._refreshing.clients.start(group, duties)
                for job in (
                    *self._refreshing.jobs(),
                    *self.custody.jobs(),
                    self.stored_providers.run,
                    self.connecting.given.run,
                    self.devices.run,
                    *self._account_events.jobs(),
                ):
                    group.create_task(duties.keep(job.__qualname__, job))
        finally:
            self._running = None

    async def stop(self) -> None:
        """
        End :meth:`run`, once refreshes that are under way have ended, in 13 s at most.

        It closes the journal and every connection.
        """
        running = self._running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
            await asyncio.wait([running])
        await self._closing.aclose()

    async def prepare(self, providers: Mapping[str, Provider]) -> None:
        """
        Make the queues of these providers, before :meth:`change`.

        Raises what the store raises; nothing has changed then.
        """
        await self._shared.open_queues(providers)

    def change(self, config: Config) -> None:
        """
        Use the providers, webhooks and companions of ``config``, and the providers that were put.

        Returns at once; refreshes and deliveries that are under way end as they began.
        """
        self._config = config
        self._change_providers(self.stored_providers.configure(config.providers))

    def warning(self) -> str:
        """Say which accounts nobody refreshes by this node's configuration; empty: none."""
        return self._refreshing.unconfigured.warning()

    def answer_peer(self, raw: bytes) -> bytes | None:
        """Answer another node's question; None: it is not of this cluster."""
        return self._refreshing.replay.answer_peer(raw)

    # --- verbs

    async def put(self, account: str, fields: Mapping[str, Any]) -> int:
        """
        Store a grant: a new consent's tokens, by the names of RFC 6749, and ``expires_at_ms``.

        Returns its generation now. A refresh token that the account's grant began with, or holds
        now, changes nothing: a repeated put is safe.

        Raises: BadArg: which field, what was found, what is allowed. Full: the store has no room.
        """
        return (await self.put_told(account, fields)).generation

    async def put_told(self, account: str, fields: Mapping[str, Any], *, keep: bool = False) -> Put:
        """
        Put an account as :meth:`put` does, and return the outcome.

        ``keep``: an account that is there and not dead stays as it is, whatever is put.
        """
        provider, queue, name = self._directory.account(account)
        return await self._grants.put(provider, queue, name, fields, keep=keep)

    async def get(
        self,
        account: str,
        min_ttl_ms: int = 0,
        wait_ms: int = 0,
        newer: int = 0,
        max_stale_ms: int = 0,
    ) -> AccountToken:
        """
        Return a token with at least ``min_ttl_ms`` to live.

        If the stored one has less, its refresh is made urgent and, for at most ``wait_ms``, waited
        for, together with every other reader of that account; then the stored one is served if it
        lives at all, for the refresh may be failing.

        ``newer``: the generation of a token that does not work although it lives. Only a token of a
        later generation will do; the account is refreshed for it, at most once in five seconds,
        however many readers ask.

        ``max_stale_ms``: a token with enough life may come from the node's own copy of the data, if
        that is known to lack nothing that is older.

        While the store does not answer, a token that this node read or refreshed before, or has in
        its own copy, is served in the state ``stale``.

        Raises: NotFound: no such account, or it is dead and its last token expired. Timeout: no
        living token in time. StoreDown: it does not answer, and no living token of the account is
        known here.
        """
        provider, queue, name = self._directory.account(account)
        check_range(wait_ms, "wait_ms", 0, self._config.limits.wait_ms)
        check_range(newer, "newer", 0, GENERATION_MAX)
        try:
            return await self._reader.get(
                provider, queue, name, min_ttl_ms, wait_ms, newer, max_stale_ms
            )
        except errors.Timeout as error:
            reason = await self._held_by(provider.name)
            if not reason:
                raise
            raise errors.Timeout(
                f"{error}; all accounts of {provider.name} wait: {reason}"
            ) from error

    async def get_many(
        self,
        names: Sequence[str],
        min_ttl_ms: int = 0,
        wait_ms: int = 0,
        max_stale_ms: int = 0,
    ) -> Sequence[AccountToken | errors.Error]:
        """Get a token for each account, all at once; returns a token or its error for each."""
        asking: list[asyncio.Task[AccountToken]] = []
        try:
            for first in range(0, len(names), MANY_A_TURN):
                asking += [
                    asyncio.create_task(self.get(name, min_ttl_ms, wait_ms, 0, max_stale_ms))
                    for name in names[first : first + MANY_A_TURN]
                ]
                await asyncio.wait(asking[first:], timeout=0)  # for a turn of the loop
            found = await asyncio.gather(*asking, return_exceptions=True)
        finally:
            for task in asking:
                task.cancel()
        for one in found:
            if not isinstance(one, (AccountToken, errors.Error)):
                raise one
        return [one for one in found if isinstance(one, (AccountToken, errors.Error))]

    async def refresh(self, account: str, generation: int = 0) -> str:
        """
        Have the account refreshed now, failing or dead ones too, at most once in five seconds.

        ``generation`` is that of the token that does not work; where the account has a newer token,
        nothing is done.

        Returns: ``queued``; ``leased``: a node is refreshing it; ``recent``: it was refreshed a
        moment ago, and will be again when the five seconds are over; ``moved``: its generation is
        another.
        """
        _, queue, name = self._directory.account(account)
        check_range(generation, "generation", 0, GENERATION_MAX)
        word = await self._accounts.refresh(
            queue, name, force_ms=self._forced_ms, seen=(0, generation)
        )
        if word == "GONE":
            raise errors.NotFound(f"there is no account {account}")
        return word.lower()

    async def delete(self, account: str) -> bool:
        """Forget an account and its tokens; False: there was none."""
        found = await self._grants.delete(*self._directory.account(account))
        self._cache.drop(account)
        return found

    async def list(
        self,
        provider: str = "",
        state: str = "",
        count: int = 100,
        after: str = "",
        seen: AccountRights = EVERY_ACCOUNT,
    ) -> tuple[list[dict[str, Any]], str]:
        """
        List at most ``count`` accounts, in no order, without tokens.

        Returns them and the cursor to go on from, ``""`` at the end.

        An account that stays is met at least once. With a ``state``, or where some accounts are not
        ``seen``, a page may be short, or empty, before the end. Where the node's own copy stands in
        for the primary, each has the mark. Raises: NoQuorum: that copy has none.
        """
        names = self._directory.names(provider, seen)
        return await self._listing.page(names, state, count, after, seen) if names else ([], "")

    async def peek(self, account: str) -> dict[str, Any]:
        """
        Describe an account as :meth:`list` does, and a little more; no token.

        Raises: NotFound.
        """
        provider, _, name = self._directory.account(account)
        return await self._listing.one(provider.name, name)

    async def stats(self) -> dict[str, dict[str, Any]]:
        """
        Return each provider's accounts by state, and the state of the provider itself.

        The cost does not grow with the number of accounts.

        ``held_until_ms``: nothing is sent before that, 0 when nothing holds it back; ``failures``:
        probes in a row that failed; ``state since_ms next_ms error message nodes advice``: see
        :func:`tidewarden.tokens.verbs.provider_status.figures`.
        """
        return await self._figures.all()

    def providers(self) -> Sequence[str]:
        """Return the names of the configured providers, in their order."""
        return sorted(self._directory.providers)

    async def due(self, provider: str, step_ms: int, steps: int) -> tuple[Sequence[int], Mark]:
        """
        Count a provider's accounts whose refreshes fall due in each of the next steps of time.

        The counts are estimates if there are many, because the cost does not grow with them.
        Accounts that are due already count as of the first step. The mark of a copy that stands in
        for the primary comes along, else an empty one. Raises: NotFound.
        """
        return await self._listing.due(self._directory.provider(provider).name, step_ms, steps)

    async def latest_stats(self, wait_s: float) -> tuple[dict[str, dict[str, Any]], float] | None:
        """
        Return :meth:`stats` within ``wait_s``, or as they were before, and their age in seconds.

        None: neither could be had.
        """
        return await self._figures.latest(wait_s)

    def metrics(self) -> dict[str, Any]:
        """
        Return this node's counters of refreshes, connections, events and caches.

        They are ``refreshes`` by (provider, class), ``in_flight``, ``late`` and more by provider,
        and others.
        """
        return {
            **self.counts.figures(),
            **pool_figures(self._pools),
            "journal_pending": len(self._journal.pending()) + len(self._journal.consents()),
            "journal_unreadable": self.unreadable,
            "journal_writable": int(not self._journal.fault),
            "journal_damaged_bytes": self._journal.damaged_bytes,
            "events": dict(self.events.told),
            "events_lost": self._account_events.companions.lost,
            "webhooks": self.deliveries,
            "cached": len(self._cache),
            "stale_served_total": self._reader.stale_served,
            **told_of(self.counts.times, self._account_events.webhooks.times),
        }

    @property
    def unreadable(self) -> int:
        """Return how many answers in this node's journal could not be read."""
        return len(self._journal.raws())

    @property
    def deliveries(self) -> dict[tuple[str, str], int]:
        """Return this node's deliveries by webhook and outcome."""
        return dict(self._account_events.webhooks.sent)

    async def why(self, subject: str) -> dict[str, Any]:
        """
        Tell the story of an account, or of a provider.

        The story says what was answered, what was concluded, what comes next, and what can be done.
        While the store is away it says so. Raises: BadArg, NotFound.
        """
        if "/" not in subject:
            return await self._story_reader.provider(self._directory.provider(subject))
        provider, _, name = self._directory.account(subject)
        return await self._story_reader.account(provider, name)

    async def client_of(self, provider: str) -> tuple[ClientRecord, int, int]:
        """
        Return what all nodes know of a provider's client, with the clock of its times.

        That is the leases' clock now, and how far unix time is ahead of it.

        Raises: NotFound, and what the store raises.
        """
        queue = self._directory.queues[self._directory.provider(provider).name]
        return await read_client(queue, self._accounts)

    async def release_provider(self, provider: str) -> None:
        """
        Release a provider, as an operator asks: its refusals are true, and no hold is left.

        Raises: NotFound.
        """
        await self._limits(provider).change(judgement.release)

    async def quarantine_provider(self, provider: str) -> None:
        """
        Quarantine a provider, as an operator asks: none of its accounts is given up.

        That lasts until :meth:`release_provider`. Raises: NotFound.
        """
        await self._limits(provider).change(judgement.set_quarantine)

    async def probe_provider(self, provider: str) -> None:
        """Probe a provider that is held now, as an operator asks. Raises: NotFound."""
        await self._limits(provider).change(judgement.ask_probe)

    # --- within

    async def _take_over(self, providers: Mapping[str, Provider]) -> None:
        """Use the providers in force, some of which were put or removed while nodes run."""
        await self.prepare(providers)
        self._change_providers(self.stored_providers.in_force)

    def _change_providers(self, providers: Mapping[str, Provider]) -> None:
        config = replace(self._config, providers=dict(providers))
        self._refreshing.change(config)
        self._account_events.change(config)
        self.devices.change(config.providers)

    async def _held_by(self, provider: str) -> str:
        """
        Return the reason why a client's accounts are held, as far as it can be read; empty: none.
        """
        try:
            record, _, _ = await self.client_of(provider)
        except errors.Error:
            return ""
        return record.hold.said if record.hold is not None else ""

    def _limits(self, provider: str) -> ClientLimits:
        return self._pools[self._directory.provider(provider).name].limits
