"""
Refreshes one account: writes the intent, asks, journals, writes back.

A refresh goes through four steps: the intent is written to the store, the provider is asked, the
sealed answer is written to this node's journal on disk, and the row to the store. A refresh that
ends in between leaves a trace that another node, or this one later, resolves.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random

import msgspec

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.config import placeholders
from tidewarden.config.error_classes import class_of
from tidewarden.config.load import Provider
from tidewarden.queue import Taken
from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import AccountStore, Opened
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.limits.adaptive_concurrency import late
from tidewarden.tokens.limits.answer_counts import Ended, is_refusal, kind_of
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.policy import due_times, failures
from tidewarden.tokens.policy.failures import Case, Patience
from tidewarden.tokens.provider import token_response
from tidewarden.tokens.provider.advice import after_refusal
from tidewarden.tokens.provider.grant_request import Unfit
from tidewarden.tokens.provider.token_response import Outcome, Verdict
from tidewarden.tokens.vault.vault import Unsealable
from tidewarden.tracing import client_span, failed, traced

from .log_sampler import LogSampler
from .outcome_notifier import OutcomeNotifier
from .token_request import TokenRequest
from .under_way import UnderWay
from .unknown_outcome import BUSY_S, UnknownOutcomes
from .write_back import WriteBack

log = logging.getLogger("tidewarden.tokens")

# Of the lease, beyond the longest request: for the journal, the store, and a slow loop.
LEASE_SLACK_S = 10.0
# Until the next try, when something of ours stood in the way before anything was sent.
UNSENT_S = 5.0


def lease_ms_of(provider: Provider) -> int:
    """
    Return how long the lease of a refresh lasts.

    It outlives the longest request, by each of the client's secrets.
    """
    return int((provider.timeout_s * len(provider.secrets) + LEASE_SLACK_S) * 1000)


def _ended(account: str, verdict: Verdict, opened: Opened) -> Ended:
    """Return an answer as evidence; an account that failed last time is no witness."""
    troubles = opened.troubles
    witness = not troubles.outcome
    # In a quarantine none is counted.
    refused = troubles.refusals > 0 or is_refusal(troubles.outcome)
    row = opened.row
    early = row.refreshed and 2 * (opened.now_ms - row.stored_ms) < row.due_ms - row.stored_ms
    return Ended(account, verdict, witness, witness and row.refreshed, refused, early)


class Refresher:
    """Refreshes accounts of one provider's client whose tasks were leased; many at once."""

    def __init__(
        self,
        provider: Provider,
        queue: str,
        accounts: AccountStore,
        journal: Journal,
        request: TokenRequest,
        unknown: UnknownOutcomes,
        write_back: WriteBack,
        notifier: OutcomeNotifier,
        limits: ClientLimits,
        under_way: UnderWay,
        clock: Clock,
        dice: Random,
        patience: Patience,
    ) -> None:
        self.provider = provider
        self.queue = queue
        self.lease_ms = lease_ms_of(provider)
        self.stopping = False
        self._accounts = accounts
        self._journal = journal
        self._request = request
        self._unknown = unknown
        self._write_back = write_back
        self._notifier = notifier
        self._limits = limits
        self._under_way = under_way
        self._clock = clock
        self._dice = dice
        self._patience = patience
        self._log = LogSampler(provider.name, clock)
        self._owed: list[tuple[Taken, Step]] = []
        self.owing = asyncio.Event()
        """Set while the store has to be told something by :meth:`pay`."""

    @property
    def writable(self) -> bool:
        """
        Return whether the journal takes answers, or need not.

        Otherwise no answer is asked for that would be the account's only one.
        """
        return not self._journal.fault or self.provider.rotation != "single_use"

    async def refresh(self, task: Taken) -> None:
        """
        Refresh the account of a leased task.

        Never raises: what goes wrong is noted in the store, or in the log.
        """
        account, place = f"{self.provider.name}/{task.id}", (self.queue, task.id)
        busy = place in self._under_way.asking
        self._under_way.asking.add(place)
        try:
            # This process was paused past the lease of a request whose answer may lie in its
            # socket.
            if busy:
                await self._accounts.failed(
                    self.queue, task.id, task.lease, Step("hold", BUSY_S, RefreshTroubles())
                )
            else:
                await self._refresh(task)
        except (errors.StoreDown, errors.NoQuorum) as error:
            log.warning("refresh of %s: %s", account, error)
        except errors.Error as error:
            log.warning("refresh of %s: %s %s", account, error.code, error)
        except Exception:
            log.exception("refresh of %s failed for a reason of ours", account)
        finally:
            if not busy:
                self._under_way.asking.discard(place)

    def unsent(self, account: str) -> bool:
        """
        Return whether nothing was sent for an account whose intent this node could not close yet.
        """
        owed = [step.what for task, step in self._owed if task.id == account]
        # Of an earlier try something else may be owed.
        return bool(owed) and all(what == "hold" for what in owed)

    async def pay(self) -> None:
        """
        Tell the store the outcomes that it could not be told while it was away.

        Raises what the store raises; the rest is still owed.
        """
        while self._owed:
            task, step = self._owed[0]
            await self._accounts.failed(self.queue, task.id, task.lease, step)
            self._owed.pop(0)
        self.owing.clear()

    async def _note(self, task: Taken, step: Step) -> bool:
        try:
            return await self._accounts.failed(self.queue, task.id, task.lease, step)
        except (errors.StoreDown, errors.NoQuorum) as error:
            log.warning(
                "what became of %s/%s is told later: %s", self.provider.name, task.id, error
            )
            self._owe(task, step)
            return True

    def _owe(self, task: Taken, step: Step) -> None:
        # It may have been done: said twice it changes nothing, for the lease is over.
        self._owed.append((task, step))
        self.owing.set()

    async def _refresh(self, task: Taken) -> None:
        """Do one refresh, from a leased task to a stored pair or a note of what went wrong."""
        provider, clock = self.provider, self._clock
        asked = clock.monotonic()
        opened = await self._open(task)
        if opened is None:
            return
        begun = clock.monotonic()
        base = (opened.row.grant, opened.row.generation)
        if answer := self._journal.find(self.queue, task.id, *base):
            log.info("%s/%s: its answer is in the journal", provider.name, task.id)
            await self._write_back.store(answer)
            return
        # From the moment before the intent was asked for, which the store saw later: the lease
        # lasts at least so long.
        until = asked + self.lease_ms / 1000
        try:
            chosen = await self._choose(task, opened, until)
        except errors.Error:
            # Nothing was sent: an open intent would say that it may have been.
            await self._hold(task, UNSENT_S, opened)
            raise
        if chosen is None:
            return
        token, spare = chosen
        # One that was tried before is late by its backoff, which says nothing.
        if not opened.troubles.tries:
            row = opened.row
            behind = late(row.due_ms, row.expires_at_ms, opened.now_ms)
            self._limits.concurrency.began(late=behind)
        while True:
            outcome, verdict = await self._ask(task, opened, token, until)
            if verdict.outcome == "late":  # As if it had been found out before.
                await self._hold(task, 0, opened)
                return
            verdict = self._limits.release(_ended(task.id, verdict, opened))
            try:
                case = await self._conclude(task, opened, outcome, verdict, token, spare, begun)
            finally:
                await self._limits.settled()
                self._notifier.took(provider.name, verdict.outcome, clock.monotonic() - asked)
            if case is None:
                return
            lasts = await self._replay_until(task, failures.replay_after(case) or 0)
            if lasts is None:
                await self._failed(task, opened, case)
                return
            until = lasts
            opened = msgspec.structs.replace(opened, troubles=failures.after_doubt(case))
            log.debug("%s/%s: %s; sent again in its place", provider.name, task.id, verdict.message)

    async def _ask(
        self, task: Taken, opened: Opened, token: str, until: float
    ) -> tuple[Outcome, Verdict]:
        """Ask the provider, and have it traced where spans are wanted."""
        if not traced():
            return await self._request.ask(task.id, opened.row, token, until)
        name = self.provider.name
        about: dict[str, str | int] = {
            "tidewarden.provider": name,
            "tidewarden.account": f"{name}/{task.id}",
            "tidewarden.generation": opened.row.generation,
            "tidewarden.attempt": task.attempt,
        }
        with client_span(f"refresh {name}", about) as span:
            outcome, verdict = await self._request.ask(task.id, opened.row, token, until)
            if verdict.outcome != "ok":
                failed(span, verdict.outcome, {"error.type": verdict.outcome})
        return outcome, verdict

    async def _choose(self, task: Taken, opened: Opened, until: float) -> tuple[str, bool] | None:
        """
        Choose the refresh token to send; returns it, and whether it is the spare's.

        None: nothing is sent now, and the store knows.
        """
        resolved = await self._unknown.resolve(task.id, opened)
        if resolved == "stored":
            return None
        if isinstance(resolved, Step):
            await self._note(task, resolved)
            return None
        if soon_s := due_times.too_soon(self.provider, opened.row, opened.now_ms):
            await self._hold(task, soon_s, opened)
            return None
        spare = failures.use_spare(opened.troubles, self._spare_may_do(opened))
        try:
            placeholders.filled(self.provider, opened.row.details.parameters)
            token = await self._request.unseal(
                task.id, opened.spare if spare and opened.spare is not None else opened.row
            )
        except (Unfit, Unsealable) as error:
            word = "unfit" if isinstance(error, Unfit) else "unsealable"
            verdict = Verdict(word, "account", token_response.scrub(str(error)), answered=False)
            await self._failed(
                task, opened, await self._case(opened, verdict, spare, opened.now_ms)
            )
            return None
        except errors.BadArg as error:  # Nothing leaves for an account that does not say where to.
            verdict = Verdict(
                "no_parameters", "account", token_response.scrub(str(error)), answered=False
            )
            await self._failed(
                task, opened, await self._case(opened, verdict, spare, opened.now_ms)
            )
            return None
        if not self._request.may_send(until) or self.stopping or not self.writable:
            await self._hold(task, 0, opened)
            return None
        return token, spare

    async def _conclude(
        self,
        task: Taken,
        opened: Opened,
        outcome: token_response.Outcome,
        verdict: Verdict,
        token: str,
        spare: bool,
        begun: float,
    ) -> Case | None:
        """
        Store the answer, or the consequences of its absence.

        Returns the case if the request is sent again in its place.
        """
        kept = ""
        unread = (
            outcome.as_it_came
            if verdict.keep_body and isinstance(outcome, token_response.HttpAnswer)
            else b""
        )
        if unread and (keeper := await self._write_back.keep_raw(task.id, opened, unread)):
            opened.troubles.kept = keeper
            kept = f"; it is kept: tidewarden token answers {self.provider.name}/{task.id}"
        if verdict.pair is not None:
            if verdict.message:
                self._log.say(
                    task.id,
                    "fresh",
                    f"{verdict.message}: its old one is used on{kept}",
                    logging.ERROR,
                )
            self._under_way.storing.add((self.queue, task.id))
            try:
                await self._write_back.settle(task.id, opened, verdict.pair, token)
            finally:
                self._under_way.storing.discard((self.queue, task.id))
            return None
        if unread:
            self._log.say(task.id, "failing", f"answered {verdict.message}{kept}")
        now_ms = opened.now_ms + int((self._clock.monotonic() - begun) * 1000)
        case = await self._case(opened, verdict, spare, now_ms)
        if failures.replay_after(case) is not None:
            return case
        await self._failed(task, opened, case)
        return None

    async def _replay_until(self, task: Taken, wait_s: float) -> float | None:
        """
        Return until when (monotonic seconds) a request may be sent again under its intent.

        The intent runs on from now. None: it may not.
        """
        await sleep(self._clock, wait_s)
        if self.stopping or not self.writable:
            return None
        asked = self._clock.monotonic()
        try:
            renewed = await self._accounts.renew(self.queue, task.id, task.lease, self.lease_ms)
        except errors.Error as error:
            log.info("%s/%s is not sent again in its place: %s", self.provider.name, task.id, error)
            return None
        return asked + self.lease_ms / 1000 if renewed else None

    def _spare_may_do(self, opened: Opened) -> bool:
        """
        Return whether a spare is worth a try, because a previous token works only within the grace.
        """
        return opened.spare is not None and failures.spare_lives(
            opened.spare, opened.row, self.provider.grace_s, opened.now_ms
        )

    async def _open(self, task: Taken) -> Opened | None:
        """Write the intent down and return it; None when nothing is to be sent."""
        untouched = Step("hold", 0, RefreshTroubles())
        if self.stopping:
            await self._note(task, untouched)
            return None
        try:
            opened = await self._accounts.intend(self.queue, task.id, task.lease, self.lease_ms)
        except (errors.StoreDown, errors.NoQuorum):
            # It may have been written; nothing was sent, so it is closed again.
            self._owe(task, untouched)
            raise
        if isinstance(opened, Opened):
            return opened
        if opened.why == "OPEN":
            # Somebody else's request may be under way: whoever it is stores the answer, or its
            # intent's time ends.
            await self._note(task, Step("hold", 1.0, RefreshTroubles()))
        return None

    async def _hold(self, task: Taken, delay_s: float, opened: Opened) -> None:
        """Put the task back into the queue untouched, but keep a doubt found in an open intent."""
        step = Step("hold", delay_s, RefreshTroubles())
        if opened.troubles.doubts:
            until_ms = failures.saved_until_ms(self.provider, opened.troubles, opened.now_ms)
            step = Step(
                "retry",
                delay_s,
                failures.doubted(opened.troubles, opened.now_ms, delay_s),
                until_ms=until_ms,
            )
        await self._note(task, step)

    async def _case(self, opened: Opened, verdict: Verdict, used_spare: bool, now_ms: int) -> Case:
        """Gather the facts of a failure, those of the client's other accounts included."""
        if kind_of(verdict) in ("refused", "client"):
            await self._limits.weigh()  # Before anybody is given up.
        row = opened.row
        return Case(
            verdict=verdict,
            troubles=opened.troubles,
            rotation=self.provider.rotation,  # type: ignore[arg-type]
            grace_s=self.provider.grace_s,
            now_ms=now_ms,
            left_s=(row.expires_at_ms - now_ms) / 1000,
            used_spare=used_spare,
            has_spare=self._spare_may_do(opened),
            dice=self._dice.random(),
            confirm_s=self._patience.confirm_s,
            assessment=self._limits.assess(verdict),
            give_up_s=self._patience.give_up_s,
            begun_ms=opened.now_ms,
            stored_ms=row.stored_ms,
            refreshed=row.refreshed,
        )

    async def _failed(self, task: Taken, opened: Opened, case: Case) -> None:
        name, generation = self.provider.name, opened.row.generation
        step = failures.after_failure(case)
        event = self._notifier.event_of(
            opened.troubles, step.troubles, client_told=case.assessment.told
        )
        step.troubles.told |= event == "account.failing"
        step = replace(step, event=event)
        # The script reads the row anew, in effect: whatever had changed it would have voided the
        # lease, and a refusal of a pair that a sibling has replaced is noted nowhere.
        if not await self._note(task, step):
            log.info("%s/%s moved on while it was refreshed", name, task.id)
            self._notifier.moved_on(name, task.id, generation)
            return
        self._say(task.id, opened.troubles, step)
        self._notifier.failed(name, task.id, generation, step)

    def _say(self, account: str, before: RefreshTroubles, step: Step) -> None:
        """Log the outcome of an account, if it is the account's own matter and news."""
        now = step.troubles
        if step.what == "lost":
            self._log.say(account, "lost_rotation", f"lost_rotation: {now.message}", logging.ERROR)
        elif step.what == "dead":
            mend = (
                "its owner has to consent again"
                if self.provider.renews
                else after_refusal(self.provider)
            )
            self._log.say(account, "dead", f"is dead: {now.message}; {mend}")
        elif step.what == "stop":
            asked = (
                f"asked in vain since {(now.last_ms - now.first_ms) / 86_400_000:.1f} days,"
                f" {now.tries} times"
            )
            self._log.say(account, "stopped", f"is stopped: {now.message}; {asked}")
        elif step.what == "retry" and now.refusals == 1 and before.refusals == 0:
            again = (
                f"asked again in {step.delay_s / 60:.0f} min"
                if step.delay_s >= 60
                else "asked again"
            )
            self._log.say(
                account, "failing", f"is refused: {now.message}; {again}, before it is given up"
            )
        elif (
            step.what == "retry"
            and now.outcome != before.outcome
            and (level := class_of(now.outcome).log_level)
        ):
            self._log.say(
                account,
                "failing",
                f"fails ({now.outcome}): {now.message}; tried again by itself",
                level,
            )
        else:
            log.debug(
                "%s/%s: %s, again in %.1f s", self.provider.name, account, now.outcome, step.delay_s
            )
