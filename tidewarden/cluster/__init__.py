"""Where Raft and the store meet: the leader's term, its epoch, the death of nodes."""

from tidewarden.cluster.backup import Backups
from tidewarden.cluster.duties import Duties
from tidewarden.cluster.heartbeat import Heartbeat
from tidewarden.cluster.nodes import Nodes, Registration
from tidewarden.cluster.onlooker import Onlooker
from tidewarden.cluster.reaper import Reaper
from tidewarden.cluster.shard_clocks import ShardClocks
from tidewarden.cluster.store_clock import StoreClock
from tidewarden.cluster.term import Term

__all__ = [
    "Backups",
    "Duties",
    "Heartbeat",
    "Nodes",
    "Onlooker",
    "Reaper",
    "Registration",
    "ShardClocks",
    "StoreClock",
    "Term",
]
