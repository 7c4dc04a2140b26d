"""
Whether a shard is whole: each task in exactly one place, and everything that speaks of the places
true.
"""

from __future__ import annotations

import struct
from collections import Counter

import redis
from support.store.servers import StoreServer

NEVER_MS = 2**42


class Snapshot:
    """
    The hashes and sorted sets of a store, read in three round trips however many they are, and then
    asked as the store would be.
    """

    def __init__(self, client: redis.Redis, pattern: str) -> None:
        self.names = [name.decode() for name in client.keys(pattern)]
        with client.pipeline(transaction=False) as types:
            for name in self.names:
                types.type(name)
            kinds = dict(zip(self.names, types.execute(), strict=True))
        hashes = [name for name in self.names if kinds[name] == b"hash"]
        sets = [name for name in self.names if kinds[name] == b"zset"]
        with client.pipeline(transaction=False) as values:
            for name in hashes:
                values.hgetall(name)
            for name in sets:
                values.zrange(name, 0, -1, withscores=True)
            found = values.execute()
        self._hashes: dict[str, dict[bytes, bytes]] = dict(zip(hashes, found, strict=False))
        self._sets: dict[str, list[tuple[bytes, float]]] = dict(
            zip(sets, found[len(hashes) :], strict=True)
        )

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        return self._hashes.get(name, {})

    def ranked(self, name: str) -> list[tuple[bytes, float]]:
        """Entries and scores."""
        return self._sets.get(name, [])

    def entries(self, name: str) -> list[bytes]:
        return [entry for entry, _ in self.ranked(name)]


def audit_shard(client: redis.Redis, prefix: str) -> None:
    """
    Each task lies in exactly one place, and everything in the shard's record that speaks of the
    places is true.
    """
    audit(Snapshot(client, f"{prefix}:*"), prefix)


def audit(seen: Snapshot, prefix: str) -> None:
    """See :func:`audit_shard`."""
    record = seen.hgetall(f"{prefix}:shard")
    tasks = {
        task_id: raw
        for name in ("tasks", *_suffixes(seen, prefix, "tasks:"))
        for task_id, raw in seen.hgetall(f"{prefix}:{name}").items()
    }
    assert len(tasks) == int(record.get(b"stored", 0)), (
        f"{prefix}: the record counts {record.get(b'stored')} tasks"
    )
    if int(record.get(b"accounts", 0)):
        dead = set(seen.entries(f"{prefix}:account_dead"))
        for account, row in seen.hgetall(f"{prefix}:accounts").items():
            if account not in tasks and account not in dead:
                tasks[account] = derived_of(row)
    audit_delayed(seen, prefix, record, tasks)
    tries = seen.hgetall(f"{prefix}:tries")
    places: dict[bytes, list[str]] = {}
    expiring = dict(seen.ranked(f"{prefix}:expiring"))
    earliest = int(min(expiring.values(), default=NEVER_MS))
    for name in (
        "delayed",
        "buried",
        *_suffixes(seen, prefix, "delayed:"),
        *_suffixes(seen, prefix, "ready:"),
        *_suffixes(seen, prefix, "leased:"),
    ):
        index = seen.ranked(f"{prefix}:{name}")
        # what the scores of a piece count from
        low_ms = int(name[9:]) if name.startswith("delayed:+") else 0
        for task_id, score in index:
            places.setdefault(task_id, []).append(name)
            if name.startswith(("delayed", "leased")):
                stepped_ms = int(record.get(b"lag", 0)) if name.startswith("leased") else 0
                earliest = min(earliest, low_ms + int(score) + stepped_ms)
        if index and name.startswith("ready:"):
            assert name[6:].encode() in record[b"pris"].split(), f"{name} is not in the record"
        if index and name.startswith("leased:"):
            assert name[7:].encode() in record[b"holders"].split(), f"{name} is not in the record"
    for task_id in audit_lanes(seen, prefix, record, tasks, places):
        places.setdefault(task_id, []).append("waiting")
    sessions_leases = set(seen.entries(f"{prefix}:held"))
    assert places.keys() == tasks.keys(), f"{prefix}: bodies and index entries differ"
    assert all(len(found) == 1 for found in places.values()), (
        f"{prefix}: a task lies in two places: {places}"
    )
    assert tries.keys() <= tasks.keys(), f"{prefix}: tries of no task"
    assert seen.hgetall(f"{prefix}:tally").keys() <= tasks.keys(), f"{prefix}: tally of no task"
    waits = seen.hgetall(f"{prefix}:waits")
    assert waits.keys() <= tasks.keys(), f"{prefix}: somebody waits for the end of no task"
    assert len(waits) == int(record.get(b"awaited", 0))
    assert len(seen.hgetall(f"{prefix}:run_of")) == int(record.get(b"runs", 0))
    for task_id, (place,) in places.items():
        lease_holder = b""
        if task_id in tries:
            lease, _, _, _, _, length = struct.unpack(">dHHB6sB", tries[task_id][:20])
            assert lease == int(lease)
            lease_holder = tries[task_id][20 : 20 + length]
        held_in = place[7:].encode() if place.startswith("leased:") else b""
        # a session's: all of them stand in one index, and each is known by its session
        if lease_holder[:1] == b"~":
            assert lease_holder[1:] + task_id in sessions_leases, (
                f"{task_id!r} is not among what {lease_holder!r} holds"
            )
            sessions_leases.discard(lease_holder[1:] + task_id)
            lease_holder = b"~"
        assert held_in == lease_holder, (
            f"{task_id!r} lies in {place}, its record says {lease_holder!r}"
        )
        assert place != "buried" or task_id in tries
        expires_ms = (
            expires_of(tasks[task_id]) if place.startswith(("delayed", "ready:", "waiting")) else 0
        )
        assert int(expiring.get(task_id, 0)) == expires_ms, (
            f"{task_id!r} in {place} expires at {expires_ms}"
        )
        if place.startswith("ready:"):
            assert int(place[6:]) == priority_of(tasks[task_id]), (
                f"{task_id!r} is in {place} with another priority"
            )
    assert not sessions_leases, (
        f"{prefix}: sessions know of leases that have ended: {sessions_leases}"
    )
    assert expiring.keys() <= tasks.keys(), f"{prefix}: an entry that expires and is no task"
    # Nobody sleeps past what happens next.
    assert earliest >= int(record.get(b"alarm", NEVER_MS)), (
        f"{prefix}: the alarm is later than what comes next"
    )


def audit_delayed(
    seen: Snapshot, prefix: str, record: dict[bytes, bytes], tasks: dict[bytes, bytes]
) -> None:
    """
    Each entry stands at its task's time, in the piece of that time, and the record knows how many
    there are.
    """
    bounds = [(int(low), number.decode()) for number, low in seen.ranked(f"{prefix}:pieces")] or [
        (0, "0")
    ]
    assert (len(bounds) > 1) == (int(record.get(b"cut", 0)) > 0)
    assert {f"delayed:{number}" for _, number in bounds[1:]} == set(
        _suffixes(seen, prefix, "delayed:")
    )
    later = 0
    for (low, number), (high, _) in zip(bounds, [*bounds[1:], (NEVER_MS, "")], strict=True):
        entries = seen.ranked(
            f"{prefix}:delayed" if number == "0" else f"{prefix}:delayed:{number}"
        )
        later += len(entries)
        base = int(number) if number.startswith("+") else 0
        for task_id, behind in entries:
            due = base + behind
            assert low <= due < high, f"{task_id!r} at {due} lies in the piece of {low} to {high}"
            tries = seen.hgetall(f"{prefix}:tries").get(task_id)
            own = tries and int.from_bytes(tries[13:19], "big")
            assert due == (own or due_of(tasks[task_id])), f"{task_id!r} is delayed at another time"
    assert later == int(record.get(b"later", 0)), (
        f"{prefix}: {later} are delayed, the record counts {record.get(b'later')}"
    )


def derived_of(row: bytes) -> bytes:
    """The static record that an account's row stands for."""
    due, deadline = row[22:28], row[16:22]
    return b"\x90" + due if due == deadline else b"\x91" + due + deadline


def priority_of(record: bytes) -> int:
    """The priority in a static record."""
    return 50 if record[0] & 128 else record[1]


def due_of(record: bytes) -> int:
    """The due time in a static record, unix milliseconds."""
    at = _due_at(record)
    return int.from_bytes(record[at : at + 6], "big")


def _due_at(record: bytes) -> int:
    return 1 if record[0] & 128 else 2


def _behind_times(record: bytes) -> int:
    return (
        _due_at(record)
        + 6
        + sum(size for bit, size in ((1, 6), (2, 6), (4, 2), (8, 6)) if record[0] & bit)
    )


TRACED = 255  # instead of the length of a lane's name: a trace context comes first


def expires_of(record: bytes) -> int:
    """When the task with this static record expires; 0: never."""
    at = _behind_times(record)
    return int.from_bytes(record[at : at + 6], "big") if record[0] & 32 else 0


def lane_entry_of(task_id: bytes, record: bytes) -> tuple[bytes, bytes]:
    """
    The lane of a task with this static record, behind its length, and the task's entry among those
    that wait; empty: it has none.
    """
    if not record[0] & 64:
        return b"", b""
    at = _behind_times(record) + (6 if record[0] & 32 else 0)
    if record[at] == TRACED:
        at += 1 + 25
    if record[at] == 0:
        return b"", b""
    behind = at + 1 + record[at]
    due_at = _due_at(record)
    deadline = record[due_at + 6 : due_at + 12] if record[0] & 1 else record[due_at : due_at + 6]
    return record[at:behind], record[at:behind] + bytes([priority_of(record)]) + deadline + record[
        behind : behind + 6
    ] + task_id


def audit_lanes(
    seen: Snapshot,
    prefix: str,
    record: dict[bytes, bytes],
    tasks: dict[bytes, bytes],
    places: dict[bytes, list[str]],
) -> list[bytes]:
    """
    Every lane is what its tasks make it, and none is forgotten; the ids of those that wait.
    ``places``: of all the others.
    """
    lanes = seen.hgetall(f"{prefix}:lanes")
    entries = set(seen.entries(f"{prefix}:waiting"))
    running = seen.entries(f"{prefix}:running")
    busy = Counter(entry[: 1 + entry[0]] for entry in running)
    slots = dict(seen.ranked(f"{prefix}:slots"))
    limit = int(record.get(b"lane_limit", 1))
    leased: list[bytes] = []
    heads: dict[bytes, bytes] = {}
    waits: dict[bytes, list[bytes]] = {}
    for task_id, raw in tasks.items():
        where = places.get(task_id, ["waiting"])[0]
        if where == "buried":
            continue  # of no lane, and perhaps one whose record nobody can read
        lane, entry = lane_entry_of(task_id, raw)
        if lane and where.startswith("leased:"):
            leased.append(lane + task_id)
        elif lane and where.startswith("ready:"):
            assert lane not in heads, f"{lane!r} has two heads"
            heads[lane] = entry
        elif where == "waiting":
            assert entry in entries, f"{task_id!r} lies nowhere"
            waits.setdefault(lane, []).append(task_id)
    assert sorted(leased) == sorted(running), f"{prefix}: lanes count other leases than there are"
    assert sum(map(len, waits.values())) == len(entries), f"{prefix}: a lane holds what is no task"
    stored = {bytes([len(name)]) + name: raw[16:] for name, raw in lanes.items() if raw[16:]}
    assert stored == heads, f"{prefix}: lanes have other heads than those in ready"
    for name, raw in lanes.items():
        assert raw[16:] or name in slots, f"the lane {name!r} is never forgotten"
    for lane in waits:
        full = limit and busy[lane] >= limit
        assert lane in heads or full or lane[1:] in slots, f"the lane {lane!r} waits for nothing"
    assert not (lanes or entries or running) or int(record[b"lanes"]) == 1
    assert not slots or int(record[b"slots"]) == 1
    assert min(slots.values(), default=NEVER_MS) >= int(record.get(b"alarm", NEVER_MS))
    return [task_id for ids in waits.values() for task_id in ids]


def _suffixes(seen: Snapshot, prefix: str, kind: str) -> list[str]:
    return sorted(
        name[len(prefix) + 1 :] for name in seen.names if name.startswith(f"{prefix}:{kind}")
    )


def audit_store(server: StoreServer) -> int:
    """Audit every shard of every queue in the store; how many there are."""
    seen = Snapshot(server.client, "{*:*:*}:*")
    if not server.lasts:
        server.client.close()
    prefixes = {name.rpartition("}")[0] + "}" for name in seen.names}
    for prefix in prefixes:
        audit(seen, prefix)
    return len(prefixes)
