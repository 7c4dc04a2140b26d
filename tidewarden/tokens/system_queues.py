"""Lists the system's own queues of tokens, with the settings that they are made with."""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.config.provider import QUEUE_PREFIX
from tidewarden.queue.settings import QueueSettings

from .connect.devices import LANE_LIMIT
from .connect.devices import QUEUE as DEVICES
from .events.events import QUEUE as WEBHOOKS
from .events.revocation import QUEUE as REVOCATIONS
from .limits.node_limits import HOSTS_QUEUE as HOSTS
from .vault.provider_records import QUEUE as VAULT

CLUSTER_SHARDS = 16
"""
Shards of a client's queue on a Redis Cluster, where they lie on several primaries.

On one server further shards would only divide what one call can do for many accounts.
"""


def system_queues(*, clustered: bool = False) -> Mapping[str, QueueSettings]:
    """
    Return the settings of the system's token queues, by the beginnings of their names.

    They are made with what they need, so that nodes which start together agree from the first
    moment; a queue that is there keeps what it was made with. ``clustered``: whether the store is a
    Redis Cluster.
    """
    return {
        QUEUE_PREFIX: QueueSettings(
            shards=CLUSTER_SHARDS if clustered else 1,
            losses_max=0,
            dedup_ms=0,
            history=0,
            urgent_ms=5_000,
            urgent_max_ms=3_600_000,
            late_share=256,
            early_share=0,
        ),
        VAULT: QueueSettings(losses_max=0, dedup_ms=0, history=0),
        WEBHOOKS: QueueSettings(losses_max=0, lane_limit=4),
        REVOCATIONS: QueueSettings(losses_max=0, lane_limit=2),
        DEVICES: QueueSettings(losses_max=0, dedup_ms=0, history=0, lane_limit=LANE_LIMIT),
        # Without tasks: see tokens/lua/host.lua.
        HOSTS: QueueSettings(losses_max=0, dedup_ms=0, history=0),
    }
