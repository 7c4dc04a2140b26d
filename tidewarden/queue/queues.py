"""Builds the parts of one node's queues and names them."""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.durability.durability import Durability
from tidewarden.store.near_copy import NearCopy
from tidewarden.user_limits import UserLimits

from .admin import QueueAdmin
from .bulk import Bulk
from .buried import BuriedTasks
from .catalog import Catalog
from .consistency import Consistency
from .consumer import Consumer
from .ends.dropped_queues import DroppedQueues
from .ends.queue_expiry import QueueExpiry
from .fast_path import FastPath
from .locks import Locks
from .put import Producer
from .reads.near_reads import NearReads
from .reads.search import QueueSearch
from .reads.store_reads import StoreReads
from .sessions.hold_limit import HoldLimit
from .sessions.lost_takes import LostTakes
from .sessions.session_expiry import SessionExpiry
from .sessions.session_records import SessionRecords
from .sessions.sessions import Sessions
from .sessions.unbound import UnboundSessions
from .settings import QueueSettings
from .shards.shard_scripts import ShardScripts
from .take import TakesUnderWay
from .topics import Topics
from .waits.capacity_wait import CapacityWait
from .waits.drain import Drain
from .waits.results import Results
from .wakeups import Wakeups


class Queues:
    """
    Builds the parts of the queue room for one node, and names them.

    The methods that producers and consumers call most stand here too. Results come as futures or
    coroutines; all raise :mod:`tidewarden.errors`.
    """

    def __init__(
        self,
        config: Config,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        *,
        views: bool,
        system_queues: Mapping[str, QueueSettings],
        durability: Durability | None = None,
        near: NearCopy | None = None,
    ) -> None:
        """Read the node's own copy of the data by ``near``; None: it has none."""
        limits = config.limits
        self.drain = Drain()
        self.catalog = Catalog(
            config,
            link,
            scripts,
            clock,
            views=views,
            system_queues=system_queues,
            durability=durability,
        )
        self.scripts = ShardScripts(self.catalog, link, scripts)
        self.near = NearReads(self.catalog, near, link, clock) if near is not None else None
        reads = StoreReads(self.catalog, self.near)
        self.admin = QueueAdmin(self.catalog, self.scripts, link, limits.payload_bytes, reads)
        self.search = QueueSearch(reads)
        self.buried = BuriedTasks(self.catalog, reads, clock, limits.payload_bytes)
        self.topics = Topics(self.catalog, limits.queues_max, self.admin.configure)
        self.bulk = Bulk(self.catalog)
        self.dropped = DroppedQueues(self.catalog, link, self.bulk)
        self.expiry = QueueExpiry(self.catalog, self.scripts, self.dropped, clock)
        self.consistency = Consistency(self.catalog)
        self.results = Results(self.catalog, limits)
        self.producer = Producer(self.catalog, clock, limits.payload_bytes)
        self.capacity_wait = CapacityWait(self.catalog, self.producer, limits, self.drain)
        self.wakeups = Wakeups(self.catalog, self.results, self.capacity_wait)
        background = self.catalog.background
        self.session_records = SessionRecords(self.catalog, link, scripts)
        self.session_expiry = SessionExpiry(self.catalog, self.session_records, background)
        self.sessions = Sessions(
            self.catalog, self.session_records, self.session_expiry, background, clock
        )
        self.unbound = UnboundSessions(self.sessions, background)
        self.hold_limit = HoldLimit(self.catalog.shard_if_known)
        self.consumer = Consumer(
            self.catalog, self.sessions, self.hold_limit, TakesUnderWay(self.drain), limits
        )
        self.locks = Locks(
            self.catalog,
            self.sessions,
            self.hold_limit,
            self.results,
            self.admin,
            self.drain,
            wait_max_ms=limits.wait_ms,
            waiting_max=limits.waiting_max,
        )
        self.fast_path = FastPath(
            self.catalog, self.producer, self.consumer, self.sessions, limits, self.drain
        )
        self.lost_takes = LostTakes(
            clock,
            lambda: self.catalog.holder,
            lambda: self.sessions.open_ones,
            self.consumer.arrived,
            self.catalog.current,
        )
        self.catalog.on_lost = self.lost_takes.lost
        self._name_verbs()

    def _name_verbs(self) -> None:
        """Name here what producers and consumers call most."""
        self.put = self.producer.put
        self.put_waiting = self.capacity_wait.put
        self.take = self.consumer.take
        self.ack = self.consumer.ack
        self.release = self.consumer.release
        self.fail = self.consumer.fail
        self.bury = self.consumer.bury
        self.touch = self.consumer.touch
        self.wait = self.results.wait
        self.open_session = self.sessions.open
        self.close_session = self.sessions.close
        self.join_session = self.sessions.join

    @property
    def user_limits(self) -> UserLimits:
        """
        Return the limits of what each user may have of what they share; the doors ask it, too.
        """
        return self.catalog.user_limits

    def end_waits(self) -> None:
        """
        End every wait, because the node stops.

        Waiting takes are answered with nothing, all others with a time-out.
        """
        self.drain.started = True
        self.results.end_waits()
        self.capacity_wait.end_waits()
        self.consumer.end_waits()
