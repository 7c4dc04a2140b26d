"""Lists the system's own queues of tokens, with the settings that they are made with."""

from __future__ import annotations

from tidewarden.config.provider import QUEUE_PREFIX, SHARDS
from tidewarden.queue.settings import QueueSettings

from .events.events import QUEUE as WEBHOOKS
from .events.revocation import QUEUE as REVOCATIONS
from .limits.host_rate_limit import QUEUE as HOSTS
from .vault.provider_records import QUEUE as VAULT

SYSTEM_QUEUES = {
    QUEUE_PREFIX: QueueSettings(
        shards=SHARDS,
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
    # Without tasks: see tokens/lua/host.lua.
    HOSTS: QueueSettings(losses_max=0, dedup_ms=0, history=0),
}
"""
By the beginnings of their names. They are made with what they need, so that nodes which start
together agree from the first moment.
"""
