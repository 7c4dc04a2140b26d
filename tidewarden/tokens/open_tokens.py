"""Opens the tokens of a node: reads vault and journal, and puts the parts together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.queue import Queues

from .accounts.account_store import AccountStore, RunScript
from .accounts.cache import Cache
from .accounts.directory import Directory
from .accounts.near_accounts import NearAccounts
from .accounts.waiting_readers import WaitingReaders
from .connect.connecting import Connecting
from .connect.devices import Devices
from .custody.key_sync import restore_keys
from .custody.stored_providers import StoredProviders
from .custody.vault_admin import VaultAdmin
from .events.account_events import AccountEvents
from .journal import peer_queries
from .journal.journal import Journal
from .journal.peer_queries import Peers
from .policy import failures
from .provider.token_endpoint import TokenEndpoint
from .refresh.outcome_notifier import Counts
from .refresh.refreshing import Refreshing
from .shared_parts import SharedParts
from .tokens import FORCED_MS, Tokens
from .vault.key_store import Call, KeyStore
from .vault.keyring import Keyring
from .vault.provider_records import ProviderRecords
from .vault.vault import open_vault
from .verbs.grants import Grants
from .verbs.reader import Reader


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
        shared = SharedParts(
            config,
            queues,
            call,
            clock,
            dice or Random(),
            nodes,
            Directory(config.providers),
            AccountStore(run_script, queues.catalog, queues.scripts.run_each),
            _near(queues),
            key_store,
            vault,
            records,
            journal,
            endpoint,
            peers,
            mac,
            cache,
            whole,
            WaitingReaders(cache),
            failures.Patience(confirm_s, config.tokens.give_up_s),
        )
        await shared.open_queues(config.providers)
        return await _build(shared, stored, closing, connected, shown or run_script, forced_ms)
    except BaseException:
        await closing.aclose()
        raise


async def _build(
    shared: SharedParts,
    stored: StoredProviders,
    closing: contextlib.AsyncExitStack,
    connected: Callable[[], bool],
    shown: RunScript,
    forced_ms: int,
) -> Tokens:
    accounts, vault, clock = shared.accounts, shared.vault, shared.clock
    cache, near, counts = shared.cache, shared.near, Counts()
    readers, shown_by = shared.waiting_readers, AccountStore(shown, shared.queues.catalog)
    account_events = AccountEvents(shared, counts.revocations)
    lifecycle, revoker = account_events.lifecycle, account_events.revoker
    grants = Grants(accounts, vault, shared.dice, readers, lifecycle, revoker)

    async def put(account: str, fields: Mapping[str, object]) -> bool:
        return await grants.take_in(*shared.directory.account(account), fields)

    custody = VaultAdmin(shared, put)
    await custody.start()
    closing.push_async_callback(custody.stop)
    closing.push_async_callback(account_events.outbox.stop)
    refreshing = Refreshing(shared, account_events, counts)
    offline = refreshing.offline
    closing.push_async_callback(offline.stop)
    reader = Reader(
        accounts, shown_by, vault, clock, cache, readers, offline, connected, forced_ms, near
    )
    closing.callback(reader.stop)
    await refreshing.replay.replay()
    connecting = Connecting(shared, grants)
    closing.push_async_callback(connecting.stop)
    devices = Devices(shared, connecting.given)
    return Tokens(
        shared,
        stored,
        account_events,
        custody,
        refreshing,
        grants,
        reader,
        connecting,
        devices,
        forced_ms,
        closing,
    )


def _near(queues: Queues) -> NearAccounts | None:
    if queues.near is None:
        return None
    return NearAccounts(AccountStore(queues.near.run, queues.catalog), queues.near)
