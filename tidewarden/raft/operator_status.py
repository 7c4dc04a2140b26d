"""Reports all that an operator may ask of Raft, in plain values."""

from __future__ import annotations

import math
from typing import Any

from .elector import ClusterState


def operator_status(
    raft: ClusterState,
    *,
    commit: int = 0,
    heard_s: float = math.inf,
    lease_s: float = 0.0,
    tick_age_s: float | None = None,
    strangers_refused: int = 0,
    members_version: int = 0,
    seat_waits: str = "",
    trouble: str = "",
) -> dict[str, Any]:
    """Return what ``raft`` says of itself; times that never were are ``None``."""
    return {
        "node": raft.name,
        "role": raft.role(),
        "leader": raft.leader(),
        "term": raft.term,
        "commit": commit,
        "quorum": raft.has_quorum(),
        "heard_s": _finite(heard_s),
        "lease_s": _finite(lease_s),
        "tick_age_s": tick_age_s,
        "strangers_refused": strangers_refused,
        **raft.committed(),
        "members": {
            name: {
                "address": seen.address,
                "votes": seen.votes,
                "met": seen.met,
                "heard_s": _finite(raft.peer_heard_s(name)),
            }
            for name, seen in raft.seats().items()
        },
        "members_version": members_version,
        "seat_waits": seat_waits,
        "trouble": trouble,
        "estranged": raft.not_member_because(),
    }


def _finite(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None
