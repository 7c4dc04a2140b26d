"""A ledger on a real store, by a clock of the test's own."""

from __future__ import annotations

from typing import Any

from tidewarden.queue import Taken
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import AccountStore

QUEUE = "_tokens:p:c0"
LEASE_MS = 40_000


class Bench:
    """A ledger whose clock stands where the test puts it."""

    def __init__(self, queues: Any) -> None:
        self.queues = queues
        self.now_ms = 1_000_000
        self.session = queues.open_session()

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            return await queues.scripts.run(name, queue, shard, args, now_ms=self.now_ms)

        self.ledger = AccountStore(script, queues.catalog)

    def row(
        self,
        grant: int = 1,
        generation: int = 1,
        life_ms: int = 10_000,
        due_ms: int = 7_000,
        mark: str = "m",
    ) -> AccountRow:
        mark_bytes = mark.encode().ljust(8)
        expires_ms = self.now_ms + life_ms
        return AccountRow(
            grant, generation, self.now_ms, expires_ms, self.now_ms + due_ms, mark_bytes, mark_bytes, refresh=b"sealed-" + mark.encode()
        )  # fmt: skip

    async def put(self, account: str, base: tuple[int, int] = (0, 0), **settings: Any) -> bool:
        row = self.row(base[0] + 1, base[1] + 1, **settings)
        return await self.ledger.put(QUEUE, account, base, row, row.expires_at_ms)

    async def take(self, account: str, holder: str = "n0.1") -> Taken:
        """
        Lease the account's task by the frozen clock, as the queue's take does.

        "": that of the account whose turn it is.
        """
        self.queues.catalog.holder = holder
        shard = self.queues.catalog.shard_of(QUEUE, account) if account else 0
        args = (200, 1, LEASE_MS, 0, account)
        found = (
            await self.queues.scripts.run("queue.take", QUEUE, shard, args, now_ms=self.now_ms)
        )[0]
        assert found, f"{account} is not to be had"
        name, lease, payload, attempt, deadline_ms, end_ms, _ = found[0]
        return Taken(QUEUE, name.decode(), lease, payload, attempt, deadline_ms, end_ms)

    async def fails(self, account: str, wait_s: float, not_before_ms: int = 0) -> None:
        """It is taken and asked for, fails, and is tried again after so long."""
        task = await self.take(account)
        await self.ledger.intend(QUEUE, account, task.lease, LEASE_MS)
        troubles = RefreshTroubles(tries=1, outcome="unavailable", not_before_ms=not_before_ms)
        step = Step("retry", wait_s, troubles)
        assert await self.ledger.failed(QUEUE, account, task.lease, step)

    async def stored(self, row: AccountRow) -> str:
        """What becomes of an answer to the request with the generation before."""
        base = (row.grant, row.generation - 1)
        return await self.ledger.stored(QUEUE, "a", base, row.pack(), row.due_ms, row.expires_at_ms)

    async def locate(self, account: str) -> str:
        found = await self.queues.admin.peek(QUEUE, account)
        return str(found["state"])

    async def stats(self) -> dict[str, int]:
        """What is not 0, without the time of the next try."""
        found = await self.ledger.stats(QUEUE)
        assert bool(found.pop("next_ms")) == bool(found["failing"])
        return {name: n for name, n in found.items() if n}
