"""
Which files of tests take longest, by the clock: at the end of a run one of them would leave the
other processes idle.
"""

LONGEST = (
    "live/refresh_steps/test_refresh_steps.py",
    "live/tokens/refresh/test_failover.py",
    "live/judgement/test_kills.py",
    "live/judgement/test_incidents.py",
    "live/judgement/test_accounts.py",
    "live/engines/test_tokens.py",
    "live/raft/test_strangers.py",
    "live/engines/test_cluster_resize.py",
    "live/failover/test_cut_off.py",
    "live/faults/test_storm.py",
    "live/faults/test_single_links.py",
    "live/console/test_console.py",
    "live/up/test_stores.py",
    "live/up/test_up.py",
    "live/failover/test_sdk.py",
    "live/node/test_secondaries.py",
    "live/tokens/refresh/test_troubles.py",
    "live/tokens/provider/test_providers.py",
    "live/failover/test_locks.py",
    "live/up/test_examples.py",
    "live/tokens/refresh/test_pool.py",
    "live/tokens/refresh/test_refresher.py",
    "live/store/test_sharded_pubsub.py",
    "rooms/store/test_group_commit.py",
    "live/store/test_cluster_client.py",
    "rooms/server/test_fuzz.py",
    "scripts/accounts/test_unreadable_rows.py",
    "live/failover/test_nodes.py",
    "live/engines/test_cluster_engine.py",
    "rooms/store/test_sentinel.py",
    "rooms/tokens/test_orphans.py",
    "live/tokens/refresh/test_unknown_outcome.py",
)
"""They are begun first, in this order."""
