"""
The tokens of one node: put a grant, get a token that lives long enough, and the refreshers that
keep them so.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.load import Config, Provider
from tidewarden.config.provider import queue_of
from tidewarden.queue import Queues
from tidewarden.queue.task import check_range

from . import policy
from .accounts import names as accounts
from .accounts.account_store import AccountStore, RunScript
from .accounts.cache import Cache
from .custody.key_sync import restore_keys
from .custody.vault_admin import VaultAdmin
from .events.events import Call
from .events.revocation import Revoker
from .events.service import Outlets
from .journal import peer_queries
from .journal.journal import Journal
from .limits import judgement
from .limits.client_limits import ClientLimits
from .limits.client_record import ClientRecord
from .limits.client_store import read_client
from .limits.host_rate_limit import HostRateLimits
from .limits.node_limits import NodeLimits
from .provider.token_endpoint import TokenEndpoint
from .refresh.journal_replay import JournalReplay
from .refresh.offline_refresh import OfflineRefresher
from .refresh.pool import Pool, figures
from .refresh.refresh_context import Counts, RefreshContext
from .refresh.rescue import Rescue
from .vault.key_store import KeyStore
from .vault.keyring import Keyring
from .vault.vault import Vault, open_vault
from .verbs.figures import Figures
from .verbs.grants import Grants, Put
from .verbs.listing import Listing
from .verbs.reader import AccountToken, Reader
from .why.stories import Stories

log = logging.getLogger("tidewarden.tokens")

OPENED_TOGETHER = 32  # queues that are made, or read, at a time
FORCED_MS = 5000
"""
An account is refreshed at most once in so long by hand, or by readers to whom its token is of no
use.
"""
GENERATION_MAX = 4_294_967_295

Part = TypeVar("Part")


class Tokens:
    """
    The tokens' verbs and this node's refreshers. :meth:`start` before any verb; :meth:`run` beside
    them; :meth:`stop` last.

    ``account`` is always ``provider/name``. Every verb raises BadArg on a name that is not allowed,
    NotFound on a provider that is not configured, and what the store raises.
    """

    def __init__(
        self,
        config: Config,
        queues: Queues,
        clock: Clock,
        call: Call,
        *,
        exchange: TokenEndpoint | None = None,
        dice: Random | None = None,
        environ: Mapping[str, str] | None = None,
        confirm_s: float = policy.CONFIRM_S,
        forced_ms: int = FORCED_MS,
        script: RunScript | None = None,
        connected: Callable[[], bool] = lambda: True,
        cluster_secret: str = "",
        members: Callable[[], Mapping[str, str]] | None = None,
        nodes: Callable[[], int] = lambda: 1,
    ) -> None:
        """
        Args:
            call: sends one command to the store, for what is the cluster's and of no shard.
            script: runs a token script and returns when its write is as durable as the store can
                make it; ``queues.scripts.run`` when absent.
            cluster_secret: by which nodes ask each other for answers; empty: nobody is asked, and
                nobody answered.
            members: their ``host:base_port`` by name, as they are now; None: as configured.
            nodes: how many nodes live, this one included.
            connected: whether the store is, as far as is known: while it is not, nobody need wait
                for it to say so.
        """
        self._config = config
        self._queues = queues
        self._clock = clock
        self._shelf = KeyStore(call, config.cluster.name)
        key_file = Path(config.node.data_dir) / "secrets" / "vault.key"
        self._keyring = Keyring(config.vault, key_file, os.environ if environ is None else environ)
        self._dice = dice or Random()
        self._confirm_s = confirm_s
        self._forced_ms = forced_ms
        self._queue_of = {name: queue_of(name, p.client_id) for name, p in config.providers.items()}
        self._ledger = AccountStore(
            script or queues.scripts.run, queues.catalog.shard_of, queues.scripts.run_each
        )
        self._outlets = Outlets(config, queues, self._ledger, self._queue_of, call, clock)
        self.events = self._outlets.events
        self._listing = Listing(self._ledger, self._queue_of, config.providers)
        self._figures = Figures(self._queue_of, self._listing.stats, clock)
        self._journal = Journal(Path(config.node.data_dir) / "tokens.journal")
        self._exchange = exchange or TokenEndpoint(clock=clock)
        self._vault: Vault | None = None
        self._custody: VaultAdmin | None = None
        self._pools: dict[str, Pool] = {}
        self._reader: Reader | None = None
        self._grants: Grants | None = None
        self._running: asyncio.Task[None] | None = None
        self._alone = frozenset(
            name for name, one in config.providers.items() if one.orphan == "refresh"
        )
        self._cache = Cache(config.tokens.cache_max, clock, self._alone)
        self._stories = Stories(
            self._ledger,
            self._queue_of,
            self._cache,
            clock,
            confirm_s=confirm_s,
            give_up_s=config.tokens.give_up_s,
        )
        self._orphans: OfflineRefresher | None = None
        self._nodes = nodes
        self._connected = connected
        self._mac = peer_queries.mac_of(cluster_secret) if cluster_secret else None
        self._peers = peer_queries.Peers(config, self._mac, members, self._shelf.address_of)
        self._unstored: JournalReplay | None = None
        self._rescue = Rescue(config.providers, self._queue_of, self._ledger.script, clock, nodes)
        self.counts = Counts()

    # --- life

    async def start(self) -> None:
        """
        Open vault and journal and the providers' queues.

        Raises: ConfigError: the vault's key is absent or another one. Internal, OSError: the
        journal cannot be used.
        """
        self._vault = await open_vault(self._keyring, self._shelf, self._clock)
        self._revoker = Revoker(
            self._config.providers,
            self._queue_of,
            self._queues,
            self._ledger,
            self._vault,
            self._exchange,
            self._clock,
            self.counts.revocations,
        )
        self._grants = Grants(
            self._ledger,
            self._vault,
            self._dice,
            self._on_settled,
            self._outlets.tidings,
            self._revoker,
        )
        self._reader = Reader(
            self._ledger, self._vault, self._clock, self._cache, self._connected, self._forced_ms
        )
        self._journal.open()
        await restore_keys(self._journal, self._vault)
        self._custody = VaultAdmin(
            self._config,
            self._queues,
            self._ledger,
            self._vault,
            self._shelf,
            self._journal,
            self._clock,
            self._put_new,
            self._queue_of,
            self._peers,
        )
        await self._custody.start()
        tools = RefreshContext(
            self._queues,
            self._ledger,
            self._vault,
            self._journal,
            self._exchange,
            self._clock,
            self._dice,
            self.counts,
            self._on_settled,
            self._cache,
            self._peers,
            self._confirm_s,
            self._outlets.tidings,
            self._revoker,
            give_up_s=self._config.tokens.give_up_s,
        )
        limits = NodeLimits(
            self._queues,
            self._ledger.script,
            self._clock,
            self._dice,
            self._queues.catalog.holder.partition(".")[0],
            self._nodes,
            hosts=HostRateLimits(self._ledger.script, self._nodes),
            on_event=self._outlets.tidings.of_provider,
            refreshes=self.counts.refreshes,
            quarantines=self.counts.quarantines,
        )
        queues = list(self._queue_of.values())
        # One after the other, thousands took many seconds.
        for first in range(0, len(queues), OPENED_TOGETHER):
            await asyncio.gather(
                *(
                    self._queues.catalog.shard_count(queue)
                    for queue in queues[first : first + OPENED_TOGETHER]
                )
            )
        for name, provider in self._config.providers.items():
            self._pools[name] = Pool(provider, self._queue_of[name], tools, limits)
        if self._alone:
            alone = {name: self._pools[name].limits for name in self._alone}
            self._orphans = self._reader.orphans = OfflineRefresher(tools, alone, self._queue_of)
        self._unstored = JournalReplay(tools, self._pools, self._mac)
        await self._unstored.replay()

    async def run(self) -> None:
        """
        Refresh what falls due on this node until cancelled or stopped; what is under way is
        finished, 13 s at most.
        """
        self._running = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                for pool in self._pools.values():
                    group.create_task(pool.run())
                group.create_task(self._opened(self._unstored).run())
                group.create_task(self._rescue.run())
                for job in (*self.custody.jobs(), *self._outlets.jobs(), self._revoker.run):
                    group.create_task(job())
        finally:
            self._running = None

    async def stop(self) -> None:
        """
        End :meth:`run`, finishing what is under way (13 s at most); close the journal and every
        connection.
        """
        running = self._running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
            await asyncio.wait([running])
        if self._reader is not None:
            self._reader.stop()
        if self._orphans is not None:
            await self._orphans.stop()
        await self._figures.stop()
        await self._outlets.stop()
        if self._custody is not None:
            await self._custody.stop()
        await self._journal.close()
        await self._exchange.close()
        await self._peers.close()

    def answer_peer(self, raw: bytes) -> bytes | None:
        """
        The reply to another node's question; None: it is not of this cluster, or this node has not
        started.
        """
        return None if self._unstored is None else self._unstored.answer_peer(raw)

    # --- verbs

    async def put(self, account: str, fields: Mapping[str, Any]) -> int:
        """
        Store a grant: a new consent's tokens, as the names of RFC 6749 and ``expires_at_ms``; the
        generation now.

        A refresh token that the account's grant began with, or holds now, changes nothing: a
        repeated put is safe.

        Raises: BadArg: which field, what was found, what is allowed. Full: the store has no room.
        """
        return (await self.put_told(account, fields)).generation

    async def put_told(self, account: str, fields: Mapping[str, Any], *, keep: bool = False) -> Put:
        """
        As :meth:`put`, and what came of it. ``keep``: an account that is there and not dead stays
        as it is, whatever is put.
        """
        provider, name = self._known(account)
        return await self._opened(self._grants).put(
            provider, self._queue_of[provider.name], name, fields, keep=keep
        )

    async def get(
        self, account: str, min_ttl_ms: int = 0, wait_ms: int = 0, newer: int = 0
    ) -> AccountToken:
        """
        A token with at least ``min_ttl_ms`` to live. If the stored one has less, its refresh is
        made urgent and, for at most ``wait_ms``, waited for, together with every other reader of
        that account; then the stored one is served if it lives at all, for the refresh may be
        failing.

        ``newer``: the generation of a token that does not work although it lives. One of a later
        generation alone will do; the account is refreshed for it, at most once in five seconds,
        whoever asks.

        While the store does not answer, a token that this node read or refreshed before is served
        in the state ``stale``.

        Raises: NotFound: no such account, or it is dead and its last token expired. Timeout: no
        living token in time. StoreDown: it does not answer, and no living token of the account is
        known here.
        """
        provider, name = self._known(account)
        check_range(wait_ms, "WAIT", 0, self._config.limits.wait_ms)
        check_range(newer, "NEWER", 0, GENERATION_MAX)
        queue = self._queue_of[provider.name]
        try:
            return await self._opened(self._reader).get(
                provider, queue, name, min_ttl_ms, wait_ms, newer
            )
        except errors.Timeout as error:
            reason = await self._held_by(provider.name)
            if not reason:
                raise
            raise errors.Timeout(
                f"{error}; all accounts of {provider.name} wait: {reason}"
            ) from error

    async def get_many(
        self, names: Sequence[str], min_ttl_ms: int = 0, wait_ms: int = 0
    ) -> Sequence[AccountToken | errors.Error]:
        """As :meth:`get` for each, all at once: a token, or why there is none."""
        found = await asyncio.gather(
            *(self.get(name, min_ttl_ms, wait_ms) for name in names), return_exceptions=True
        )
        for one in found:
            if not isinstance(one, (AccountToken, errors.Error)):
                raise one
        return [one for one in found if isinstance(one, (AccountToken, errors.Error))]

    async def refresh(self, account: str, generation: int = 0) -> str:
        """
        Have the account refreshed now, failing or dead ones too, at most once in five seconds.

        ``generation``: of the token that does not work; where the account has a newer one, nothing
        is done.

        Returns: ``queued``; ``leased``: somebody is at it; ``recent``: that was done a moment ago,
        and will be again when the five seconds are over; ``moved``: the generation is another.
        """
        provider, name = self._known(account)
        check_range(generation, "GENERATION", 0, GENERATION_MAX)
        queue = self._queue_of[provider.name]
        word = await self._ledger.refresh(
            queue, name, force_ms=self._forced_ms, seen=(0, generation)
        )
        if word == "GONE":
            raise errors.NotFound(f"there is no account {account}")
        return word.lower()

    async def delete(self, account: str) -> bool:
        """Forget an account and its tokens; False: there was none."""
        provider, name = self._known(account)
        found = await self._opened(self._grants).delete(
            provider, self._queue_of[provider.name], name
        )
        self._cache.drop(account)
        return found

    async def list(
        self, provider: str = "", state: str = "", count: int = 100, after: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        """
        At most ``count`` accounts, in no order, without tokens; and the cursor to go on from,
        ``""`` at the end.

        An account that stays is met at least once. With a ``state`` a page may be short, or empty,
        before the end.
        """
        names = [self._provider(provider).name] if provider else sorted(self._queue_of)
        return await self._listing.page(names, state, count, after)

    async def peek(self, account: str) -> dict[str, Any]:
        """An account as :meth:`list` tells of it, and a little more; no token. Raises: NotFound."""
        provider, name = self._known(account)
        return await self._listing.one(provider.name, name)

    async def stats(self) -> dict[str, dict[str, Any]]:
        """
        Accounts by state and how it stands with us, per provider; the cost does not grow with their
        number.

        ``held_until_ms``: nothing is sent before that, 0 when nothing holds it back; ``failures``:
        probes in a row that failed; ``state since_ms next_ms error message nodes advice``: see
        :func:`tidewarden.tokens.limits.provider_status.figures`.
        """
        return await self._figures.all()

    async def latest_stats(self, wait_s: float) -> tuple[dict[str, dict[str, Any]], float] | None:
        """
        As :meth:`stats`, within ``wait_s`` or as it was before, and how many seconds ago; None:
        neither is to be had.
        """
        return await self._figures.latest(wait_s)

    @property
    def custody(self) -> VaultAdmin:
        """What an operator does with the vault. Raises: Draining: not started."""
        return self._opened(self._custody)

    def metrics(self) -> dict[str, Any]:
        """
        This node's counters: ``refreshes`` by (provider, class), ``in_flight``, ``late`` and more
        by provider, and others.
        """
        return {
            **self.counts.figures(),
            **figures(self._pools),
            "journal_pending": len(self._journal.pending()),
            "journal_unreadable": len(self._journal.raws()),
            **self._outlets.metrics(),
            "cached": len(self._cache),
            "stale_served_total": self._reader.stale_served if self._reader is not None else 0,
        }

    async def why(self, subject: str) -> dict[str, Any]:
        """
        The story of an account, or of a provider: what was answered, what was concluded, what comes
        next, what can be done.

        Also while the store is away: then that is the story. Raises: BadArg, NotFound.
        """
        if "/" not in subject:
            return await self._stories.provider(self._provider(subject))
        provider, name = self._known(subject)
        return await self._stories.account(provider, name)

    async def client_of(self, provider: str) -> tuple[ClientRecord, int, int]:
        """
        What all nodes know of a provider's client, the leases' clock that its times are of, and how
        far unix time is ahead of that.

        Raises: NotFound, and what the store raises.
        """
        record, reply = await read_client(
            self._queue_of[self._provider(provider).name], self._ledger.script
        )
        return record, reply.clock_ms, reply.lag_ms

    async def release_provider(self, provider: str) -> None:
        """
        An operator says that a provider's refusals are true, and that whatever holds our client
        back is over. Raises: NotFound.
        """
        await self._limits(provider).known.change(judgement.release)

    async def quarantine_provider(self, provider: str) -> None:
        """
        An operator says that none of a provider's accounts is to be given up until
        :meth:`release_provider`. Raises: NotFound.
        """
        await self._limits(provider).known.change(judgement.set_quarantine)

    async def probe_provider(self, provider: str) -> None:
        """An operator wants a provider asked now that all hold back from. Raises: NotFound."""
        await self._limits(provider).known.change(judgement.ask_probe)

    # --- within

    async def _held_by(self, provider: str) -> str:
        """What holds a client's accounts back, as far as it can be had; empty: nothing."""
        try:
            record, _, _ = await self.client_of(provider)
        except errors.Error:
            return ""
        return judgement.said(record)

    def _limits(self, provider: str) -> ClientLimits:
        return self._opened(self._pools.get(self._provider(provider).name)).limits

    async def _put_new(self, account: str, fields: Mapping[str, Any]) -> bool:
        provider, name = self._known(account)
        return await self._opened(self._grants).take_in(
            provider, self._queue_of[provider.name], name, fields
        )

    def _provider(self, name: str) -> Provider:
        found = self._config.providers.get(name)
        if found is None:
            known = ", ".join(sorted(self._config.providers)) or "none"
            raise errors.NotFound(f"there is no provider {name[:60]!r}; configured: {known}")
        return found

    def _known(self, account: str) -> tuple[Provider, str]:
        provider, name = accounts.split(account)
        return self._provider(provider), name

    def _opened(self, part: Part | None) -> Part:
        if part is None:
            raise errors.Draining("the tokens of this node are not started")
        return part

    def _on_settled(self, account: str, generation: int) -> None:
        self._cache.outdate(account, generation)
        if self._reader is not None:
            self._reader.settled(account)
