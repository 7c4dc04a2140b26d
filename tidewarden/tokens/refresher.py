"""
One refresh of one account: write the intent, ask, journal, write back.

A refresh goes through four steps. Before the request: the intent, in the store. After it: the sealed answer, in this
node's journal, on disk; then the row, in the store. Whatever ends in between leaves a trace that somebody resolves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config import Provider
from tidewarden.queue import Queues, Taken

from . import answers, policy
from .answers import Pair, Verdict
from .cache import Cache
from .exchange import Exchange
from .journal import Journal
from .ledger import Ledger, Opened
from .policy import Case, Step
from .records import Answer
from .rows import Row, Troubles
from .vault import Place, Unsealable, Vault

log = logging.getLogger("tidewarden.tokens")

LEASE_SLACK_S = 10.0  # Of the lease, beyond the longest request: for the journal, the store, and a slow loop.
SEND_SLACK_S = 3.0  # Of the lease that must be left beyond the longest request when the first byte is sent.

OnSettled = Callable[[str, int], None]
"""Hears of each account (with its provider) whose refresh this node has ended, and its generation then."""


@dataclass(slots=True)
class Counts:
    """What a node's refreshers have done since its start."""

    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By provider and class of outcome."""
    late: Counter[str] = field(default_factory=Counter)
    """Refreshes that succeeded after the old access token had expired, by provider."""
    spares: int = 0
    """Answers that found their row moved on and were kept aside."""
    lost_rotations: int = 0
    """Accounts whose new refresh token was lost with its answer, for which consent is needed anew."""
    replayed: int = 0
    """Answers that came from the journal into the store."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every pool of a node works with."""

    queues: Queues
    ledger: Ledger
    vault: Vault
    journal: Journal
    exchange: Exchange
    clock: Clock
    dice: Random
    counts: Counts
    on_settled: OnSettled
    cache: Cache
    storing: set[tuple[str, str]] = field(default_factory=set)
    """Accounts (queue and name) whose answers are on their way into the store."""
    confirm_s: float = policy.CONFIRM_S


class Refresher:
    """Refreshes accounts of one provider's client whose tasks were leased; many at once."""

    def __init__(self, provider: Provider, queue: str, tools: Tools, breaker: policy.Breaker) -> None:
        self.provider = provider
        self.queue = queue
        self.lease_ms = int((provider.timeout_s + LEASE_SLACK_S) * 1000)
        self.stopping = False
        self._tools = tools
        self._breaker = breaker
        self._owed: list[tuple[Taken, Step]] = []
        self.owing = asyncio.Event()
        """Set while the store has to be told something by :meth:`pay`."""

    @property
    def writable(self) -> bool:
        """Whether the journal takes answers, or need not: one that would be the only one is not asked for else."""
        return self._tools.journal.healthy or self.provider.rotation != "single_use"

    async def refresh(self, task: Taken) -> None:
        """Refresh the account of a leased task. Never raises: what goes wrong is noted in the store, or in the log."""
        account = f"{self.provider.name}/{task.id}"
        try:
            await self._refresh(task)
        except (errors.StoreDown, errors.NoQuorum) as error:
            log.warning("refresh of %s: %s", account, error)
        except Unsealable as error:
            log.error("refresh of %s: %s", account, error)
            # Nothing was sent, and a retry would end alike: much later.
            troubles = Troubles(tries=1, outcome="unsealable", message=answers.scrub(str(error)))
            await self._note(task, Step("retry", policy.REJECTED_BACKOFF_S_MAX, troubles))
        except errors.Error as error:
            log.warning("refresh of %s: %s %s", account, error.code, error)
        except Exception:
            log.exception("refresh of %s failed for a reason of ours", account)

    async def pay(self) -> None:
        """Tell the store what it could not be told while it was away. Raises what it raises; the rest is still owed."""
        while self._owed:
            task, step = self._owed[0]
            await self._tools.ledger.failed(self.queue, task.id, task.lease, step)
            self._owed.pop(0)
        self.owing.clear()

    async def _note(self, task: Taken, step: Step) -> bool:
        try:
            return await self._tools.ledger.failed(self.queue, task.id, task.lease, step)
        except errors.StoreDown as error:
            log.warning("what became of %s/%s is told later: %s", self.provider.name, task.id, error)
            self._owe(task, step)
            return True

    def _owe(self, task: Taken, step: Step) -> None:
        self._owed.append((task, step))  # It may have been done: said twice it changes nothing, for the lease is over.
        self.owing.set()

    async def _refresh(self, task: Taken) -> None:
        """One refresh, from a leased task to a stored pair or a note of what went wrong."""
        tools, provider = self._tools, self.provider
        asked = tools.clock.monotonic()
        opened = await self._open(task)
        if opened is None:
            return
        begun = tools.clock.monotonic()
        base = (opened.row.grant, opened.row.generation)
        if answer := tools.journal.find(self.queue, task.id, *base):
            log.info("%s/%s: its answer is in the journal", provider.name, task.id)
            await self.store(answer)
            return
        self._fold_doubt(opened)
        spare = policy.use_spare(opened.troubles, opened.spare is not None)
        row = opened.spare if spare and opened.spare is not None else opened.row
        token = await self._unsealed(task.id, row)
        # From the moment before the intent was asked for, which the store saw later: the lease lasts at least so long.
        left_s = asked + self.lease_ms / 1000 - tools.clock.monotonic()
        if left_s < provider.timeout_s + SEND_SLACK_S or self.stopping or not self.writable:
            await self._hold(task, 0, opened.troubles)
            return
        outcome = await tools.exchange.refresh(provider, token)
        verdict = answers.judge(outcome, tools.clock.unix_ms())
        tools.counts.refreshes[provider.name, verdict.outcome] += 1
        if self._breaker.note(verdict, tools.clock.monotonic()):
            log.error(
                "%s refuses our client (%s): its accounts wait. %s", provider.name, verdict.outcome, verdict.message
            )
        if verdict.pair is not None:
            tools.storing.add((self.queue, task.id))
            try:
                await self._settle(task.id, opened, verdict.pair, token)
            finally:
                tools.storing.discard((self.queue, task.id))
            return
        if verdict.keep_body and isinstance(outcome, answers.Answer):
            await self._keep_raw(task.id, opened, outcome.body)
        now_ms = opened.now_ms + int((tools.clock.monotonic() - begun) * 1000)
        await self._failed(task, opened, verdict, spare, now_ms)

    async def _open(self, task: Taken) -> Opened | None:
        """The intent, written down; None when nothing is to be sent."""
        untouched = Step("hold", 0, Troubles())
        if self.stopping:
            await self._note(task, untouched)
            return None
        try:
            opened = await self._tools.ledger.intend(self.queue, task.id, task.lease, self.lease_ms)
        except (errors.StoreDown, errors.NoQuorum):
            self._owe(task, untouched)  # It may have been written; nothing was sent, so it is closed again.
            raise
        if isinstance(opened, Opened):
            return opened
        if opened.why == "OPEN":
            # Somebody else's request may be under way: whoever it is stores the answer, or its intent's time ends.
            await self._note(task, Step("hold", 1.0, Troubles()))
        return None

    async def _hold(self, task: Taken, delay_s: float, troubles: Troubles | None = None) -> None:
        """Back into the queue untouched; but a doubt that was found in an open intent is not forgotten."""
        doubted = troubles is not None and troubles.doubts > 0
        await self._note(task, Step("retry" if doubted else "hold", delay_s, troubles or Troubles()))

    def _fold_doubt(self, opened: Opened) -> None:
        """An intent left open is a request of which nobody knows what became."""
        found, row = opened.found, opened.row
        if found is not None and (found.grant, found.generation) == (row.grant, row.generation):
            opened.troubles.doubts += 1
            opened.troubles.doubt_ms = opened.troubles.doubt_ms or found.started_ms
            log.info("%s: an intent of %s was left open", self.provider.name, found.holder)

    async def _unsealed(self, account: str, row: Row) -> str:
        place = Place(self.provider.name, account, "refresh", row.grant, row.generation)
        return (await self._tools.vault.unseal(row.refresh, place)).decode()

    async def _settle(self, account: str, opened: Opened, pair: Pair, sent_token: str) -> None:
        """Seal the pair, bring it to disk, write it back."""
        tools, name = self._tools, self.provider.name
        old = opened.row
        refresh_token = pair.refresh_token or sent_token
        generation = old.generation + 1
        # The store's time when the intent was written, a moment before the request was sent: the safe side.
        expires_at_ms, due_ms = policy.due_after(
            opened.now_ms, pair.life_s, self.provider.default_life_s, self.provider.margin_s, tools.dice.random()
        )
        row = Row(
            grant=old.grant,
            generation=generation,
            stored_ms=opened.now_ms,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            origin=old.origin,
            current=tools.vault.fingerprint(name, account, refresh_token),
            token_type=pair.token_type,
            scope=old.scope if pair.scope is None else pair.scope,
            access=tools.vault.seal(pair.access_token.encode(), Place(name, account, "access", old.grant, generation)),
            refresh=tools.vault.seal(refresh_token.encode(), Place(name, account, "refresh", old.grant, generation)),
            refreshed=True,
        )
        if 0 < old.expires_at_ms <= opened.now_ms:
            tools.counts.late[name] += 1
        base = (old.grant, old.generation)
        key = tools.vault.wrapped_key(row.refresh)
        try:
            answer = await tools.journal.add_answer(
                self.queue, account, *base, row.pack(), (due_ms, expires_at_ms), key
            )
        except OSError as error:
            # In memory it is still whole, and the store may well take it.
            log.error("the journal does not take an answer of %s/%s: %s", name, account, error)
            found = tools.journal.find(self.queue, account, *base)
            if found is None:
                raise
            answer = found
        # The request may have taken so long, and life counts from before it: a kept token must not be thought to live longer.
        now_ms = opened.now_ms + int(self.provider.timeout_s * 1000)
        tools.cache.keep(f"{name}/{account}", row, now_ms, read=False)
        await self.store(answer)

    async def store(self, answer: Answer) -> None:
        """Write a journalled answer back. Raises what the store raises; the answer stays in the journal then."""
        tools = self._tools
        base = (answer.grant, answer.generation)
        word = await tools.ledger.stored(
            self.queue, answer.account, base, answer.row, answer.due_ms, answer.deadline_ms
        )
        tools.journal.stored(answer)
        if word in ("SPARE", "GONE"):
            tools.cache.drop(f"{self.provider.name}/{answer.account}")
        if word == "SPARE":
            tools.counts.spares += 1
            log.warning("%s/%s had moved on when its answer came: kept as a spare", self.provider.name, answer.account)
        elif word == "GONE":
            log.info("%s/%s was deleted while it was refreshed", self.provider.name, answer.account)
        tools.on_settled(f"{self.provider.name}/{answer.account}", answer.generation + 1)

    async def _keep_raw(self, account: str, opened: Opened, body: bytes) -> None:
        tools, row = self._tools, opened.row
        place = Place(self.provider.name, account, "raw", row.grant, row.generation)
        sealed = tools.vault.seal(body, place)
        try:
            await tools.journal.add_raw(
                self.queue, account, row.grant, row.generation, tools.clock.unix_ms(), sealed, tools.vault.wrapped_key(sealed)
            )  # fmt: skip
        except OSError as error:
            log.error("the journal does not take an unreadable answer of %s/%s: %s", self.provider.name, account, error)

    async def _failed(self, task: Taken, opened: Opened, verdict: Verdict, used_spare: bool, now_ms: int) -> None:
        tools, name = self._tools, self.provider.name
        step = policy.after_failure(
            Case(
                verdict=verdict,
                troubles=opened.troubles,
                rotation=self.provider.rotation,  # type: ignore[arg-type]
                grace_s=self.provider.grace_s,
                now_ms=now_ms,
                left_s=(opened.row.expires_at_ms - now_ms) / 1000,
                used_spare=used_spare,
                has_spare=opened.spare is not None,
                dice=tools.dice.random(),
                confirm_s=tools.confirm_s,
            )
        )
        # The script reads the row anew, in effect: whatever had changed it would have voided the lease, and a refusal
        # of a pair that a sibling has replaced is noted nowhere.
        if not await self._note(task, step):
            log.info("%s/%s moved on while it was refreshed", name, task.id)
        elif step.lost_rotation:
            tools.counts.lost_rotations += 1
            log.error("%s/%s: lost_rotation: %s", name, task.id, step.troubles.message)
        elif step.what == "dead":
            tools.cache.drop(f"{name}/{task.id}")
            log.warning("%s/%s is dead: %s %s", name, task.id, step.troubles.outcome, step.troubles.message)
        else:
            log.debug("%s/%s: %s, again in %.1f s", name, task.id, verdict.outcome, step.delay_s)
        tools.on_settled(f"{name}/{task.id}", opened.row.generation)
