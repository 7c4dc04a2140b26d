"""The Lua files that stand before every script of a shard."""

from __future__ import annotations

from tidewarden.store.scripts.loader import SharedLua

from .settings import lua_defaults

SHARED = SharedLua(
    "tidewarden.queue",
    (
        "record.lua",
        "fence.lua",
        "account_rows.lua",
        "tally.lua",
        "layout.lua",
        "task.lua",
        "token_bucket.lua",
        "shares.lua",
        "lane.lua",
        "unreadable.lua",
        "indexes.lua",
        "results.lua",
        "locks.lua",
        "leases.lua",
        "promote.lua",
        "finish.lua",
        "sessions.lua",
    ),
    {"QUEUE_SETTINGS": lua_defaults()},
)
