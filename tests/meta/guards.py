"""
Switches each guard of the product off, one at a time, in a copy of it, and runs the tests that have
to notice.

    python -m tests.meta.guards                   every guard; some minutes
    python -m tests.meta.guards fence lanes       these
    python -m tests.meta.guards --live            with the tests that start whole clusters, too
    python -m tests.meta.guards --list            their names
    python -m tests.meta.guards --zoo             the rules of the scenarios of benchmarks.zoo
    python -m tests.meta.guards --zoo all_429     these scenarios

A guard whose loss some named file does not notice is said, and makes the exit code 1. What was seen
red is written down in docs/testing.md, "Which test guards which rule".
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.zoo.__main__ import NAMES, scenario_of

from .guards_of_one_refresh import OF_ONE_REFRESH
from .guards_of_queues import OF_QUEUES
from .guards_of_stores import OF_STORES

ROOT = Path(__file__).parents[2]
NEEDED = (
    "tidewarden",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "pyproject.toml",
    "config.toml",
    "README.md",
)
LIMIT_S = 1800
PYTEST = "-q --tb=no -rfE -p no:cacheprovider --timeout 60"
"""Without its guard a test may wait for ever: that is red, too."""


@dataclass(frozen=True, slots=True)
class Guard:
    """
    ``edits``: file of the package, what stands there exactly once, and what takes its place without
    the guard.

    ``red``: test files below ``tests``, without ``.py``, in each of which a test has to fail then;
    ``live``: of clusters.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    red: tuple[str, ...]
    live: tuple[str, ...] = ()

    def files(self, with_live: bool) -> list[str]:
        """The test files, from the root."""
        return [f"tests/{one}.py" for one in self.red] + [
            f"tests/{one}.py" for one in self.live if with_live
        ]


RECORD, LEASES, STORED = (
    "queue/lua/shared/record.lua",
    "queue/lua/shared/leases.lua",
    "tokens/lua/stored.lua",
)
GUARDS = (
    Guard(
        "fence",
        (("queue/lua/shared/fence.lua", "elseif epoch < S.epoch or holder ~= S.sweeper then", "elseif false then"),),
        ("scripts/tasks/test_fence", "rooms/scheduling/test_sweep", "rooms/scheduling/test_firing"),
        ("live/failover/test_stale_leader", "live/failover/test_cut_off"),
    ),
    Guard(
        "claim",
        (("cluster/lua/claim.lua", "if stored > epoch or stored == epoch and by ~= holder then", "if false then"),),
        ("rooms/cluster/test_leadership",),
    ),
    Guard(
        "lease",
        ((LEASES, "if r and r.holder ~= '' and r.lease == lease then", "if r and r.holder ~= '' then"),),
        ("scripts/tasks/test_leases", "rooms/queues/test_locks", "scripts/accounts/test_account_store"),
        ("live/faults/test_storm",),
    ),
    Guard(
        "ack",
        (("queue/lua/ack.lua", "if current == lease and holder ~= '' then", "if current and holder ~= '' then"),),
        ("scripts/tasks/test_leases", "rooms/queues/takes/test_fast_path"),
        ("live/faults/test_storm",),
    ),
    Guard(
        "hung",
        (("cluster/heartbeat.py", "return not hung and now", "return now"),),
        ("rooms/cluster/test_heartbeat",),
        ("live/failover/test_stalled_worker",),
    ),
    Guard(
        "long-result",
        (("queue/lua/ack.lua", "return full and #result >", "return false and #result >"),),
        ("scripts/tasks/test_full", "rooms/client/test_task"),
    ),
    Guard(
        "near-age",
        (("store/near_copy.py", "if applied >= written:", "if True:"),),
        ("live/store/test_near_copy",),
    ),
    Guard(
        "near-start",
        (("store/near_copy.py", "self._connection == self._copy.connections and (", "("),),
        ("live/store/test_near_copy",),
    ),
    Guard(
        "near-newer",
        (("tokens/verbs/reader.py", "return _generation(reading) > newer and not _given_up(reading) and lives(", "return lives("),),
        ("live/tokens/test_near",),
    ),
    Guard(
        "alone-confirmed",
        (("queue/reads/near_reads.py", "await self._confirm()()", "pass"),),
        ("live/store/test_near_copy", "live/tokens/test_near"),
    ),
    Guard(
        "alone-marked",
        (("queue/reads/near_reads.py", "        if not marks:\n            raise NoQuorum(", "        if False:\n            raise NoQuorum("),),
        ("live/store/test_near_copy",),
    ),
    Guard(
        "reads-last",
        (("queue/shards/shard_scripts.py", "        await firm()\n        return items", "        return items"),),
        ("rooms/tokens/test_lasting_reads",),
        ("live/failover/test_token_reads",),
    ),
    Guard(
        "reads-only",
        (("queue/lua/shared/finish.lua", "if effect == 'reads' then", "if false then"),),
        ("live/store/test_near_copy",),
    ),
    Guard(
        "tunnel-name",
        (("config/tls.py", "context.load_verify_locations(authorities)", "context.load_verify_locations(authorities); context.check_hostname = False"),),
        ("live/store/test_tunnel",),
    ),
    Guard(
        "tunnel-login",
        (("store/embedded/tunnel.py", "if all(line.startswith(b\"-\") for line in data.splitlines()):", "if False:"),),
        ("rooms/store/test_tunnel",),
    ),
    Guard(
        "limit-last",
        (("store/embedded/server.py", '("maxmemory", "0"),', '("maxmemory", str(self._config.maxmemory_bytes)),'),),
        ("live/store/test_embedded",),
        ("live/store/test_full_memory",),
    ),
    Guard(
        "hold",
        (
            ("queue/sessions/session.py", "if self.shared is not None and len(self.held)", "if len(self.held)"),
            ("queue/sessions/session.py", "return len(self.held) >= HELD_MAX and self.shared is None", "return False"),
        ),
        ("unit/queues/test_session", "rooms/queues/test_hold_limit"),
    ),
    Guard(
        "lock",
        (("queue/lua/shared/locks.lua", "if t and r and r.holder ~= '' and unpack_struct('>d', t.payload) == fence then", "if t and r and r.holder ~= '' then"),),
        ("scripts/holders/test_locks", "rooms/queues/test_locks"),
        ("live/failover/test_locks", "live/faults/test_storm"),
    ),
    Guard(
        "tombstone",
        (("queue/lua/put.lua", "redis.call('EXISTS', key('done:' .. id)) == 1", "false"),),
        ("scripts/tasks/test_put", "rooms/queues/test_queues"),
        ("live/faults/test_storm",),
    ),
    Guard(
        "lanes",
        (("queue/lua/shared/lane.lua", "if leased >= limit then return NEVER end", "if leased < 0 then return NEVER end"),),
        ("scripts/lanes/test_lanes",),
        ("live/faults/test_storm",),
    ),
    Guard(
        "registered",
        (("queue/lua/take.lua", "if word == '3' or word == '2'", "if word == '3' and #got == 0 or word == '2'"),),
        ("rooms/queues/takes/test_waitlist",),
    ),
    Guard(
        "retried",
        (("queue/shards/waitlist.py", "        if self._failed:\n", "        if False:\n"),),
        ("rooms/queues/takes/test_waitlist",),
    ),
    Guard(
        "fair-turn",
        (("queue/lua/take.lua", "for_all = S.fair == FAIR_TURN", "for_all = false"),),
        ("rooms/queues/takes/test_along",),
    ),
    Guard(
        "aside",
        ((LEASES, "  aside[id], aside[#aside + 1], bury_them = true, id, bury_aside\n", ""),),
        ("scripts/records/test_unreadable", "scripts/records/test_check"),
    ),
    Guard(
        "kept",
        ((RECORD, "    or tonumber(redis.call('HGET', key('shard'), 'seq')) ~= was.seq\n", ""),),
        ("scripts/records/test_kept_record",),
    ),
    Guard(
        "attach",
        (("queue/lua/session_leave.lua", "if stored[4] ~= boot .. ' ' .. text(number) then", "if not stored[4] then"),),
        ("scripts/holders/test_sessions", "rooms/queues/test_sessions"),
    ),
    Guard(
        "grace",
        (("queue/lua/session_end.lua", "if number >= 0 and session_number(record, 'number', stored[1]) ~= number then", "if false then"),),
        ("scripts/holders/test_sessions", "rooms/queues/test_sessions"),
    ),
    Guard(
        "boot",
        ((RECORD, "if tonumber(boot) <= dead_boot(node) then", "if false then"),),
        ("scripts/tasks/test_fence", "rooms/cluster/test_reaper"),
        ("live/failover/test_workers",),
    ),
    Guard(
        "witnesses",
        (("raft/state.py", "if agree == witnesses and len(agree) >= majority_of(voters):", "if agree:"),),
        ("unit/raft/test_deaths", "unit/raft/test_simulation_lease"),
    ),
    Guard(
        "stickiness",
        (
            (
                "raft/voter.py",
                "return now < self.lease_until or now - self._followed < self.times.election_min_s",
                "return now < 0",
            ),
        ),
        ("unit/raft/test_simulation_regressions", "unit/raft/test_simulation_lease", "unit/raft/test_simulation_seeds"),
    ),
    Guard(
        "cluster-word",
        (("raft/voter.py", "if word and own and word != own:", "if False:"),),
        ("unit/raft/test_voter_membership",),
    ),
    Guard(
        "came-back-empty",
        (("cluster/replication/election.py", "unheard = members - ready | lost", "unheard = members - ready"),),
        ("unit/cluster/test_election",),
    ),
    Guard(
        "first-loss",
        (("cluster/replication/election.py", 'loss = loss if certain else ("likely",)', "loss = ()"),),
        ("unit/cluster/test_election",),
    ),
    Guard(
        "above-all-views",
        (("cluster/replication/election.py", "return max(one.view for one in stores.reports.values())", "return 0"),),
        ("unit/cluster/test_election",),
    ),
    Guard(
        "term",
        (("raft/voter.py", "        self._SyncObj__raftLog.setCurrentTerm(term, voted_for)\n", ""),),
        ("unit/raft/test_simulation_regressions",),
    ),
    Guard(
        "log-sync",
        (("raft/voter.py", "        self._SyncObj__raftLog.sync()\n", ""),),
        ("unit/raft/test_simulation_regressions",),
    ),
    Guard(
        "ack-term",
        (("raft/voter.py", 'if message.get("term") != self.raftCurrentTerm or ', "if "),),
        ("unit/raft/test_simulation_regressions",),
    ),
    Guard(
        "own-write",
        (("store/durability/group_commit.py", "return self._mark if made else self._first_mark", 'return pack(("ECHO", int(made) + 1))'),),
        ("rooms/store/test_group_commit", "rooms/queues/takes/test_reply_durability"),
    ),
    Guard(
        "bracket",
        (("store/durability/fsync_commit.py", 'synced = after is not None and said(self._before) == after and said(self._synced) == b"OK"', "synced = True"),),
        ("rooms/store/test_fsync_commit",),
    ),
    Guard(
        "awake",
        (
            (
                "store/durability/fsync_commit.py",
                'AWAKE = pack(("CONFIG", "SET", "appendfsync", "always"))',
                'AWAKE = pack(("CONFIG", "SET", "appendfsync", "everysec"))',
            ),
        ),
        ("rooms/store/test_fsync_commit",),
        ("live/store/test_slow_disk",),
    ),
    Guard(
        "identity",
        (("store/durability/held_answers.py", "if one.identity == identity:", "if identity:"),),
        ("rooms/store/test_group_commit", "rooms/store/test_set_commit"),
    ),
    Guard(
        "set-acks",
        (
            (
                "store/durability/set_reading.py",
                "missing = [one for one in others if acks.get(one, -1) < offset]",
                "missing = [b'?.'] * (len(others) - sum(ack >= offset for ack in acks.values()))",
            ),
        ),
        ("unit/store/test_set_reading", "rooms/store/test_set_commit"),
    ),
    Guard(
        "set-own",
        (("store/durability/set_reading.py", "return members - {own} if own in members else None", "return members - {own}"),),
        ("unit/store/test_set_reading", "rooms/store/test_set_commit"),
    ),
    Guard(
        "set-view",
        (("store/durability/set_reading.py", "if view is None or int(view) != known.view or member != known.member:", "if view is None:"),),
        ("unit/store/test_set_reading", "unit/store/test_flights", "rooms/store/test_set_commit"),
    ),
    Guard(
        "set-role",
        (("store/durability/set_reading.py", 'if role != b"master" or role_then != b"master":', "if not role:"),),
        ("unit/store/test_set_reading",),
    ),
    Guard(
        "flight-behind",
        (("store/durability/set_commit.py", 'b"".join((*self._packed, confirmation))', 'b"".join((confirmation, *self._packed))'),),
        ("unit/store/test_flights", "rooms/store/test_set_commit"),
    ),
    Guard(
        "shard-order",
        (
            ("queue/shards/shard.py", "held = flight is not None and not flight.boards", "held = False"),
            ("queue/shards/shard.py", "link = flight or self._link", "link = flight if flight and flight.boards else self._link"),
        ),
        ("unit/queues/test_shard_order",),
    ),
    Guard(
        "name-order",
        (
            ("queue/put.py", "if shards is not None and queue not in self.lookups.lines:", "if shards is not None:"),
            ("queue/fast_path.py", " or shard.queue in self._lookups:", ":"),
        ),
        ("rooms/queues/test_queues",),
    ),
    Guard(
        "serial",
        (
            ("queue/lua/shared/record.lua", "if stream == by and number <= before then", "if false then"),
            ("queue/lua/shared/record.lua", "elseif not (stream == by and number == before + 1) and not (stream > by and number == 1) then", "elseif false then"),
        ),
        ("scripts/tasks/test_sequence",),
    ),
    Guard(
        "again-in-order",
        (("queue/shards/call_sequence.py", "if len(self._again) < len(self._under) or not self._shard.idle:", "if not self._shard.idle:"),),
        ("unit/queues/test_call_sequence",),
    ),
    Guard(
        "number-floor",
        (("queue/lua/reap.lua", "set('floor', math.max(S.floor or 0, stream))", ""),),
        ("scripts/tasks/test_sequence",),
    ),
    Guard(
        "behind-again",
        (("queue/shards/shard.py", "if link is None and (held or (self._repeats and not again)):", "if link is None and held:"),),
        ("unit/queues/test_call_sequence",),
    ),
    Guard(
        "ends-known",
        (("queue/shards/call_sequence.py", "            yield from call.ends()\n", ""),),
        ("unit/queues/test_call_sequence",),
    ),
    Guard(
        "shards-together",
        (("queue/shards/shard_group.py", " if not shard.flies", ""),),
        ("unit/queues/test_shard_order",),
    ),
    Guard(
        "queues-together",
        (
            (
                "queue/shards/shard_group.py",
                "if (together or self._scripts[name].reads) and not self._link.clustered:",
                "if False:",
            ),
        ),
        ("rooms/store/test_scripts",),
    ),
    Guard(
        "seats-owed",
        (("tokens/limits/node_limits.py", "max(0, self._empty) if", "self._empty if"),),
        ("unit/tokens/limits/test_node_limits",),
    ),
    Guard(
        "whole-shard",
        (("store/scripts/loader.py", "if link.clustered and script.guarded:", "if link.clustered and not script.guarded:"),),
        ("live/store/test_sharded_pubsub",),
    ),
    Guard(
        "detour",
        (
            (
                "store/redis_cluster/redirects.py",
                "        self.link = link\n        if self._sent_by is not None:",
                "        first, self.link = self.link is None, link\n        if first and self._sent_by is not None:",
            ),
        ),
        ("live/store/test_cluster_commit",),
    ),
    Guard(
        "redirected",
        (("store/durability/cluster_commit.py", "if firm is None or slots.turn(slot) != turn:", "if firm is None:"),),
        ("live/store/test_cluster_commit",),
    ),
    Guard(
        "foreign",
        (("store/redis_cluster/slots.py", "return bool(names and answer.members) and names.isdisjoint(answer.members)", "return False"),),
        ("unit/store/test_slots", "rooms/store/test_topology"),
        ("live/engines/test_cluster_resize",),
    ),
    Guard(
        "write-back",
        (
            (STORED, "    and was == grant\n    and before == generation\n    and new > generation\n", ""),
            (STORED, "  if head and head.grant == grant and head.generation == generation then", "  if true then"),
        ),
        ("scripts/accounts/test_account_store", "live/tokens/refresh/test_refresher"),
    ),
    Guard(
        "refresh-lease",
        (("tokens/lua/intent.lua", "if not r or r.holder == '' or r.lease ~= leases[i] then", "if not r or r.holder == '' then"),),
        ("scripts/accounts/test_account_store",),
    ),
    *(Guard(name, ((file, there, instead),), *red) for name, file, there, instead, *red in (*OF_ONE_REFRESH, *OF_QUEUES, *OF_STORES)),
    Guard(
        "late",
        (("tokens/provider/http_post.py", "if self._clock.monotonic() > send_by:", "if send_by < 0:"),),
        ("live/tokens/provider/test_token_endpoint", "live/tokens/refresh/test_refresher_crash"),
    ),
    Guard(
        "moved-on",
        (("tokens/refresh/unknown_outcome.py", "await self._moved_on(account, opened):", "not opened:"),),
        ("live/tokens/refresh/test_unknown_outcome",),
    ),
    Guard(
        "one-request",
        (("tokens/refresh/refresher.py", "busy = place in self._under_way.asking", "busy = False"),),
        ("live/tokens/refresh/test_refresher_crash",),
    ),
    Guard(
        "past",
        ((STORED, "if head and head.grant == grant and head.generation > generation + 1 then", "if false then"),),
        ("scripts/accounts/test_account_store_late",),
        ("live/refresh_steps/test_refresh_steps",),
    ),
    Guard(
        "no-spare",
        (
            (
                "tokens/refresh/write_back.py",
                "ORPHAN if answer.orphan or not self.provider.renews else previous",
                "ORPHAN if answer.orphan else previous",
            ),
        ),
        ("rooms/tokens/test_without_refresh_tokens",),
    ),
    Guard(
        "other-parameters",
        (("tokens/verbs/grants.py", "if not provider.renews:\n", "if False:\n"),),
        ("rooms/tokens/test_without_refresh_tokens",),
    ),
    Guard(
        "unfit",
        (("tokens/provider/grant_request.py", "if provider.renews != (own is None or bool(own.refresh_token)) or (", "if False and ("),),
        ("unit/tokens/provider/test_grant_request", "rooms/tokens/test_without_refresh_tokens"),
    ),
    Guard(
        "lost-answer",
        (("queue/shards/shard.py", "        self._flying -= 1\n        if unanswered(error):", "        self._flying -= 1\n        if False:"),),
        ("rooms/queues/takes/test_lost_answers",),
        ("live/faults/test_lost_links",),
    ),
    Guard(
        "unasked",
        (("queue/shards/waitlist.py", "        if self._failed:", "        if False:"),),
        ("rooms/queues/takes/test_lost_answers",),
    ),
    Guard(
        "unconfirmed-lease",
        (("queue/sessions/lost_takes.py", "            known.update(one.leases())\n", "            pass\n"),),
        ("rooms/queues/takes/test_lost_takes",),
    ),
    Guard(
        "settings-version",
        (("queue/lua/configure.lua", "if version and version < S.version then", "if false then"),),
        ("rooms/queues/test_shard_settings",),
    ),
    Guard(
        "settings-reread",
        (("queue/catalog.py", "                    self._outdated.add(queue)\n", ""),),
        ("rooms/queues/test_shard_settings",),
    ),
    Guard(
        "read-by-another",
        (("queue/catalog.py", "            if queue in self._reading:\n", "            if False:\n"),),
        ("rooms/queues/test_resharding",),
    ),
    Guard(
        "shares",
        (("user_limits.py", "        return mine < most_of_user(whole, share) and mine", "        return True or mine"),),
        ("unit/test_user_limits", "unit/server/access/test_shares"),
    ),
    Guard(
        "audit-shares",
        (("server/audit/lua/add.lua", "local id = counted >= there and redis.call", "local id = false and redis.call"),),
        ("rooms/server/test_audit",),
    ),
    Guard(
        "closed-order",
        (("queue/catalog.py", "        await set_order(self.shards_with(queue, kept), kept.order, final=True)", "        assert self.shards_with(queue, kept)"),),
        ("rooms/queues/test_shard_settings",),
    ),
    Guard(
        "place",
        (("server/resp/connection.py", "if self._begun_count == 0 and not self._beginning:", "if self._begun_count == 0:"),),
        ("rooms/server/test_places",),
    ),
    Guard(
        "later-turn",
        (("queue/shards/shard.py", "self._loop.call_soon(receiver.set_exception, error)", "receiver.set_exception(error)"),),
        ("rooms/server/test_places",),
    ),
    Guard(
        "tick",
        (("scheduler/lua/fire.lua", " or tonumber(stored) ~= round.position then", " then"),),
        ("rooms/scheduling/test_firing",),
    ),
    Guard(
        "strangers",
        (("server/access/admission.py", "if self._budget.left_s(now) < 0 or admission.budget.left_s(now) < least_s:", "if self.over:"),),
        ("unit/server/access/test_admission", "unit/server/resp/test_backpressure", "unit/server/http/test_listener"),
    ),
    Guard(
        "strangers-at-once",
        (("server/access/admission.py", "if admission.budget.left_s(now) < 0:", "if self.over:"),),
        ("unit/server/access/test_admission",),
    ),
    Guard(
        "places",
        (("server/access/admission.py", "return 0.0 if self._count < self._places else self.evict()", "return 0.0"),),
        ("unit/server/access/test_admission", "unit/server/resp/test_listening"),
    ),
    Guard(
        "one-at-a-time",
        (("server/resp/connection.py", "        if self.peer.may is UNAUTHENTICATED:\n            return 1\n", ""),),
        ("unit/server/resp/test_backpressure",),
    ),
    Guard(
        "stretching",
        (("server/access/users.py", "while wait_s := self._stretching.wait_s(self._clock.monotonic(), kept_s):", "while wait_s := 0 * kept_s:"),),
        ("unit/server/access/test_users",),
    ),
    Guard(
        "raft-strangers",
        (("raft/wire.py", "if conn.paid is not None and self._budget.left_s(now) < 0:", "if conn.paid is None:"),),
        ("live/raft/test_wire",),
    ),
    Guard(
        "turn",
        (("server/resp/connection.py", "if now - began > TURN_S:", "if now < began:"),),
        ("unit/server/resp/test_backpressure",),
    ),
    Guard(
        "parameters-put",
        (("tokens/verbs/grants.py", "        placeholders.filled(provider, found.parameters)\n", ""),),
        ("rooms/tokens/test_parameters",),
    ),
    Guard(
        "secrets-of-accounts",
        (("tokens/provider/grant_request.py", "if provider.account_secret and not (own is", "if False and not (own is"),),
        ("rooms/tokens/test_parameters",),
    ),
    Guard(
        "parameters-sent",
        (("config/placeholders.py", "    values = check(\n        provider,\n        {", "    values = dict(\n        {"),),
        ("rooms/tokens/test_parameters",),
    ),
    Guard(
        "parameters-in-addresses",
        (("config/placeholders.py", "if not _IN_ADDRESS.fullmatch(values[name]):", "if not values[name]:"),),
        ("unit/config/test_placeholders",),
    ),
    Guard(
        "issuers-at-home",
        (("tokens/provider/discovery.py", "        not provider.own_issuer\n        or urlsplit", "        True\n        or urlsplit"),),
        ("unit/tokens/provider/test_discovery",),
    ),
    Guard(
        "patterns",
        (("config/placeholders.py", "    if _PATTERN.fullmatch(pattern):", "    if pattern:"),),
        ("unit/config/test_placeholders",),
    ),
    Guard(
        "patterns-linear",
        (("foreign_pattern.py", "return _read(pattern).fullmatch(text)", "return re.fullmatch(pattern, text)"),),
        ("unit/test_foreign_pattern",),
    ),
    Guard(
        "reach-connected",
        (("tokens/provider/reach_check.py", "if not reach.permits(address[0]):", "if False:"),),
        (),
        ("live/tokens/provider/test_reach_check",),
    ),
    Guard(
        "reach-put",
        (("config/egress.py", "if address is not None and not self.permits(str(address)):", "if False:"),),
        ("unit/config/test_egress", "rooms/tokens/test_stored_providers"),
        ("live/tokens/provider/test_reach_check",),
    ),
    Guard(
        "answers-end",
        (("bounded_connector.py", "        if (\n            self._interim > INTERIM_MAX\n", "        if False and (\n            self._interim > INTERIM_MAX\n"),),
        ("unit/test_peer_line",),
        ("live/tokens/provider/test_endless_answers", "live/tokens/test_webhooks"),
    ),
    Guard(
        "notices-once",
        (("tokens/lua/consents.lua", "if not news(account, grant, days, end_ms) then return true end", ""),),
        ("scripts/accounts/test_consents",),
    ),
    Guard(
        "notices-kept",
        (("tokens/lua/consents.lua", "redis.call('HSET', META, field, from)", "redis.call('HSET', META, field, last)"),),
        ("scripts/accounts/test_consents",),
    ),
    Guard(
        "notices-together",
        (("tokens/lua/consents.lua", "due[#due + 1], due[#due + 2] = same[j], last", ""),),
        ("scripts/accounts/test_consents",),
    ),
    Guard(
        "hosts-of-patterns",
        (("config/placeholders.py", "            labels[0] or not all(labels[1:])", "            not all(labels[1:])"),),
        ("unit/config/test_placeholders",),
    ),
    Guard(
        "accounts-listed",
        (("tokens/verbs/listing.py", ' or not seen.allow(f"{name}/{entry.account}")', ""),),
        ("rooms/tokens/test_listing",),
    ),
    Guard(
        "accounts-read",
        (
            ("server/verbs/token.py", "[name for name in names if readable.allow(name)]", "names"),
            ("server/verbs/token.py", "next(left) if readable.allow(name) else deny(name)", "next(left)"),
        ),
        ("unit/server/access/test_narrow_rights",),
    ),
    Guard(
        "accounts-exported",
        (("tokens/custody/export.py", 'if not exported.allow(f"{name}/{pair.account}"):', "if False:"),),
        ("rooms/tokens/test_listing",),
    ),
    Guard(
        "accounts-imported",
        (("tokens/custody/export.py", "if not written.allow(account):", "if False:"),),
        ("rooms/tokens/test_listing",),
    ),
    Guard(
        "events-seen",
        (("server/http/routes/events.py", "and _is_seen(event, seen)", ""),),
        ("rooms/server/test_http_events",),
    ),
    Guard(
        "provider-shares",
        (("tokens/lua/provider_put.lua", "    if maker == user then mine = mine + 1 end\n", ""),),
        ("rooms/tokens/test_stored_providers",),
    ),
    Guard(
        "provider-queues",
        (("tokens/custody/stored_providers.py", "        await self._catalog.make(queue_of(name, provider.client_id))\n", ""),),
        ("rooms/tokens/test_stored_providers",),
    ),
    Guard(
        "programs-alone",
        (("server/http/authorization.py", "if route is not None and route.verb in BY_PROGRAMS_ALONE:", "if False:"),),
        ("unit/server/console/test_login",),
    ),
    Guard(
        "login-of-a-cluster",
        (("server/console/login_cookie.py", "hmac.digest(key, b'name', hashlib.sha256)", "hmac.digest(b'', b'name', hashlib.sha256)"),),
        ("unit/server/console/test_login",),
    ),
    Guard(
        "audit-shows",
        (("server/audit/audited.py", "request[1 : 1 + count]", "request[1:]"),),
        ("rooms/server/test_audit",),
    ),
)  # fmt: skip
SCENARIOS = tuple(Guard(name, scenario_of(name).rule.edits, ()) for name in NAMES)
"""The rule that each scenario guards stands in its file; without it a limit has to be missed."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py)", re.MULTILINE)
MISSED = re.compile(r"\*\*missed\*\*: ([^|]*)")


def without(guard: Guard, package: Path) -> None:
    """
    Switch it off in that copy of the package. Raises: ValueError: it does not stand there as it
    did.
    """
    for file, stands, instead in guard.edits:
        path = package / file
        text = path.read_text("utf-8")
        if text.count(stands) != 1:
            raise ValueError(f"{guard.name}: {file} has {text.count(stands)} of: {stands}")
        path.write_text(text.replace(stands, instead), "utf-8")


def copy_code(folder: Path) -> None:
    """Copy what the tests need."""
    for name in NEEDED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def run_without(guard: Guard, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a copy of the code without the guard. Raises: RuntimeError: it could not."""
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        copy_code(Path(folder))
        without(guard, Path(folder) / "tidewarden")
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{guard.name}: {words[0]} ended with"
            f" {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done


def seen_red(guard: Guard, with_live: bool) -> Counter[str]:
    """How many tests of each named file failed without the guard."""
    words = ("pytest", *PYTEST.split(), "-m", "not soak", *guard.files(with_live))
    return Counter(FAILED.findall(run_without(guard, *words).stdout))


def limits_missed(guard: Guard) -> str:
    """Which limits of the scenario of that name are missed without its rule; empty: none is."""
    done = run_without(guard, "benchmarks.zoo", guard.name, "--quick")
    return "; ".join(MISSED.findall(done.stdout))


def play_without_rules(chosen: list[Guard]) -> int:
    """How many of these scenarios do not notice that their rule is gone."""
    unseen = 0
    for guard in chosen:
        begun = time.monotonic()
        try:
            missed = limits_missed(guard)
        except (ValueError, RuntimeError) as error:
            missed = f"not played: {error}"
            unseen += 1
        unseen += not missed
        lasted_s = time.monotonic() - begun
        print(
            f'{guard.name}, without "{scenario_of(guard.name).rule.what}":'
            f" {missed or 'NO LIMIT missed'} ({lasted_s:.0f} s)",
            flush=True,
        )
    return unseen


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Switch each guard off, and see which tests notice."
    )
    parser.add_argument("names", nargs="*", help="some guards; without: every one")
    parser.add_argument(
        "--live", action="store_true", help="with the tests that start whole clusters"
    )
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument(
        "--zoo", action="store_true", help="the rules of scenarios, each played in its short form"
    )
    asked = parser.parse_args()
    guards = SCENARIOS if asked.zoo else GUARDS
    chosen = [guard for guard in guards if not asked.names or guard.name in asked.names]
    if unknown := set(asked.names) - {guard.name for guard in guards}:
        parser.error(f"no such guard: {', '.join(sorted(unknown))}; --list names them")
    if asked.list:
        print("\n".join(guard.name for guard in chosen))
        return 0
    unseen = play_without_rules(chosen) if asked.zoo else run_tests_without(chosen, asked.live)
    print(f"{len(chosen)} guards switched off; {unseen} of them unnoticed by what should notice")
    return 1 if unseen else 0


def run_tests_without(chosen: list[Guard], with_live: bool) -> int:
    """How many of these guards are not noticed by each test file that should."""
    unseen = 0
    for guard in chosen:
        begun = time.monotonic()
        try:
            red = seen_red(guard, with_live)
        except (ValueError, RuntimeError) as error:
            print(error, flush=True)
            unseen += 1
            continue
        said = ", ".join(
            f"{Path(file).stem} {red[file] or 'NONE'}" for file in guard.files(with_live)
        )
        print(f"{guard.name}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
        unseen += any(not red[file] for file in guard.files(with_live))
    return unseen


if __name__ == "__main__":
    sys.exit(main())
