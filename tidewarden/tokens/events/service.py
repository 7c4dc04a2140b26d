"""
What goes out of a node's tokens to others: events, webhooks, companion tasks, what an operator
should know; built and run together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.queue import Queues
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.accounts.unconfigured_accounts import UnconfiguredAccounts

from .companion_cleanup import CompanionCleanup
from .companions import Companions
from .consents import Consents
from .events import Call, Events
from .lifecycle import AccountLifecycle
from .outbox import Outbox
from .webhooks import Webhooks


class Outlets:
    """
    Of one node: the coroutines of :meth:`jobs` run for ever, then :meth:`stop`. ``tidings`` is
    where it all begins.
    """

    def __init__(
        self,
        config: Config,
        queues: Queues,
        ledger: AccountStore,
        queue_of: Mapping[str, str],
        call: Call,
        clock: Clock,
    ) -> None:
        """
        ``call`` sends one command to the store; ``queue_of``: where accounts lie, by provider.
        """
        self.events = Events(
            call, config.cluster.name, queues.put, config.webhooks, config.events.kept
        )
        self._webhooks = Webhooks(queues, config.webhooks, clock)
        drop = functools.partial(queues.admin.delete, force=True)
        self._companions = Companions(config.companions, queues.put, drop, clock)
        self._left_over = CompanionCleanup(
            config.companions, config.providers, queues, call, config.cluster.name, clock
        )
        self._outbox = Outbox(
            ledger,
            queue_of,
            queues.catalog.shard_of,
            queues.scripts.having,
            self.events,
            self._companions,
            clock,
        )
        days = config.tokens.consent_notice_days
        self._consents = Consents(
            ledger, queue_of.values(), queues.scripts.having, days, self._outbox.look_at, clock
        )
        self._stranded = UnconfiguredAccounts(ledger, queues.catalog.names, queue_of.values())
        self.tidings = AccountLifecycle(self._outbox, self._companions, config.events.failing_s)

    def jobs(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs for ever, or returns when there is nothing to do."""
        return (
            self._outbox.run,
            self._consents.run,
            self._webhooks.run,
            self._companions.run,
            self._left_over.run,
            self._stranded.say,
        )

    async def stop(self) -> None:
        """Tell what is noted, within a second. After the jobs."""
        await self._outbox.stop()

    def metrics(self) -> dict[str, Any]:
        """
        ``events`` told by (provider, kind), ``webhooks`` sent by (name, outcome), and what was
        lost.
        """
        return {
            "events": dict(self.events.told),
            "events_lost": self._companions.lost,
            "webhooks": dict(self._webhooks.sent),
        }
