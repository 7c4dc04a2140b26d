"""
Serves tokens: at once while they live, else when they are refreshed.

All of a node's readers of an account wait together for its refresh. While the store is away, this
node serves its own tokens, marked ``stale``: the newer of the one it read last and the one in its
own copy of the data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.queue.reads.near_reads import ALONE
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles
from tidewarden.tokens.accounts.account_store import AccountReading, AccountStore
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.accounts.near_accounts import NearAccounts
from tidewarden.tokens.accounts.waiting_readers import WaitingReaders
from tidewarden.tokens.policy import account_state, due_times
from tidewarden.tokens.policy.account_state import State
from tidewarden.tokens.provider.token_response import Scalar
from tidewarden.tokens.vault.vault import Place, Vault

log = logging.getLogger("tidewarden.tokens")

WATCH_S = (0.02, 0.5)  # How often another node's refresh is looked for: at first, and at most.
# Of a token's whole life: nobody gets it refreshed sooner by wanting more left of it than that.
LIFE_SHARE = 0.5
# How often a newer token is asked for again, where its refresh was forced a moment ago.
AGAIN_S = 1.0
# What was stored so much later than it is now was stored before the store's clock was set back.
STEP_MS = 5000
STALE_AFTER_S = (
    # A store that is connected and says nothing for so long is as good as away, to whom a kept
    # token helps.
    1.0
)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class AccountToken:
    """Holds an access token as it is handed out."""

    access_token: str = field(repr=False)
    token_type: str
    expires_at_ms: int
    generation: int
    state: State
    scope: str = ""
    grant: int = 0
    keep_ms: int = 0
    """
    How long a reader may use the token without asking again: until it is refreshed, or lives
    shorter than was asked for.
    """
    extras: Mapping[str, Scalar] = field(default_factory=dict)
    """The members of its provider's answer that are kept beside the tokens."""


class OfflineRefresh(Protocol):
    """Refreshes accounts while the store is away."""

    def serves(self, provider: str) -> bool:
        """Return whether this provider's accounts may be refreshed without the store."""

    async def fresh(self, provider: Provider, name: str, min_ttl_ms: int, wait_s: float) -> None:
        """Refresh the account if it is due; the new pair is in the cache."""


class Reader:
    """
    Serves the readers of one node's tokens.

    Args:
        shown: reads what readers are shown: see ``ShardScripts.shown_on``.
        cache: what is served while the store is away.
        connected: whether the store is, as far as is known.
        near: the node's own copy of the data; None: it has none.
        forced_ms: an account is refreshed at most once in so long by readers to whom its token is
            of no use.
    """

    def __init__(
        self,
        accounts: AccountStore,
        shown: AccountStore,
        vault: Vault,
        clock: Clock,
        cache: Cache,
        waiting_readers: WaitingReaders,
        offline: OfflineRefresh,
        connected: Callable[[], bool],
        forced_ms: int,
        near: NearAccounts | None,
    ) -> None:
        self._forced_ms = forced_ms
        self._accounts = accounts
        self._shown = shown
        self._vault = vault
        self._clock = clock
        self._cache = cache
        self._waiting_readers = waiting_readers
        self._offline = offline
        self._connected = connected
        self._near = near
        self._away = False  # when it was asked last
        self._stopped = False
        self.stale_served = 0
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def get(
        self,
        provider: Provider,
        queue: str,
        name: str,
        min_ttl_ms: int,
        wait_ms: int,
        newer: int = 0,
        max_stale_ms: int = 0,
    ) -> AccountToken:
        """
        Return a token that lives so long, or the best when the wait is over; see ``Tokens.get``.
        """
        if max_stale_ms and self._near is not None and self._near.within(max_stale_ms):
            near = await self._near.last(queue, name)
            if near is not None and _will_do(near, min_ttl_ms, newer):
                return await self._token(provider, name, near, min_ttl_ms)
        account = f"{provider.name}/{name}"
        until = self._clock.monotonic() + wait_ms / 1000
        recalled: AccountRow | None = None
        known = self._cache.left_ms(account) >= max(1, min_ttl_ms) or self._serves_alone(account)
        asks, trouble = True, errors.Error()
        if self._near is not None and not await self._near.reaches_majority():
            # Nobody is asked, though this node's own store be the primary: another may have been
            # elected since, and may have a later generation.
            recalled = await self._recall(account, queue, name)
            asks, trouble = False, errors.NoQuorum(ALONE)
        elif not self._connected():
            recalled = await self._recall(account, queue, name)
            asks, trouble = (
                not known and recalled is None,
                errors.StoreDown("it is not connected"),
            )
        if asks:
            try:
                return await self._asked(provider, queue, name, min_ttl_ms, wait_ms, newer)
            except (errors.StoreDown, errors.NoQuorum) as error:
                trouble = error
            recalled = await self._recall(account, queue, name)
        if self._serves_alone(account):
            await self._offline.fresh(provider, name, min_ttl_ms, until - self._clock.monotonic())
        row = self._cache.find(account) or recalled
        if row is None or row.generation <= newer:
            why = f"{trouble}; no living token of {account} is known here"
            raise errors.BY_CODE[trouble.code](why)
        return await self._stale(provider, name, row, str(trouble))

    async def _asked(
        self, provider: Provider, queue: str, name: str, min_ttl_ms: int, wait_ms: int, newer: int
    ) -> AccountToken:
        until = self._clock.monotonic() + wait_ms / 1000
        reading = await self._read(provider, queue, name)
        if _generation(reading) <= newer and not _given_up(reading):
            reading = await self._newer(provider, queue, name, newer, until)
        elif not (
            lives(reading, min_ttl_ms) or _given_up(reading) or in_vain(provider, reading, wait_ms)
        ):
            before = _mark(reading.row)
            await self._or_else(
                f"{provider.name}/{name}",
                queue,
                name,
                lambda: self._accounts.refresh(queue, name, seen=before),
            )
            while _mark(reading.row) == before and not _given_up(reading):
                left_s = until - self._clock.monotonic()
                if left_s <= 0 or self._stopped:
                    break
                await self._join(provider, queue, name, before, left_s)
                reading = await self._read(provider, queue, name)
        if _generation(reading) <= newer:
            # It was deleted and put anew meanwhile.
            if reading.troubles is None or not reading.troubles.given_up:
                raise self._none_newer(f"{provider.name}/{name}", newer, reading)
            raise errors.NotFound(f"{provider.name}/{name} is {_end_of(reading.troubles)}")
        return await self._token(provider, name, reading, min_ttl_ms)

    async def _newer(
        self, provider: Provider, queue: str, name: str, newer: int, until: float
    ) -> AccountReading:
        """
        Have the account refreshed for a reader to whom its token is of no use, and wait for that.

        Raises: Timeout: no later generation than ``newer`` was there in time.
        """
        account = f"{provider.name}/{name}"
        while True:
            await self._or_else(
                account,
                queue,
                name,
                lambda: self._accounts.refresh(
                    queue, name, force_ms=self._forced_ms, seen=(0, newer)
                ),
            )
            reading = await self._read(provider, queue, name)
            if _generation(reading) > newer or _given_up(reading):
                return reading
            left_s = until - self._clock.monotonic()
            if left_s <= 0 or self._stopped:
                raise self._none_newer(account, newer, reading)
            await self._join(provider, queue, name, _mark(reading.row), min(left_s, AGAIN_S))

    @staticmethod
    def _none_newer(account: str, newer: int, reading: AccountReading) -> errors.Timeout:
        return errors.Timeout(
            f"{account} has no token of a later generation than {newer} yet{_failing(reading)}"
        )

    async def _stale(
        self, provider: Provider, name: str, row: AccountRow, why: str
    ) -> AccountToken:
        if not self._away:
            self._away = True
            log.warning(
                "the store does not answer (%s): tokens that are known here are served, marked"
                " stale",
                why,
            )
        self.stale_served += 1
        place = Place(provider.name, name, "access", row.grant, row.generation)
        access_token = (await self._vault.unseal(row.access, place)).decode()
        return AccountToken(
            access_token,
            row.token_type,
            row.expires_at_ms,
            row.generation,
            "stale",
            row.scope,
            row.grant,
            extras=row.details.extras,
        )

    def _serves_alone(self, account: str) -> bool:
        """Return whether this node could refresh the account without the store."""
        return (
            self._offline.serves(account.partition("/")[0])
            and self._cache.whole(account) is not None
        )

    async def _recall(self, account: str, queue: str, name: str) -> AccountRow | None:
        """
        Cache the account's row from this node's own copy, unless a newer one is cached.

        Returns: the row, if its token lives.
        """
        found = await self._near.last(queue, name) if self._near is not None else None
        if found is None or found.row is None or _given_up(found):
            return None
        self._cache.keep(account, found.row, found.now_ms, read=True)
        return found.row if found.row.access and found.row.expires_at_ms > found.now_ms else None

    async def _or_else(
        self, account: str, queue: str, name: str, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """
        Ask the store; do not wait long for it if a token that is here could be served instead.

        Raises: StoreDown: it does not answer in time, or says so.
        """
        known = self._cache.left_ms(account) > 0 or self._serves_alone(account)
        try:
            async with asyncio.timeout(STALE_AFTER_S if known or self._near is not None else None):
                answer = await ask()
        except TimeoutError:
            if (
                known
                or await self._recall(account, queue, name) is not None
                or self._serves_alone(account)
            ):
                raise errors.StoreDown(f"it has not answered for {STALE_AFTER_S:g} s") from None
            answer = await ask()
        self._away = False
        return answer

    def stop(self) -> None:
        """
        End every wait: waiting readers get the tokens that are here. None may wait after that.
        """
        self._stopped = True
        for watcher in list(self._watchers.values()):
            watcher.cancel()

    async def _read(self, provider: Provider, queue: str, name: str) -> AccountReading:
        account = f"{provider.name}/{name}"
        reading = await self._or_else(account, queue, name, lambda: self._shown.get(queue, name))
        if reading.row is None or _given_up(reading):
            self._cache.drop(account)
        if reading.row is None:
            raise errors.NotFound(f"there is no account {account}")
        if not _given_up(reading):
            self._cache.keep(account, reading.row, reading.now_ms, read=True)
        return reading

    async def _token(
        self, provider: Provider, name: str, reading: AccountReading, min_ttl_ms: int
    ) -> AccountToken:
        row, troubles = reading.row, reading.troubles
        assert row is not None
        account = f"{provider.name}/{name}"
        if row.expires_at_ms <= reading.now_ms:
            if troubles is not None and troubles.given_up:
                raise errors.NotFound(
                    f"{account} is {_end_of(troubles, ' and has no living token')}"
                )
            raise errors.Timeout(f"{account} has no living access token yet{_failing(reading)}")
        place = Place(provider.name, name, "access", row.grant, row.generation)
        access_token = (await self._vault.unseal(row.access, place)).decode()
        state = account_state.state(row, troubles, reading.now_ms)
        keep_ms = max(0, min(row.due_ms, row.expires_at_ms - min_ttl_ms) - reading.now_ms)
        return AccountToken(
            access_token,
            row.token_type,
            row.expires_at_ms,
            row.generation,
            state,
            row.scope,
            row.grant,
            keep_ms,
            row.details.extras,
        )

    async def _join(
        self, provider: Provider, queue: str, name: str, before: tuple[int, int], wait_s: float
    ) -> None:
        """
        Wait until the account's generation moved or a try of it ended.

        All readers that wait on this node share one watcher.
        """
        account = f"{provider.name}/{name}"
        watcher = self._watchers.get(account)
        if watcher is None:
            watching = self._watch(account, queue, name, before, provider.timeout_s + 10)
            watcher = self._watchers[account] = asyncio.create_task(
                watching, name=f"wait for {account}"
            )
            watcher.add_done_callback(lambda _: self._watchers.pop(account, None))
        await asyncio.wait([watcher], timeout=wait_s)

    async def _watch(
        self, account: str, queue: str, name: str, before: tuple[int, int], limit_s: float
    ) -> None:
        # This node's own refresher wakes it at once; another node's shows in the row alone.
        pause_s, most_s = WATCH_S
        with self._waiting_readers.watching(account) as event:
            try:
                async with asyncio.timeout(limit_s):
                    while not event.is_set():
                        try:
                            async with asyncio.timeout(pause_s):
                                await event.wait()
                        except TimeoutError:
                            pause_s = min(pause_s * 1.5, most_s)
                            reading = await self._accounts.get(queue, name)
                            if _mark(reading.row) != before or _given_up(reading):
                                return
            except TimeoutError:
                return  # A reader that still waits begins another watch.
            except errors.Error as error:
                # Each reader asks the store again, and hears it there.
                log.debug("waiting for %s: %s", account, error)


def _will_do(reading: AccountReading, min_ttl_ms: int, newer: int) -> bool:
    """
    Return whether a row read from the near copy serves the reader, without asking the primary.
    """
    return _generation(reading) > newer and not _given_up(reading) and lives(reading, min_ttl_ms)


def lives(reading: AccountReading, min_ttl_ms: int) -> bool:
    """
    Return whether the token that was read lives long enough for a reader who wants ``min_ttl_ms``.
    """
    row = reading.row
    assert row is not None
    left_ms = row.expires_at_ms - reading.now_ms
    if left_ms <= 0 or row.stored_ms > reading.now_ms + STEP_MS:
        return False
    # A reader who wants more than the provider gives, or nearly all of it, does not have it
    # refreshed again and again.
    life_ms = row.expires_at_ms - row.stored_ms
    return left_ms >= min_ttl_ms or (row.refreshed and left_ms >= life_ms * LIFE_SHARE)


def in_vain(provider: Provider, reading: AccountReading, wait_ms: int) -> bool:
    """
    Return whether a live token cannot be refreshed within ``wait_ms``.

    It is too early for the provider, or a refresh has just failed.
    """
    row, troubles = reading.row, reading.troubles
    assert row is not None
    if row.expires_at_ms <= reading.now_ms:
        return False
    next_ms = troubles.next_ms if troubles is not None else 0
    soon_ms = due_times.too_soon(provider, row, reading.now_ms) * 1000
    return max(soon_ms, next_ms - reading.now_ms) > wait_ms


def _mark(row: AccountRow | None) -> tuple[int, int]:
    return (row.grant, row.generation) if row is not None else (0, 0)


def _end_of(troubles: RefreshTroubles, beside: str = "") -> str:
    """
    Describe how an account was given up and the remedy; ``beside`` is inserted before the remedy.
    """
    if troubles.stopped:
        return (
            f"stopped ({_of(troubles)}){beside}; it is not asked for any more until somebody has it"
            " refreshed"
        )
    return f"dead ({_of(troubles)}){beside}; put a new grant"


def _of(troubles: RefreshTroubles) -> str:
    return f"{troubles.outcome}: {troubles.message}"


def _failing(reading: AccountReading) -> str:
    """Say that the refresh fails and how, behind another sentence; empty: it does not."""
    troubles = reading.troubles
    return (
        f"; its refresh fails: {troubles.outcome} ({troubles.message})"
        if troubles is not None
        else ""
    )


def _generation(reading: AccountReading) -> int:
    return reading.row.generation if reading.row is not None else 0


def _given_up(reading: AccountReading) -> bool:
    return reading.troubles is not None and reading.troubles.given_up
