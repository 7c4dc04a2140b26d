"""Which files of tests take longest, by the clock: at the end of a run one of them would leave the other processes idle."""

LONGEST = (
    "live/test_refresh_steps.py",
    "live/test_tokens_failover.py",
    "live/test_engine_tokens.py",
    "live/test_cluster_resize.py",
    "live/test_cut_off.py",
    "live/test_faults.py",
    "live/test_up.py",
    "live/test_sdk.py",
    "live/test_fronts.py",
    "live/test_troubles.py",
    "live/test_providers.py",
    "live/test_locks.py",
    "live/test_examples.py",
    "test_tokens_pool.py",
    "test_tokens_refresher.py",
    "test_store_shard_ears.py",
    "test_store_commit.py",
    "test_store_primaries.py",
    "test_server_fuzz.py",
    "live/test_failover.py",
    "live/test_cluster_engine.py",
    "test_store_sentinel.py",
    "test_tokens_orphans.py",
    "test_tokens_doubts.py",
)
"""They are begun first, in this order."""
