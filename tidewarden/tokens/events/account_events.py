"""Tells others what becomes of a node's accounts: by events, webhooks, companions, revocations."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from tidewarden.config.load import Config
from tidewarden.tokens.shared_parts import Job, SharedParts

from .companion_cleanup import CompanionCleanup
from .companions import Companions
from .consents import Consents
from .events import Events
from .lifecycle import AccountLifecycle
from .outbox import Outbox
from .revocation import Revoker
from .webhooks import Webhooks


class AccountEvents:
    """
    Tells of one node's accounts.

    Other parts note in ``lifecycle`` and ``revoker`` what happens; :meth:`jobs` send it.
    """

    def __init__(self, shared: SharedParts, revoked: Counter[tuple[str, str]]) -> None:
        """Count revocations in ``revoked``, by provider and outcome."""
        config, queues, call, clock = shared.config, shared.queues, shared.call, shared.clock
        providers, accounts, queue_of = config.providers, shared.accounts, shared.directory.queues
        put, having, cluster = queues.put, queues.scripts.having, config.cluster.name
        drop = functools.partial(queues.admin.delete, force=True)
        self._webhooks_read = config.webhooks
        self.events = Events(call, cluster, put, config.webhooks, config.events.kept)
        self.webhooks = Webhooks(queues, config.webhooks, clock)
        self.companions = Companions(config.companions, put, drop, clock)
        self._cleanup = CompanionCleanup(config.companions, providers, queues, call, cluster, clock)
        shard_of, days = queues.catalog.shard_of, config.tokens.consent_notice_days
        self.outbox = Outbox(
            accounts, queue_of, shard_of, having, self.events, self.companions, clock
        )
        self._consents = Consents(
            accounts, queue_of.values(), having, days, self.outbox.look_at, clock
        )
        self.lifecycle = AccountLifecycle(self.outbox, self.companions, config.events.failing_s)
        vault, endpoint = shared.vault, shared.endpoint
        self.revoker = Revoker(
            providers, queue_of, queues, accounts, vault, endpoint, clock, revoked
        )

    def jobs(self) -> Sequence[Job]:
        """Return the jobs that send what was noted."""
        return (
            self.outbox.run,
            self._consents.run,
            self.webhooks.run,
            self.companions.run,
            self._cleanup.run,
            self.revoker.run,
        )

    def change(self, config: Config) -> None:
        """Use the providers, webhooks and companions of ``config`` from now on."""
        self.companions.change(config.companions)
        self._cleanup.change(config.companions, config.providers)
        self.revoker.change(config.providers)
        if config.webhooks is not self._webhooks_read:  # else providers alone were put or removed
            self._webhooks_read = config.webhooks
            self.events.change(config.webhooks)
            self.webhooks.change(config.webhooks)
