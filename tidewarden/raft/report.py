"""All that an operator may ask of Raft, in plain values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .state import RaftView
from .voter import Voter

if TYPE_CHECKING:
    from .member import RaftMember


def status(
    raft: RaftMember, sight: RaftView | None, now: float, voter: Voter | None
) -> dict[str, Any]:
    """What ``raft`` says of itself at ``now``; times that never were are ``None``."""
    return {
        "node": raft.name,
        "role": raft.role(),
        "leader": raft.leader(),
        "term": raft.term,
        "commit": 0 if sight is None else sight.commit,
        "quorum": raft.has_quorum(),
        "heard_s": _finite(raft.heard_s()),
        "lease_s": _finite(raft.lease_s()),
        "tick_age_s": None if sight is None else round(now - sight.ticked, 3),
        "strangers_refused": 0 if voter is None else voter.strangers_refused(),
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
        "members_version": 0 if sight is None or sight.members is None else sight.members.version,
        "estranged": raft.estranged(),
    }


def _finite(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None
