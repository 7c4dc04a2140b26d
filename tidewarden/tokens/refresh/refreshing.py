"""Refreshes the accounts of a node by its providers' clients and the jobs that run beside them."""

from __future__ import annotations

from collections.abc import Sequence

from tidewarden.config.load import Config, Provider
from tidewarden.tokens.accounts.unconfigured_accounts import UnconfiguredAccounts
from tidewarden.tokens.events.account_events import AccountEvents
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.limits.node_limits import NodeLimits
from tidewarden.tokens.shared_parts import Job, SharedParts

from .journal_replay import JournalReplay
from .offline_refresh import OfflineClient, OfflineRefresher
from .outcome_notifier import Counts, OutcomeNotifier
from .pool import Pool
from .provider_clients import ProviderClient, ProviderClients
from .refresher import Refresher, lease_ms_of
from .rescue import Rescue
from .token_request import TokenRequest
from .under_way import UnderWay
from .unknown_outcome import UnknownOutcomes
from .write_back import WriteBack


class Refreshing:
    """
    Refreshes the accounts of one node.

    ``clients`` runs the refreshers beside the coroutines of :meth:`jobs`.
    """

    def __init__(self, shared: SharedParts, account_events: AccountEvents, counts: Counts) -> None:
        """Tell ``account_events`` the outcomes of refreshes, and count them in ``counts``."""
        directory, accounts, queues = shared.directory, shared.accounts, shared.queues
        cache, clock, dice = shared.cache, shared.clock, shared.dice
        node, nodes, lifecycle = shared.node, shared.nodes, account_events.lifecycle
        self._shared = shared
        self.counts = counts
        self._under_way = under_way = UnderWay()
        self._notifier = notifier = OutcomeNotifier(
            counts, cache, shared.waiting_readers, lifecycle, account_events.revoker
        )
        tell, refreshes, jumps = lifecycle.of_provider, counts.refreshes, counts.quarantines
        self._limits = NodeLimits(
            accounts, queues.admin, clock, dice, node, nodes, tell, refreshes, jumps
        )
        alone = dict[str, OfflineClient]()
        self.clients = ProviderClients(
            self._client, directory, shared.endpoint, alone, shared.whole
        )
        pools, journal, vault = self.clients.pools, shared.journal, shared.vault
        self.offline = OfflineRefresher(alone, cache, notifier, clock, dice)
        self.replay = JournalReplay(
            node, journal, vault, clock, notifier, under_way, pools, shared.mac
        )
        self._rescue = Rescue(directory.providers, directory.queues, accounts, clock, nodes)
        self.unconfigured = UnconfiguredAccounts(
            accounts,
            queues.catalog.names,
            lambda: [directory.queues[name] for name in directory.providers],
            clock,
        )

    def jobs(self) -> Sequence[Job]:
        """Return the jobs that run beside the refreshers."""
        return self.replay.run, self._rescue.run, self.unconfigured.run

    def change(self, config: Config) -> None:
        """Use the providers of ``config`` from now on; what is under way ends as it began."""
        self._limits.hosts.change(config.providers.values())
        self.clients.change(config.providers)
        self._rescue.change(config.providers)
        self.unconfigured.change()

    def _client(self, provider: Provider) -> ProviderClient:
        """Make the parts that refresh the accounts of one provider."""
        shared, notifier, under_way = self._shared, self._notifier, self._under_way
        queues, accounts, journal = shared.queues, shared.accounts, shared.journal
        vault, clock, dice, node = shared.vault, shared.clock, shared.dice, shared.node
        queue = shared.directory.queues[provider.name]
        limits = ClientLimits(provider, queue, self._limits, lease_ms_of(provider))
        request = TokenRequest(provider, shared.endpoint, vault, clock)
        write_back = WriteBack(
            provider, queue, node, accounts, vault, journal, shared.cache, notifier, clock, dice
        )
        unknown = UnknownOutcomes(provider, queue, node, accounts, shared.peers, write_back)
        refresher = Refresher(
            provider,
            queue,
            accounts,
            journal,
            request,
            unknown,
            write_back,
            notifier,
            limits,
            under_way,
            clock,
            dice,
            shared.patience,
        )
        pool = Pool(
            provider, queue, queues, accounts, vault, journal, limits, refresher, write_back, clock
        )
        return ProviderClient(provider, pool, OfflineClient(request, write_back, limits))
