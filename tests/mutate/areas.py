"""Which files of the product belong together, and which tests have to notice a fault in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """
    ``sources``: globs below the package; ``tests``: files and folders below ``tests``.

    ``safe``: a fault loses, repeats or shows what it must not.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    live: tuple[str, ...] = ()
    safe: bool = True


AREAS = {
    "lua-tasks": Area(
        (
            "queue/lua/put.lua",
            "queue/lua/take.lua",
            "queue/lua/ack.lua",
            "queue/lua/end.lua",
            "queue/lua/sweep.lua",
            "queue/lua/batch.lua",
            "queue/lua/touch.lua",
            "queue/lua/reap.lua",
            "queue/lua/session_*.lua",
            "queue/lua/shared/*.lua",
        ),
        ("scripts",),
    ),
    "lua-tokens": Area(("tokens/lua/*.lua",), ("scripts/accounts", "rooms/tokens")),
    "queue": Area(
        ("queue/sessions/*.py", "queue/shards/*.py", "queue/waits/*.py", "queue/locks.py"),
        ("unit/queues", "rooms/queues"),
    ),
    "rights": Area(
        ("config/rights.py", "server/access/required_rights.py", "server/access/users.py"),
        ("unit/config", "unit/server/access"),
    ),
    "doors": Area(
        ("server/http/authorization.py", "server/http/routes/*.py", "server/access/admission.py"),
        ("unit/server/access", "unit/server/http", "rooms/server"),
    ),
    "audit": Area(("server/audit/*.py",), ("unit/server/access", "rooms/server/test_audit.py")),
    "facts": Area(
        ("raft/store_facts.py", "raft/membership.py", "raft/voter.py"),
        ("unit/raft",),
        ("live/raft", "live/failover/test_last_resort.py"),
    ),
    "election": Area(
        ("cluster/replication/*.py",), ("unit/cluster",), ("live/failover/test_replication.py",)
    ),
    "commit": Area(("store/durability/*.py",), ("unit/store", "rooms/store")),
    "judgement": Area(
        ("tokens/limits/*.py", "tokens/policy/*.py"),
        ("unit/tokens",),
        ("live/tokens/limits", "live/judgement"),
    ),
    "refresh": Area(
        ("tokens/refresh/*.py", "tokens/journal/*.py", "tokens/custody/*.py"),
        ("unit/tokens", "rooms/tokens"),
        ("live/tokens/refresh", "live/refresh_steps"),
    ),
    "client": Area(("client/*.py",), ("unit/client", "rooms/client"), safe=False),
    "beanstalkd": Area(
        ("server/beanstalkd/*.py",), ("unit/server/beanstalkd", "rooms/beanstalkd"), safe=False
    ),
}
