"""Joins Raft and the store: leadership, the epoch, registrations, the death of nodes."""

from .backup import Backups
from .heartbeat import Heartbeat
from .leader_tasks import LeaderTasks
from .leadership import Leadership
from .observer import Observer
from .reaper import Reaper
from .registration import NodeRecord, Registration
from .shard_clocks import ShardClocks
from .store_clock import StoreClock

__all__ = [
    "Backups",
    "Heartbeat",
    "LeaderTasks",
    "Leadership",
    "NodeRecord",
    "Observer",
    "Reaper",
    "Registration",
    "ShardClocks",
    "StoreClock",
]
