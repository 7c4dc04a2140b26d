"""
Guards of one refresh, and of what follows when it fails; see :mod:`meta.guards`, which switches
them off.
"""

from __future__ import annotations

INTENT, POLICY = "tokens/lua/intent.lua", "tokens/policy/failures.py"
JOURNAL, OF_JOURNAL = "tokens/journal/journal.py", ("unit/tokens/test_journal",)
OF_DOUBTS = ("unit/tokens/test_unknown_outcome",)
OF_ONE_REFRESH: tuple[tuple[str, str, str, str, *tuple[tuple[str, ...], ...]], ...] = (
    (
        "intent",
        INTENT,
        "elseif open_until > now then",
        "elseif false then",
        ("scripts/accounts/test_account_store",),
    ),
    (
        "renewed-lease",
        "tokens/lua/renew.lua",
        "current_lease(account, lease)",
        "tries_get(account)",
        ("scripts/accounts/test_account_store",),
    ),
    (
        "refused-since",
        "tokens/lua/stored.lua",
        "if redis.call('ZSCORE', DEAD, account) or refused then",
        "if redis.call('ZSCORE', DEAD, account) then",
        ("scripts/accounts/test_account_store_late",),
        ("live/refresh_steps/test_refresh_steps",),
    ),
    (
        "confirmations",
        POLICY,
        "if troubles.refusals < CONFIRMATIONS:",
        "if not troubles.refusals:",
        ("unit/tokens/test_policy", "unit/tokens/test_policy_ends"),
    ),
    (
        "others-well",
        POLICY,
        "if case.assessment.well_ms <= since_ms:",
        "if False:",
        ("unit/tokens/test_policy_ends",),
    ),
    (
        "quarantine",
        "tokens/limits/judgement.py",
        "if failed >= enough and share >",
        "if False and share >",
        ("unit/tokens/limits/test_fleets", "unit/tokens/limits/test_judgement"),
    ),
    (
        "mended",
        "tokens/limits/judgement.py",
        "        if getattr(judged_by, well) > max(MENDED, getattr(judged_by, again)):",
        "        if False:",
        ("unit/tokens/limits/test_fleets",),
    ),
    (
        "cluster",
        POLICY,
        "long or (not troubles.clustered and",
        "long or (True and",
        ("unit/tokens/limits/test_fleets", "unit/tokens/test_policy_ends"),
    ),
    (
        "enough-answers",
        POLICY,
        "lasts_s >= judged_s)",
        "True)",
        ("unit/tokens/test_policy_ends",),
    ),
    (
        "grace-first",
        POLICY,
        "if case.saving:",
        "if False:",
        ("unit/tokens/test_policy_ends",),
    ),
    (
        "reader-first",
        POLICY,
        "wait = min(wait, _uncounted_wait_s(case))",
        "wait = wait",
        ("unit/tokens/limits/test_fleets", "unit/tokens/test_policy_ends"),
    ),
    (
        "sample",
        "tokens/limits/client_record.py",
        "not found.ending_ms and clock_ms >= found.sample_ms",
        "False",
        ("unit/tokens/limits/test_judgement",),
    ),
    (
        "gives-way",
        "tokens/lua/failed.lua",
        "        t.deadline = math.max(t.deadline, now + delay_ms)\n",
        "",
        ("scripts/accounts/test_account_store",),
    ),
    (
        "named-time",
        "tokens/lua/rouse.lua",
        "(tonumber(troubles[20]) or 0) > at",
        "false",
        ("scripts/accounts/test_rouse",),
    ),
    (
        "safe-replay",
        POLICY,
        "wait if not case.safe_until_ms or",
        "wait if True or",
        ("unit/tokens/test_policy", "unit/tokens/test_policy_ends"),
    ),
    (
        "first-doubt",
        "tokens/refresh/unknown_outcome.py",
        "troubles.doubt_ms or found.started_ms",
        "found.started_ms",
        OF_DOUBTS,
    ),
    (
        "adopted-key",
        "tokens/refresh/write_back.py",
        "        await self._vault.restore(reply.key_id, reply.key)\n",
        "",
        OF_DOUBTS,
    ),
    ("journal-group", JOURNAL, "        os.fdatasync(self._file)\n", "", OF_JOURNAL),
    ("journal-file", JOURNAL, "            os.fsync(descriptor)\n", "", OF_JOURNAL),
    ("journal-folder", JOURNAL, "os.fsync(folder)", "pass", OF_JOURNAL),
    (
        "journal-numbers",
        JOURNAL,
        "            self._number = max(self._number, record.number)\n            self._keep",
        "            self._keep",
        OF_JOURNAL,
    ),
)
"""
Name, file, what stands there, what takes its place; then test files that have to notice, and live
ones.
"""
