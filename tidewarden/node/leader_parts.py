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
    config: Config, secret: str, clock: Clock, parts: ProcessParts, sweep: Sweep
) -> LeaderParts:
    """
    Build the leader's tasks; a worker gets an observer in Raft's place.

    Raises: ConfigError: the members cannot be used, or there is no secret.
    """
    nodes, control = parts.nodes, parts.control

    def changed() -> None:
        leadership.raft_changed()

    is_worker = config.node.role == "worker"
    member = None if is_worker else RaftMember(config, secret, clock, changed)
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
    return LeaderParts(raft, member, leadership, tasks, sweep, reaper)
