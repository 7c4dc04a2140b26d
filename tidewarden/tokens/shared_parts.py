"""Holds the parts that the rooms of one node's tokens share, which are opened before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.load import Config, Provider
from tidewarden.config.provider import queue_of
from tidewarden.peer_line import Mac
from tidewarden.queue import Queues

from .accounts.account_store import AccountStore
from .accounts.cache import Cache
from .accounts.directory import Directory
from .accounts.near_accounts import NearAccounts
from .accounts.waiting_readers import WaitingReaders
from .journal.journal import Journal
from .journal.peer_queries import Peers
from .policy.failures import Patience
from .provider.token_endpoint import TokenEndpoint
from .vault.key_store import Call, KeyStore
from .vault.provider_records import ProviderRecords
from .vault.vault import Vault

Job = Callable[[], Coroutine[Any, Any, None]]
"""Runs for ever, or returns when there is nothing to do."""
OPENED_TOGETHER = 32  # queues that are made, or read, at a time


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Holds the parts that several rooms of one node's tokens build upon."""

    config: Config
    queues: Queues
    call: Call
    clock: Clock
    dice: Random
    nodes: Callable[[], int]
    """Counts the nodes that live, this one included."""
    directory: Directory
    accounts: AccountStore
    near: NearAccounts | None
    """Reads accounts from the node's own copy of the data; None: it has none."""
    key_store: KeyStore
    vault: Vault
    records: ProviderRecords
    journal: Journal
    endpoint: TokenEndpoint
    peers: Peers
    mac: Mac | None
    """Proves that nodes may ask each other for answers; None: no node is asked or answered."""
    cache: Cache
    whole: set[str]
    """The providers whose rows the cache keeps whole."""
    waiting_readers: WaitingReaders
    patience: Patience

    @property
    def node(self) -> str:
        """Return this node's name."""
        return self.queues.catalog.holder.rpartition(".")[0]

    async def open_queues(self, providers: Mapping[str, Provider]) -> None:
        """
        Open or make the queues of these providers' accounts. Raises what the store raises.

        Several are opened at a time, because thousands in sequence take many seconds.
        """
        names = [queue_of(name, one.client_id) for name, one in providers.items()]
        shards = self.queues.catalog.shard_count
        for first in range(0, len(names), OPENED_TOGETHER):
            await asyncio.gather(*(shards(name) for name in names[first : first + OPENED_TOGETHER]))
