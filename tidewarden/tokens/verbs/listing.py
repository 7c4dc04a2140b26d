"""Lists accounts page by page, over the shards of their providers' queues, without tokens."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidewarden import errors
from tidewarden.clock import in_turns
from tidewarden.config.load import Provider
from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights
from tidewarden.queue.reads.near_reads import ALONE, Mark
from tidewarden.queue.task import check_range
from tidewarden.tokens.accounts import details
from tidewarden.tokens.accounts.account_record import RefreshTroubles
from tidewarden.tokens.accounts.account_store import AccountStore, Batch, Entry
from tidewarden.tokens.accounts.near_accounts import Answer, NearAccounts
from tidewarden.tokens.limits.client_record import parse_record, read_client
from tidewarden.tokens.policy import account_state, failures
from tidewarden.tokens.why.facts import Facts, account_facts, client_facts
from tidewarden.tokens.why.story import account_advice

from .provider_status import beside, figures

PAGE_MAX = 1000
# Pages of the store that are looked through for one of ours, where not every account fits.
LOOKED_MAX = 10
PROVIDERS_MAX = 256  # Likewise, of those that have few accounts or none.
SLACK = 32  # Accounts by which a batch of the store's scan may be longer than was asked for.
FEW = 8  # Accounts of a shard that are asked for together with those of the others.
DIGITS_MAX = 20  # of the store's own cursor, which has 64 bits
AHEAD = 32  # Providers whose beginnings are read together.
Page = tuple[list[dict[str, Any]], str]
Known = tuple[Facts, dict[str, Any]]
"""The facts of a provider's client, and its :func:`.provider_status.figures`."""
Beginning = tuple[list[Batch | None], Known | None]
"""A provider's accounts of each shard that has few, and its :data:`Known` if any shard has some."""


class Listing:
    """Walks the accounts of ``queues`` (by provider)."""

    def __init__(
        self,
        accounts: AccountStore,
        queues: dict[str, str],
        providers: Mapping[str, Provider],
        near: NearAccounts | None = None,
    ) -> None:
        """Read the node's own copy of the data by ``near``; None: it has none."""
        self._near = near
        self._accounts = accounts
        self._queue_of = queues
        self._providers = providers

    async def page(
        self,
        names: list[str],
        state: str,
        count: int,
        after: str,
        seen: AccountRights = EVERY_ACCOUNT,
    ) -> Page:
        """
        Return a page of the ``seen`` accounts and the cursor to go on from.

        The cursor (:class:`Cursor`) names the account that was given last of a batch of the store's
        scan. By its name, not by how many were given: who deletes what a page had moves up those
        behind. A batch that ends elsewhere when it is read again has other accounts, some of whose
        names come before that one: it is given anew, so that an account that stays is met at least
        once. Long pages end before a batch that might not fit, or a fleet in which many accounts
        are put could have the same batch given again and again.

        Each account has the mark, as :meth:`stats`. Raises: NoQuorum: a copy that stands in has
        none at all, so that nothing would have it.
        """
        _check_state(state)
        check_range(count, "count", 1, PAGE_MAX)

        async def read(accounts: AccountStore, mark: Mark) -> Page:
            page = await self._page(accounts, mark, names, state, count, after, seen)
            if mark and not after and page == ([], ""):
                raise errors.NoQuorum(f"{ALONE}, and this node's copy has no such account")
            return page

        return await self._answered(read)

    async def _page(
        self,
        accounts: AccountStore,
        mark: Mark,
        names: list[str],
        state: str,
        count: int,
        after: str,
        seen: AccountRights,
    ) -> Page:
        at = await parse_cursor(after, names, accounts, self._queue_of)
        shard, scan, last = at.shard, at.scan, at.last
        chosen = bool(state) or not seen.every
        troubled = state in ("failing", "stopped", "dead", "lost_rotation")
        found: list[dict[str, Any]] = []
        looked, slack = 0, SLACK if count > 4 * SLACK else 0
        asked = at.asked if last else count - slack
        known_of = functools.partial(self._known, accounts, mark)
        begun = Beginnings(accounts, self._queue_of, known_of, names, troubled)
        for name in names[names.index(at.provider) :]:
            queue, known = self._queue_of[name], None
            if chosen and looked >= PROVIDERS_MAX:
                return found, str(Cursor(name))
            small: list[Batch | None] = []
            if scan == 0:
                left = PROVIDERS_MAX - looked if chosen else AHEAD
                small, known = await begun.of(name, min(1 + (count - len(found)) // FEW, left))
            shards = await accounts.shards(queue)
            if len(small) != shards:  # none was read, or the queue was cut anew since
                small = [None] * shards
            looked += any(small)
            while shard < shards:
                room = count - len(found)
                if slack and found and room <= slack:
                    return found, str(Cursor(name, shard, scan))
                batch = None if scan else small[shard]
                if batch is None:
                    batch = await accounts.page(queue, shard, scan, asked, troubled=troubled)
                    looked += 1
                following, now_ms, entries = batch
                if following != at.end:
                    last = ""
                async for entry in in_turns(sorted(entries, key=lambda entry: entry.account)):
                    if entry.account <= last or not seen.allow(f"{name}/{entry.account}"):
                        continue
                    known = known or await known_of(name)
                    shown = self._described(entry, now_ms, *known) | mark
                    if state and shown["state"] != state:
                        continue
                    if len(found) == count:
                        return found, str(Cursor(name, shard, scan, following, asked, last))
                    found.append(shown)
                    last = entry.account
                scan, last, asked = following, "", count - slack
                if scan == 0:
                    shard += 1
                if chosen and scan and looked >= LOOKED_MAX:
                    # Bounded work: the caller goes on from here.
                    return found, str(Cursor(name, shard, scan))
            shard = 0
        return found, ""

    def _described(
        self, entry: Entry, now_ms: int, client: Facts, stands: Mapping[str, Any]
    ) -> dict[str, Any]:
        row, troubles = entry.row, entry.troubles or RefreshTroubles()
        provider, state = client.provider, account_state.state(row, entry.troubles, now_ms)
        what = ""
        if entry.troubles is not None:
            found = account_facts(
                client, entry.account, row, entry.troubles, now_ms, failures.Patience()
            )
            what = account_advice(found)
        shown = {
            "account": f"{provider.name}/{entry.account}",
            "provider": provider.name,
            "state": state,
            "since_ms": account_state.since_ms(row, entry.troubles, state),
            "grant": row.grant,
            "generation": row.generation,
            "stored_ms": row.stored_ms,
            "expires_at_ms": row.expires_at_ms,
            "due_ms": row.due_ms,
            "consent_expires_ms": details.consent_of(provider, row)[0],
            "parameters": dict(row.details.parameters),
            "tries": troubles.tries,
            "error": troubles.outcome,
            "message": troubles.message,
            "next_ms": troubles.next_ms if entry.troubles else row.due_ms,
            "advice": what,
        }
        return beside(shown, stands)

    async def one(self, provider: str, name: str) -> dict[str, Any]:
        """
        Describe one account as a page does, and more of it.

        It has the mark, as :meth:`stats`. Raises: NotFound: there is none; NoQuorum: nor in a copy
        that stands in, but there may be one elsewhere.
        """

        async def read(accounts: AccountStore, mark: Mark) -> dict[str, Any]:
            reading = await accounts.get(self._queue_of[provider], name)
            if reading.row is None and mark:
                raise errors.NoQuorum(f"{ALONE}, and this node's copy has no {provider}/{name}")
            if reading.row is None:
                raise errors.NotFound(f"there is no account {provider}/{name}")
            row = reading.row
            entry = Entry(name, row, reading.troubles)
            known = await self._known(accounts, mark, provider)
            return self._described(entry, reading.now_ms, *known) | {
                "token_type": row.token_type,
                "scope": row.scope,
                "extras": dict(row.details.extras),
                "consent_moves": details.consent_of(self._providers[provider], row)[1],
                "access_token": bool(row.access),
                "refreshed": row.refreshed,
                **mark,
            }

        return await self._answered(read)

    async def stats(self, provider: str) -> dict[str, Any]:
        """
        Return the figures of a provider: see :func:`.provider_status.figures`.

        They have the mark, where the node's own copy stands in for the primary.
        """

        async def read(accounts: AccountStore, mark: Mark) -> dict[str, Any]:
            stands, counts = await self._counted(provider, accounts)
            return counts | stands | mark

        return await self._answered(read)

    async def _answered(self, read: Callable[[AccountStore, Mark], Awaitable[Answer]]) -> Answer:
        """Have ``read`` ask the primary, or the near copy, for which it gets the mark."""
        if self._near is None:
            return await read(self._accounts, {})
        return await self._near.answered(self._accounts, read)

    async def _counted(
        self, provider: str, accounts: AccountStore
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Read a provider's :func:`.provider_status.figures`, and its accounts by state."""
        found = await accounts.figures(self._queue_of[provider])
        due_ms, record = found.counts.pop("next_ms"), parse_record(found.client)
        client = client_facts(self._providers[provider], record, found.clock_ms, found.lag_ms)
        return figures(client, due_ms), found.counts

    async def due(self, provider: str, step_ms: int, steps: int) -> tuple[list[int], Mark]:
        """
        Estimate how many accounts of a provider fall due in each of the next steps of time.

        Returns them with their mark, as of :meth:`stats`; an empty one: they need none.
        """

        async def read(accounts: AccountStore, mark: Mark) -> tuple[list[int], Mark]:
            return await accounts.due(self._queue_of[provider], step_ms, steps), mark

        return await self._answered(read)

    async def _known(self, accounts: AccountStore, mark: Mark, provider: str) -> Known:
        """Read what nodes know of our client there, and its :func:`.provider_status.figures`."""
        seen = await read_client(self._queue_of[provider], accounts, copied=bool(mark))
        client = client_facts(self._providers[provider], *seen)
        return client, figures(client, 0)


class Beginnings:
    """
    Reads the first accounts of a page's providers, of several providers together.

    Of thousands of providers most have few accounts, and each alone would cost calls of its own.
    ``known`` reads the facts of a provider. ``troubled``: only accounts that fail are wanted.
    """

    def __init__(
        self,
        accounts: AccountStore,
        queue_of: Mapping[str, str],
        known: Callable[[str], Awaitable[Known]],
        names: list[str],
        troubled: bool,
    ) -> None:
        self._accounts = accounts
        self._queue_of = queue_of
        self._known = known
        self._names = names
        self._troubled = troubled
        self._read: dict[str, Beginning | BaseException] = {}

    async def of(self, name: str, most: int) -> Beginning:
        """
        Return a provider's beginning, which is read with at most ``most`` providers in all.

        A trouble with another provider is told to the callers that ask for that one. Raises: what
        the store raises.
        """
        if name not in self._read:
            first = self._names.index(name)
            names = self._names[first : first + min(most, AHEAD)]
            found = await asyncio.gather(*map(self._begin, names), return_exceptions=True)
            self._read = dict(zip(names, found, strict=True))
        beginning = self._read.pop(name)
        if isinstance(beginning, BaseException):
            raise beginning
        return beginning

    async def _begin(self, name: str) -> Beginning:
        queue = self._queue_of[name]
        batches = await self._accounts.first_pages(queue, FEW, troubled=self._troubled)
        small = [batch if batch[0] == 0 else None for batch in batches]
        met = any(batch and batch[2] for batch in small)
        return small, await self._known(name) if met else None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Says where a page of accounts goes on; its text is for callers, who do not look into it."""

    provider: str
    shard: int = 0
    scan: int = 0
    """The store's scan cursor at which the batch begins."""
    end: int = 0
    """The scan cursor at which the batch ended."""
    asked: int = 0
    """About how many accounts the batch was to have."""
    last: str = ""
    """The account of the batch that was given last; empty: none was."""

    def __str__(self) -> str:
        return f"{self.provider}:{self.shard}:{self.scan}:{self.end}:{self.asked}:{self.last}"


def _check_state(state: str) -> None:
    """Raise BadArg unless ``state`` is empty or names a state."""
    if state and state not in account_state.STATES:
        allowed = f"allowed are {', '.join(account_state.STATES)}"
        raise errors.BadArg(errors.Field("state"), f" is {state[:60]!r}; {allowed}")


async def parse_cursor(
    after: str, names: list[str], accounts: AccountStore, queue_of: Mapping[str, str]
) -> Cursor:
    """
    Read the text of a cursor; an empty one is the start.

    ``queue_of``: the queues of ``accounts`` by provider. Raises: BadArg, NotFound, and what the
    store raises.
    """
    if not names:
        raise errors.NotFound("no provider is configured")
    if not after:
        return Cursor(names[0])
    provider, *numbers, last = (after.split(":", 5) + [""] * 6)[:6]
    shard, scan, end, asked = (
        int(part) if part.isdecimal() and len(part) <= DIGITS_MAX else -1 for part in numbers
    )
    known = provider in names and 0 <= shard < await accounts.shards(queue_of[provider])
    scans = 0 <= scan < 1 << 64 and 0 <= end < 1 << 64 and 0 <= asked <= PAGE_MAX
    if not (known and scans) or (last and not asked):
        fault = f" is {after[:60]!r}, which is no cursor of this list"
        raise errors.BadArg(errors.Field("after"), fault)
    return Cursor(provider, shard, scan, end, asked, last)
