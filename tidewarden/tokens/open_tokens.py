"""Opens the tokens of a node: reads vault and journal, and puts the parts together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tidewarden.clock import Clock
from tidewarden.config.load import Config, Provider
from tidewarden.peer_line import Mac
from tidewarden.queue import Queues

from .accounts.account_store import AccountStore, RunScript
from .accounts.cache import Cache
from .accounts.directory import Directory
from .accounts.near_accounts import NearAccounts
from .accounts.settled import SettledAccounts
from .accounts.unconfigured_accounts import UnconfiguredAccounts
from .custody.key_sync import restore_keys
from .custody.stored_providers import StoredProviders
from .custody.vault_admin import VaultAdmin
from .events.companion_cleanup import CompanionCleanup
from .events.companions import Companions
from .events.consents import Consents
from .events.events import Call, Events
from .events.lifecycle import AccountLifecycle
from .events.outbox import Outbox
from .events.revocation import Revoker
from .events.webhooks import Webhooks
from .journal import peer_queries
from .journal.journal import Journal
from .journal.peer_queries import Peers
from .limits.client_limits import ClientLimits
from .limits.node_limits import NodeLimits
from .policy import failures
from .provider.token_endpoint import TokenEndpoint
from .provider_clients import ProviderClient, ProviderClients
from .refresh.journal_replay import JournalReplay
from .refresh.offline_refresh import OfflineClient, OfflineRefresher
from .refresh.outcome_notifier import Counts, OutcomeNotifier
from .refresh.pool import Pool
from .refresh.refresher import Refresher, lease_ms_of
from .refresh.rescue import Rescue
from .refresh.token_request import TokenRequest
from .refresh.under_way import UnderWay
from .refresh.unknown_outcome import UnknownOutcomes
from .refresh.write_back import WriteBack
from .tokens import FORCED_MS, Job, TokenParts, Tokens
from .vault.key_store import KeyStore
from .vault.keyring import Keyring
from .vault.provider_records import ProviderRecords
from .vault.vault import Vault, open_vault
from .verbs.figures import Figures
from .verbs.grants import Grants
from .verbs.listing import Listing
from .verbs.reader import Reader
from .why.stories import Stories

OPENED_TOGETHER = 32  # queues that are made, or read, at a time


@dataclass(frozen=True, slots=True)
class _Ground:
    """Holds what is open before the parts are put together upon it."""

    config: Config
    queues: Queues
    call: Call
    clock: Clock
    dice: Random
    nodes: Callable[[], int]
    directory: Directory
    accounts: AccountStore
    key_store: KeyStore
    vault: Vault
    records: ProviderRecords
    stored: StoredProviders
    journal: Journal
    endpoint: TokenEndpoint
    peers: Peers
    cache: Cache
    whole: set[str]
    """The providers whose rows the cache keeps whole."""
    settled: SettledAccounts
    counts: Counts
    patience: failures.Patience

    @property
    def node(self) -> str:
        """Return this node's name."""
        return self.queues.catalog.holder.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class _Outside:
    """Holds what tells others what becomes of accounts."""

    events: Events
    webhooks: Webhooks
    companions: Companions
    cleanup: CompanionCleanup
    outbox: Outbox
    consents: Consents
    lifecycle: AccountLifecycle
    revoker: Revoker


async def open_tokens(
    config: Config,
    queues: Queues,
    clock: Clock,
    call: Call,
    *,
    endpoint: TokenEndpoint | None = None,
    dice: Random | None = None,
    environ: Mapping[str, str] | None = None,
    confirm_s: float = failures.CONFIRM_S,
    forced_ms: int = FORCED_MS,
    script: RunScript | None = None,
    connected: Callable[[], bool] = lambda: True,
    shown: RunScript | None = None,
    cluster_secret: str = "",
    members: Callable[[], Mapping[str, str]] | None = None,
    nodes: Callable[[], int] = lambda: 1,
) -> Tokens:
    """
    Open vault and journal and the providers' queues; offer the store what the journal holds.

    Args:
        call: sends one command to the store, for what is the cluster's and of no shard.
        script: runs a token script and returns when its write is as durable as the store can make
            it; ``queues.scripts.run`` when absent.
        shown: likewise, what readers are shown: see ``ShardScripts.shown_on``.
        connected: whether the store is, as far as is known: while it is not, nobody need wait for
            it to say so.
        cluster_secret: by which nodes ask each other for answers; empty: nobody is asked, and
            nobody answered.
        members: their ``host:base_port`` by name, as they are now; None: as configured.
        nodes: how many nodes live, this one included.

    Raises: ConfigError: the vault's key is absent or another one. Internal, OSError: the journal
    cannot be used.
    """
    mac = peer_queries.mac_of(cluster_secret) if cluster_secret else None
    closing = contextlib.AsyncExitStack()
    try:
        key_store = KeyStore(call, config.cluster.name)
        peers = Peers(config, mac, members, key_store.address_of)
        closing.push_async_callback(peers.close)
        endpoint = endpoint or TokenEndpoint(clock=clock)
        closing.push_async_callback(endpoint.close)
        key_file = Path(config.node.data_dir) / "secrets" / "vault.key"
        keyring = Keyring(config.vault, key_file, os.environ if environ is None else environ)
        vault = await open_vault(keyring, key_store, clock)
        journal = Journal(Path(config.node.data_dir) / "tokens.journal")
        closing.push_async_callback(journal.close)
        journal.open()
        await restore_keys(journal, vault)
        run_script = script or queues.scripts.run
        records = ProviderRecords(run_script, vault, clock)
        stored = StoredProviders(
            records, config.providers, clock, config.tokens.reach, queues.catalog
        )
        await stored.look()
        config = replace(config, providers=dict(stored.in_force))
        whole: set[str] = set()
        cache = Cache(config.tokens.cache_max, clock, whole)
        ground = _Ground(
            config,
            queues,
            call,
            clock,
            dice or Random(),
            nodes,
            Directory(config.providers),
            AccountStore(run_script, queues.catalog, queues.scripts.run_each),
            key_store,
            vault,
            records,
            stored,
            journal,
            endpoint,
            peers,
            cache,
            whole,
            SettledAccounts(cache),
            Counts(),
            failures.Patience(confirm_s, config.tokens.give_up_s),
        )
        await _open_queues(queues, list(ground.directory.queues.values()))
        return await _put_together(ground, closing, connected, shown or run_script, forced_ms, mac)
    except BaseException:
        await closing.aclose()
        raise


async def _open_queues(queues: Queues, names: list[str]) -> None:
    """Open or make the queues, several at a time, for thousands in sequence take many seconds."""
    for first in range(0, len(names), OPENED_TOGETHER):
        await asyncio.gather(
            *(queues.catalog.shard_count(name) for name in names[first : first + OPENED_TOGETHER])
        )


async def _put_together(
    ground: _Ground,
    closing: contextlib.AsyncExitStack,
    connected: Callable[[], bool],
    shown: RunScript,
    forced_ms: int,
    mac: Mac | None,
) -> Tokens:
    directory, accounts, clock = ground.directory, ground.accounts, ground.clock
    outside = _outside(ground)
    grants = Grants(
        accounts, ground.vault, ground.dice, ground.settled, outside.lifecycle, outside.revoker
    )
    custody = _custody(ground, grants)
    await custody.start()
    closing.push_async_callback(custody.stop)
    closing.push_async_callback(outside.outbox.stop)
    near = _near(ground.queues)
    listing = Listing(accounts, directory.queues, directory.known, near)
    figures = Figures(directory.providers, listing.stats, clock)
    closing.push_async_callback(figures.stop)
    notifier = OutcomeNotifier(
        ground.counts, ground.cache, ground.settled, outside.lifecycle, outside.revoker
    )
    alone, under_way = dict[str, OfflineClient](), UnderWay()
    shared = _shared_limits(ground, outside)
    make = functools.partial(_client, ground, shared, notifier, under_way)
    clients = ProviderClients(make, directory, ground.endpoint, alone, ground.whole)
    offline = OfflineRefresher(alone, ground.cache, notifier, clock, ground.dice)
    closing.push_async_callback(offline.stop)
    reader = Reader(
        accounts,
        AccountStore(shown, ground.queues.catalog),
        ground.vault,
        clock,
        ground.cache,
        ground.settled,
        offline,
        connected,
        forced_ms,
        near,
    )
    closing.callback(reader.stop)
    replay = JournalReplay(
        ground.node, ground.journal, ground.vault, clock, notifier, under_way, clients.pools, mac
    )
    await replay.replay()
    rescue = Rescue(directory.providers, directory.queues, accounts, clock, ground.nodes)
    return Tokens(
        config=ground.config,
        directory=directory,
        accounts=accounts,
        grants=grants,
        reader=reader,
        listing=listing,
        figures=figures,
        stories=_stories(ground, near),
        custody=custody,
        stored=ground.stored,
        parts=_changing(ground, outside, clients, shared, figures, rescue),
        replay=replay,
        journal=ground.journal,
        cache=ground.cache,
        counts=ground.counts,
        events=outside.events,
        webhooks=outside.webhooks,
        companions=outside.companions,
        forced_ms=forced_ms,
        jobs=(
            replay.run,
            *custody.jobs(),
            ground.stored.run,
            rescue.run,
            *_other_jobs(ground, outside),
        ),
        closing=closing,
    )


def _changing(
    ground: _Ground,
    outside: _Outside,
    clients: ProviderClients,
    shared: NodeLimits,
    figures: Figures,
    rescue: Rescue,
) -> TokenParts:
    return TokenParts(
        functools.partial(_open_queues, ground.queues),
        clients,
        shared.hosts,
        figures,
        rescue,
        outside.revoker,
        outside.cleanup,
    )


def _near(queues: Queues) -> NearAccounts | None:
    if queues.near is None:
        return None
    return NearAccounts(AccountStore(queues.near.run, queues.catalog), queues.near)


def _other_jobs(ground: _Ground, outside: _Outside) -> Sequence[Job]:
    unconfigured = UnconfiguredAccounts(
        ground.accounts, ground.queues.catalog.names, ground.directory.queues.values()
    )
    return (
        outside.outbox.run,
        outside.consents.run,
        outside.webhooks.run,
        outside.companions.run,
        outside.cleanup.run,
        unconfigured.say,
        outside.revoker.run,
    )


def _outside(ground: _Ground) -> _Outside:
    config, queues, clock, accounts = ground.config, ground.queues, ground.clock, ground.accounts
    queue_of = ground.directory.queues
    name = config.cluster.name
    events = Events(ground.call, name, queues.put, config.webhooks, config.events.kept)
    drop = functools.partial(queues.admin.delete, force=True)
    companions = Companions(config.companions, queues.put, drop, clock)
    outbox = Outbox(
        accounts,
        queue_of,
        queues.catalog.shard_of,
        queues.scripts.having,
        events,
        companions,
        clock,
    )
    days = config.tokens.consent_notice_days
    return _Outside(
        events,
        Webhooks(queues, config.webhooks, clock),
        companions,
        CompanionCleanup(config.companions, config.providers, queues, ground.call, name, clock),
        outbox,
        Consents(accounts, queue_of.values(), queues.scripts.having, days, outbox.look_at, clock),
        AccountLifecycle(outbox, companions, config.events.failing_s),
        Revoker(
            config.providers,
            queue_of,
            queues,
            accounts,
            ground.vault,
            ground.endpoint,
            clock,
            ground.counts.revocations,
        ),
    )


def _custody(ground: _Ground, grants: Grants) -> VaultAdmin:
    async def put(account: str, fields: Mapping[str, object]) -> bool:
        return await grants.take_in(*ground.directory.account(account), fields)

    return VaultAdmin(
        ground.config,
        ground.queues,
        ground.accounts,
        ground.vault,
        ground.key_store,
        ground.records,
        ground.journal,
        ground.clock,
        put,
        ground.directory,
        ground.peers,
    )


def _stories(ground: _Ground, near: NearAccounts | None) -> Stories:
    queues = ground.directory.queues
    return Stories(ground.accounts, queues, ground.cache, ground.clock, ground.patience, near)


def _shared_limits(ground: _Ground, outside: _Outside) -> NodeLimits:
    return NodeLimits(
        ground.accounts,
        ground.queues.admin,
        ground.clock,
        ground.dice,
        ground.queues.catalog.holder.partition(".")[0],
        ground.nodes,
        outside.lifecycle.of_provider,
        ground.counts.refreshes,
        ground.counts.quarantines,
    )


def _client(
    ground: _Ground,
    shared: NodeLimits,
    notifier: OutcomeNotifier,
    under_way: UnderWay,
    provider: Provider,
) -> ProviderClient:
    """Make what refreshes the accounts of one provider."""
    queue = ground.directory.queues[provider.name]
    limits = ClientLimits(provider, queue, shared, lease_ms_of(provider))
    request = TokenRequest(provider, ground.endpoint, ground.vault, ground.clock)
    write_back = WriteBack(
        provider,
        queue,
        ground.node,
        ground.accounts,
        ground.vault,
        ground.journal,
        ground.cache,
        notifier,
        ground.clock,
        ground.dice,
    )
    refresher = Refresher(
        provider,
        queue,
        ground.accounts,
        ground.journal,
        request,
        UnknownOutcomes(provider, queue, ground.node, ground.accounts, ground.peers, write_back),
        write_back,
        notifier,
        limits,
        under_way,
        ground.clock,
        ground.dice,
        ground.patience,
    )
    pool = Pool(
        provider,
        queue,
        ground.queues,
        ground.accounts,
        ground.vault,
        ground.journal,
        limits,
        refresher,
        write_back,
        ground.clock,
    )
    return ProviderClient(provider, pool, OfflineClient(request, write_back, limits))
