"""Guards of one store of several; see :mod:`meta.guards`, which switches them off."""

from __future__ import annotations

LINEAGE, HOST = "store/embedded/lineage.py", "store/embedded/store_host.py"
OF_STORES: tuple[tuple[str, str, str, str, *tuple[tuple[str, ...], ...]], ...] = (
    (
        "store-nobody",
        HOST,
        '("replicaof", NOBODY),',
        "",
        ("live/store/test_store_host",),
    ),
    (
        "store-closed",
        "store/embedded/credentials.py",
        'f"default reset off #',
        'f"default reset on #',
        ("live/store/test_store_host",),
    ),
    (
        "store-folder-taken",
        HOST,
        "        if not self._files.is_taken:\n            await self._files.take(self._clock)\n",
        "        self.folder.mkdir(parents=True, exist_ok=True)\n",
        ("live/store/test_store_host",),
    ),
    (
        "stalled",
        "cluster/replication/chooser.py",
        "self._awake.since(max(at, since_s))",
        "self._clock.monotonic() - max(at, since_s)",
        ("unit/cluster/test_chooser",),
    ),
    (
        "detached-before",
        "cluster/replication/set_keeper.py",
        "detached = (late & self._attached) - acks.keys()",
        "detached = late - acks.keys()",
        ("unit/cluster/test_set_keeper",),
    ),
    (
        "settled-after-a-death",
        "cluster/replication/election.py",
        "silent = silent_s > self.times.dead_s and not has_ended",
        "silent = silent_s > self.times.dead_s or has_ended",
        ("unit/cluster/test_election",),
    ),
    (
        "hold-again",
        "store/durability/set_commit.py",
        "            if self._too_few:\n",
        "            if False:\n",
        ("rooms/store/test_set_commit",),
    ),
    (
        "copied-view",
        "store/preflight.py",
        "if told and told[1].decode() == EMBEDDED:",
        "if True:",
        ("rooms/store/test_preflight",),
    ),
    (
        "empty-unheard",
        "cluster/replication/election.py",
        "return not report.view or bool(word",
        "return bool(word",
        ("unit/cluster/test_replication_model",),
    ),
    (
        "lineage-boot",
        LINEAGE,
        "if same_boot or before.clean:",
        "if True:",
        ("unit/store/test_lineage", "live/store/test_store_host"),
    ),
    (
        "lineage-sync",
        LINEAGE,
        "whole = not (folder / MARKER).exists() and any(",
        "whole = any(",
        ("unit/store/test_lineage", "live/store/test_store_host"),
    ),
    (
        "lineage-copy",
        LINEAGE,
        "and whole and before.place == place:",
        "and whole:",
        ("unit/store/test_lineage",),
    ),
    (
        "stores-stay",
        "cli/up/stores.py",
        "if plan.one_store and each:",
        "if False:",
        ("unit/cli/test_up_stores",),
    ),
)
