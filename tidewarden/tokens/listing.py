"""Accounts page by page, over the shards of their providers' queues, without tokens."""

from __future__ import annotations

from typing import Any

from tidewarden import errors

from . import policy
from .ledger import Entry, Ledger
from .rows import Troubles

SHARDS = 16
PAGE_MAX = 1000
DIGITS_MAX = 20  # of the store's own cursor, which has 64 bits
Page = tuple[list[dict[str, Any]], str]


class Listing:
    """Walks the accounts of ``queues`` (by provider)."""

    def __init__(self, ledger: Ledger, queues: dict[str, str]) -> None:
        self._ledger = ledger
        self._queue_of = queues

    async def page(self, names: list[str], state: str, count: int, after: str) -> Page:
        """
        The cursor is ``provider:shard:scan:skip``: the store's own scan cursor, and how many of its batch were given.
        """
        if state and state not in policy.STATES:
            raise errors.BadArg(f"STATE is {state[:60]!r}; allowed are {', '.join(policy.STATES)}")
        if not 1 <= count <= PAGE_MAX:
            raise errors.BadArg(f"COUNT is {count}; allowed is 1 to {PAGE_MAX}")
        provider, shard, scan, skip = parse_cursor(after, names)
        troubled = state in ("failing", "dead", "lost_rotation")
        found: list[dict[str, Any]] = []
        for name in names[names.index(provider) :]:
            while shard < SHARDS:
                following, now_ms, entries = await self._ledger.page(
                    self._queue_of[name], shard, scan, count, troubled=troubled
                )
                batch = [_described(name, entry, now_ms) for entry in entries]
                for at in range(skip, len(batch)):
                    if len(found) == count:
                        return found, f"{name}:{shard}:{scan}:{at}"
                    if not state or batch[at]["state"] == state:
                        found.append(batch[at])
                scan, skip = following, 0
                if scan == 0:
                    shard += 1
                if state and scan and len(entries) >= count and not found:
                    return found, f"{name}:{shard}:{scan}:0"  # Bounded work: the caller goes on from here.
            shard = 0
        return found, ""

    async def stats(self) -> dict[str, dict[str, int]]:
        """Accounts by state, per provider, and what holds each back; see ``Tokens.stats``."""
        found = {}
        for name, queue in sorted(self._queue_of.items()):
            view = await self._ledger.gate(queue, "ask", 0, 0, 1)
            held_ms = view.until_ms if view.failures or view.until_ms > view.now_ms else 0
            found[name] = await self._ledger.stats(queue, SHARDS)
            found[name] |= {"failures": view.failures, "held_until_ms": held_ms}
        return found


def _described(provider: str, entry: Entry, now_ms: int) -> dict[str, Any]:
    row, troubles = entry.row, entry.troubles or Troubles()
    state = policy.state(row, entry.troubles, now_ms)
    return {
        "account": f"{provider}/{entry.account}",
        "provider": provider,
        "state": state,
        "since_ms": policy.since_ms(row, entry.troubles, state),
        "grant": row.grant,
        "generation": row.generation,
        "stored_ms": row.stored_ms,
        "expires_at_ms": row.expires_at_ms,
        "due_ms": row.due_ms,
        "tries": troubles.tries,
        "error": troubles.outcome,
        "message": troubles.message,
        "next_ms": troubles.next_ms if entry.troubles else row.due_ms,
    }


def parse_cursor(after: str, names: list[str]) -> tuple[str, int, int, int]:
    """Provider, shard, the store's cursor, and how many of its batch were given. Raises: BadArg, NotFound."""
    if not names:
        raise errors.NotFound("no provider is configured")
    if not after:
        return names[0], 0, 0, 0
    provider, _, rest = after.partition(":")
    numbers = rest.split(":")
    read = [int(part) if part.isdecimal() and len(part) <= DIGITS_MAX else -1 for part in numbers]
    if provider not in names or len(read) != 3 or min(read) < 0 or max(read) >= 1 << 64 or read[0] >= SHARDS:
        raise errors.BadArg(f"AFTER is {after[:60]!r}, which is no cursor of this list")
    shard, scan, skip = read
    return provider, shard, scan, skip
