"""
Guards of queues, and of the client that takes from them; see :mod:`meta.guards`, which switches
them off.
"""

from __future__ import annotations

LANE, LEASES_BY_HTTP = "queue/lua/shared/lane.lua", ("rooms/server/test_http_leases",)
OF_QUEUES: tuple[tuple[str, str, str, str, *tuple[tuple[str, ...], ...]], ...] = (
    (
        "lost-lane",
        LANE,
        "lane.doubtful = lane.doubtful or lane.head",
        "lane.doubtful = lane.head",
        ("scripts/lanes/test_lanes",),
    ),
    (
        "lost-lane-head",
        LANE,
        "elseif where == 'ready' and lane.head == rules.entry(id, t) then",
        "elseif where == 'ready' then",
        ("scripts/lanes/test_lanes",),
    ),
    (
        "edit-as-seen",
        "queue/lua/put_again.lua",
        "if buried > 0 and tonumber(stood) ~= buried then return finish('KICKED') end",
        "",
        ("scripts/tasks/test_burial",),
    ),
    (
        "moved-as-read",
        "queue/buried.py",
        'args = (len(there), "", "", 0, read_ms, 0, 0, *there)',
        'args = (len(there), "", "", 0, 0, 0, 0, *there)',
        ("scripts/tasks/test_burial",),
    ),
    (
        "whole-reason",
        "queue/lua/shared/leases.lua",
        "if reason == prefix or not exact and string.sub(reason, 1, #prefix) == prefix then",
        "if string.sub(reason, 1, #prefix) == prefix then",
        ("scripts/tasks/test_burial",),
    ),
    (
        "refused-part",
        "queue/lua/batch.lua",
        "if verb == 'put' and answer.err then afresh() end",
        "",
        ("scripts/tasks/test_batch",),
    ),
    (
        "session-of-this-boot",
        "queue/sessions/sessions.py",
        "        if shared.lost or shared.holder != self._catalog.holder:\n            return False\n",
        "        if shared.lost:\n            return False\n",
        ("rooms/queues/test_session_takes",),
    ),
    (
        "unclaimed-lock",
        "server/http/routes/locks.py",
        "                    if fence:\n",
        "                    if False:\n",
        LEASES_BY_HTTP,
    ),
    (
        "whole-put",
        "server/http/route.py",
        "return await asyncio.shield(asyncio.ensure_future(work))",
        "return await work",
        LEASES_BY_HTTP,
    ),
    (
        "ack-under-way",
        "client/worker.py",
        "elif job in self._busy:",
        "else:",
        ("rooms/client/test_worker",),
    ),
    (
        "abandoned-take",
        "client/failover.py",
        "                    connection.abandon()\n",
        "",
        ("rooms/client/test_client",),
    ),
    (
        "run-ends",
        "queue/lua/shared/results.lua",
        "redis.call('HSET', key('runs'), name, run .. ' ' .. gone .. ' ' .. text(now))",
        "",
        ("rooms/scheduling/test_runs",),
    ),
    (
        "run-once",
        "scheduler/lua/run.lua",
        "if last == id or stored(id) or",
        "if stored(id) or",
        ("rooms/scheduling/test_runs",),
    ),
    (
        "run-of-full-store",
        "queue/lua/ack.lua",
        "      memory[i] = ms\n",
        "      memory[i] = ms\n      over(id, 'done')\n",
        ("rooms/scheduling/test_runs",),
    ),
    (
        "owed-answers",
        "client/connection.py",
        "self._leaving = True\n        if len(self._waiting) <= 1:",
        "self._leaving = True\n        if True:",
        ("unit/client/test_connection",),
    ),
)
"""
Name, file, what stands there, what takes its place; then test files that have to notice, and live
ones.
"""
