"""Builds the parts by which a node leads, or knows who does: Raft, leadership, and its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from tidewarden.clock import Clock
from tidewarden.cluster import Leadership, LeaderTasks, Observer, Reaper
from tidewarden.config.load import Config
from tidewarden.raft import RaftMember
from tidewarden.raft.elector import ClusterState
from tidewarden.scheduler.sweep import Sweep

from .process_parts import ProcessParts
from .raft_signal import RaftSignal


@dataclass(frozen=True, slots=True)
class LeaderParts:
    """Holds what this node runs while it leads, and what says whether it does."""

    raft: ClusterState
    member: RaftMember | None
    """The same; None on a worker, which is no member."""
    leadership: Leadership
    tasks: LeaderTasks
    sweep: Sweep
    reaper: Reaper


def build_leader(
    config: Config,
    clock: Clock,
    parts: ProcessParts,
    sweep: Sweep,
    member: RaftMember | None,
    signal: RaftSignal,
) -> LeaderParts:
    """
    Build the leader's tasks; a worker, which is no ``member``, gets an observer in Raft's place.

    ``signal`` rings when the view of ``member`` changes.
    """
    nodes, control = parts.nodes, parts.control
    raft: ClusterState = member or Observer(config, clock, nodes, control)
    reaper = Reaper(config.node.name, nodes, parts.queues, clock, raft.peer_heard_s)
    tasks = LeaderTasks(
        clock,
        (sweep.duty, sweep.run),
        (reaper.duty, lambda epoch, _: reaper.run(epoch)),
    )
    leadership = Leadership(
        config.cluster.name,
        raft,
        control,
        parts.links.scripts,
        clock,
        lambda: nodes.holder,
        tasks.run,
        lambda: nodes.beat_at,
    )
    signal.listen(leadership.raft_changed)
    parts.on_compared = leadership.store_changed
    return LeaderParts(raft, member, leadership, tasks, sweep, reaper)
