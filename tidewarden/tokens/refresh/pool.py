"""Runs the refreshers of one provider's client on this node: begins, pauses and stops them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Provider
from tidewarden.queue import Queues, Taken
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.vault.vault import Vault

from .load_leveller import Leveller
from .refresher import Refresher
from .write_back import WriteBack

log = logging.getLogger("tidewarden.tokens")

TAKE_WAIT_MS, TAKE_WAIT_MS_MAX = 120_000, 480_000
"""
How long a take waits, at first and at most; the wait doubles while no task comes.

Of thousands of providers most have nothing due.
"""
# Tasks of one take at most. What is taken together goes through each step together, and whoever has
# no part in that step idles.
TAKE_MAX = 64
# Times as many as may be asked for at a time are begun: answers are on their way to disk and store
# meanwhile.
SETTLING = 2
# Takes under way while there is plenty to do: by one alone, less is begun than could be.
TAKES_MAX = 3
PAUSE_S = 1.0  # After the store refused.
STOP_S = 5.0
# So much longer for an answer without which the account is lost; a node ends within 25 s in all
# (process.END_S).
STOP_TIMES = 2.5


class Pool:
    """Keeps as many refreshes of one client under way as its limits let begin."""

    def __init__(
        self,
        provider: Provider,
        queue: str,
        queues: Queues,
        accounts: AccountStore,
        vault: Vault,
        journal: Journal,
        limits: ClientLimits,
        refresher: Refresher,
        write_back: WriteBack,
        clock: Clock,
    ) -> None:
        if provider.unconfirmed:
            log.warning(
                "%s: its preset says %s, which is not in the provider's own words: look there, then"
                " set it yourself",
                provider.name,
                ", ".join(provider.unconfirmed),
            )
        self.queue = queue
        self._provider = provider
        self._queues = queues
        self._vault = vault
        self._journal = journal
        self._clock = clock
        self.limits = limits
        self._write_back = write_back
        self._refresher = refresher
        self.leveller = Leveller(
            provider, queue, accounts, clock, lambda: write_back.life_s, lambda: self._idle
        )
        self._session = queues.open_session("_tokens")
        self._work: set[asyncio.Task[None]] = set()
        self._takes: dict[asyncio.Task[bool], int] = {}
        """Takes under way, and for how many tasks each."""
        self._plenty = False  # The latest take had all that there was room for.
        self._eager = False  # It had all that it was granted.
        self._wait_ms = TAKE_WAIT_MS

    @property
    def _idle(self) -> bool:
        """Return whether there is room for refreshes that could wait."""
        return not self.limits.held and len(self._work) < self.limits.concurrency.size

    @property
    def _rest(self) -> int:
        """Return how many more refreshes may begin, although none of those under way has ended."""
        return SETTLING * self.limits.concurrency.size - len(self._work)

    @property
    def in_flight(self) -> int:
        """Return how many refreshes are under way."""
        return len(self._work)

    def unsent(self, account: str) -> bool:
        """See :meth:`Refresher.unsent`."""
        return self._refresher.unsent(account)

    async def store(self, answer: JournalAnswer) -> None:
        """
        Write a journalled answer of this client's into the store; see :meth:`WriteBack.store`.
        """
        await self._write_back.store(answer)

    async def run(self) -> None:
        """
        Refresh what falls due until cancelled.

        What is under way then is finished, as far as :data:`STOP_S` allows.
        """
        name = self._provider.name
        beside = [
            asyncio.create_task(self._pay_forever(), name=f"what is owed to the store for {name}"),
            asyncio.create_task(self.leveller.run(), name=f"levelling of {name}"),
        ]
        try:
            while True:
                try:
                    await self._turn()
                except errors.ConfigError:
                    raise  # The vault's key is another one: nothing here will mend that.
                except errors.Error as error:
                    log.warning(
                        "refreshers of %s pause: %s %s", self._provider.name, error.code, error
                    )
                    await sleep(self._clock, PAUSE_S)
        finally:
            for task in (*beside, *self._takes):
                task.cancel()
            await asyncio.gather(*self._takes, return_exceptions=True)
            await self._drain()

    async def _pay_forever(self) -> None:
        """
        Store outcomes that the refresher still owes, beside the takes, which may be parked.

        An outcome that is told late keeps an account waiting.
        """
        while True:
            await self._refresher.owing.wait()
            await sleep(self._clock, PAUSE_S)
            try:
                await self._refresher.pay()
            except errors.Error as error:
                log.debug("still owed to the store for %s: %s", self._provider.name, error)
            except Exception:  # nobody waits for this task, so its end would not be noticed
                log.exception(
                    "what is owed to the store for %s failed for a reason of ours",
                    self._provider.name,
                )

    async def _turn(self) -> None:
        """Begin one more take if there is room for it, else wait until there may be."""
        room = self._room()
        if room > 0 and len(self._takes) < (
            TAKES_MAX if self._plenty and not self.limits.held else 1
        ):
            self._takes[
                asyncio.create_task(self._begin(room), name=f"take for {self._provider.name}")
            ] = room
        elif self._takes:
            done, _ = await asyncio.wait(self._takes, return_when=asyncio.FIRST_COMPLETED)
            for take in done:
                del self._takes[take]
            for full in await asyncio.gather(*done, return_exceptions=True):
                if isinstance(full, BaseException):
                    raise full
                self._plenty = full
        else:
            await self._wait_for_room()

    def _room(self) -> int:
        """Return how many tasks another take may ask for."""
        asked = sum(self._takes.values())
        room = self.limits.room(asked, plenty=self._plenty)
        return min(room, self._rest - asked, TAKE_MAX)

    async def _begin(self, room: int) -> bool:
        """
        Take due tasks, as many as may begin, and begin them; return whether there were as many.
        """
        name = self._provider.name
        await self._vault.ready()
        if not self._refresher.writable:
            await self._journal.heal()
        writable = self._refresher.writable
        self.limits.block("" if writable else self._journal.fault)
        if not writable:
            await sleep(self._clock, PAUSE_S)
            return False
        taken = await self._take(room)
        loop = asyncio.get_running_loop()
        for task in taken:
            self.limits.begin(task.id)
            work = loop.create_task(self._refresh(task), name=f"refresh {name}/{task.id}")
            self._work.add(work)
            work.add_done_callback(functools.partial(self._ended, task.id))
        return len(taken) == room

    async def _take(self, free: int) -> Sequence[Taken]:
        """
        Take at most ``free`` tasks, as many as the limits let begin; if none may, wait and return
        none.
        """
        if self.limits.rated and not self._eager:
            return await self._take_first()
        permit = await self.limits.acquire(free)
        if permit.probe:
            return await self._take_probe()
        if permit.requests == 0:
            await self.limits.wait_for_permit(permit.wait_s)
            return ()
        taken = await self._take_or_close(
            permit.requests, 0 if self.limits.rated else self._wait_ms
        )
        self._eager = len(taken) == permit.requests
        rest = permit.requests - len(taken)
        await self.limits.give_back(rest, rest)
        return taken

    async def _take_first(self) -> Sequence[Taken]:
        """
        Take the first task that comes, where the host has a rate.

        While it waits it holds no part of the host's rate, which other providers there may need.
        """
        permit = await self.limits.acquire(1, host=False)
        if permit.probe:
            return await self._take_probe()
        if not permit.requests:
            await self.limits.wait_for_permit(permit.wait_s)
            return ()
        taken = await self._take_or_close(1, self._wait_ms)
        self._eager = bool(taken)
        try:
            granted = bool(taken) and await self.limits.acquire_host()
        except errors.Error:
            granted = False
            log.debug("the host of %s was not asked", self._provider.name, exc_info=True)
        if granted:
            return taken
        for task in taken:
            await self._queues.release(self._session, self.queue, task.id, task.lease)
        await self.limits.give_back(1, 0)
        return ()

    async def _take_or_close(self, count: int, wait_ms: int) -> Sequence[Taken]:
        """
        Take at most ``count`` tasks, waiting for the first unless all are held back meanwhile.
        """
        taking = self._queues.take(
            self._session,
            [self.queue],
            count=count,
            wait_ms=wait_ms,
            lease_ms=self._refresher.lease_ms,
        )
        closing = asyncio.create_task(self.limits.known.closed.wait())
        try:
            await asyncio.wait((taking, closing), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return ()
            taken = taking.result()
            if taken:
                self._wait_ms = TAKE_WAIT_MS
            elif wait_ms:
                self._wait_ms = min(2 * wait_ms, TAKE_WAIT_MS_MAX)
            return taken
        finally:
            closing.cancel()
            taking.cancel()  # What it has taken meanwhile goes back.

    async def _take_probe(self) -> Sequence[Taken]:
        """Take one task past the pause, while the claim to probe lasts."""
        task = await self.limits.take_probe()
        if task is None:
            return ()
        self._session.hold([task], task.lease_end_ms - self._refresher.lease_ms)
        return (task,)

    async def _refresh(self, task: Taken) -> None:
        await self._refresher.refresh(task)
        self._session.drop(self.queue, task.id, task.lease)

    async def _wait_for_room(self) -> None:
        await self.limits.wait_for_room(begun_all=self._rest <= 0)

    def _ended(self, account: str, work: asyncio.Task[None]) -> None:
        self._work.discard(work)
        self.limits.end(account)

    async def _drain(self) -> None:
        """
        Begin nothing more, finish refreshes that are under way, and give back tasks that are held.
        """
        name = self._provider.name
        self._refresher.stopping = True
        if self._work:
            again = (
                self._provider.rotation != "single_use"
                or self._provider.grace_s * 1000 > self._refresher.lease_ms
            )
            _, late = await asyncio.wait(
                self._work, timeout=STOP_S if again else STOP_S * STOP_TIMES
            )
            for work in late:
                work.cancel()
            if late:
                log.warning(
                    "%d refreshes of %s were cut off; their intents stay open", len(late), name
                )
                await asyncio.wait(late)
        try:
            async with asyncio.timeout(1):
                await self._refresher.pay()
                await self.limits.close()
                await self._queues.close_session(self._session)
        except TimeoutError:
            log.warning("leases of %s were not given back: no answer in time", name)
        except errors.Error as error:
            log.warning("leases of %s were not given back: %s", name, error)


def figures(pools: Mapping[str, Pool]) -> dict[str, dict[str, float]]:
    """Collect the pools' figures, each by provider; see ``Tokens.metrics``."""
    return {
        "in_flight": {name: pool.in_flight for name, pool in pools.items()},
        "levelled": {name: pool.leveller.levelled for name, pool in pools.items()},
        "refreshers": {name: pool.limits.concurrency.size for name, pool in pools.items()},
        "held": {name: int(pool.limits.held) for name, pool in pools.items()},
        "rate": {
            name: per_second
            for name, pool in pools.items()
            if (per_second := pool.limits.learnt_rate)
        },
    }
