"""Puts grants: the tokens of a new consent become an account's row, sealed, and its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from tidewarden import errors
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts import details, names
from tidewarden.tokens.accounts.account_record import NO_DETAILS, AccountDetails, AccountRow
from tidewarden.tokens.accounts.account_store import AccountReading, AccountStore
from tidewarden.tokens.accounts.names import brought
from tidewarden.tokens.accounts.sealing import seal_pair
from tidewarden.tokens.accounts.waiting_readers import WaitingReaders
from tidewarden.tokens.events.lifecycle import AccountLifecycle
from tidewarden.tokens.events.revocation import Revoker
from tidewarden.tokens.policy import account_state, due_times
from tidewarden.tokens.policy.account_state import State
from tidewarden.tokens.provider.grant_request import marked, own_of
from tidewarden.tokens.vault.vault import Place, Unsealable, Vault

PUT_TRIES_MAX = 10
SPARE_FIELD = "spare_refresh_token"
"""The field of a sealed export for the refresh token of an account's spare pair."""
MARK_FIELDS = ("origin", "generation")
"""
The fields of a sealed export for the mark of the grant's first token, hexadecimal, and for the
generation of the pair.
"""
ELSEWHERE = (
    # The generation of the request that a spare of another cluster came of: none that is counted
    # here.
    4_294_967_294
)
HOLDERS_MAX = 10_000
"""The most single-use tokens whose accounts are remembered."""
FORCE_MS = 5_000  # Who gives a parameter that was missing does not wait for the next try.
TOLD_SCOPE_CHARS = 1000
"""Of a scope, in the event that an account was connected."""
NEW_MS = 60_000  # A grant without an access token is wanted refreshed within this.


@dataclass(frozen=True, slots=True)
class Put:
    """Says the outcome of a put."""

    generation: int
    change: Literal["new", "renewed", "same"]
    """
    ``new``: there was no such account; ``renewed``: it has another grant now; ``same``: nothing was
    stored.
    """
    state: State
    """The state of the account now."""


@dataclass(frozen=True, slots=True)
class NotPut:
    """Says why what was given for a consent is of no use to its account any more."""

    word: Literal["not_stored", "other_subject"]
    reason: str


class Grants:
    """Puts grants, and deletes accounts."""

    def __init__(
        self,
        accounts: AccountStore,
        vault: Vault,
        dice: Random,
        waiting_readers: WaitingReaders,
        lifecycle: AccountLifecycle,
        revoker: Revoker,
    ) -> None:
        self._accounts = accounts
        self._vault = vault
        self._dice = dice
        self._waiting_readers = waiting_readers
        self._lifecycle = lifecycle
        self._revoker = revoker
        self._holders: dict[bytes, str] = {}
        """
        Account names by the marks of single-use tokens that were put here, the latest at the end.
        """

    async def delete(self, provider: Provider, queue: str, name: str) -> bool:
        """See ``Tokens.delete``."""
        noted = {row.current for row in await self._revoker.deleting(provider.name, name)}
        gone = await self._accounts.delete(queue, name)
        self._lifecycle.deleted(provider.name, name)
        for row in gone or ():
            if row.current not in noted:  # It came in between.
                await self._revoker.abandoned(provider.name, name, row)
        return gone is not None

    async def put(
        self,
        provider: Provider,
        queue: str,
        name: str,
        fields: Mapping[str, Any],
        *,
        keep: bool = False,
        pair: tuple[bytes, int] | None = None,
    ) -> Put:
        """
        See ``Tokens.put_told``.

        ``pair``: of which grant (the mark of its first token), and its generation, where they are
        known.
        """
        grant, vault = names.parse_grant(fields, provider), self._vault
        await vault.ready()
        if provider.renews and provider.rotation == "single_use":
            await self._check_holder(provider, queue, name, brought(provider, grant))
        for _ in range(PUT_TRIES_MAX):
            reading = await self._accounts.get(queue, name)
            old = reading.row
            mark = self._mark(provider, name, grant, old)
            troubles = reading.troubles
            used = (
                pair is not None
                and old is not None
                and old.origin == pair[0]
                and old.generation > pair[1]
            )
            kept = (keep and not _given_up(reading)) or used
            known = old is not None and mark in (old.origin, old.current)
            if old is not None and (kept or (known and mark != old.current)):
                return Put(
                    old.generation, "same", account_state.state(old, troubles, reading.now_ms)
                )
            base = (old.grant, old.generation) if old else (reading.floor, 0)
            row = self._new_row(provider, name, grant, base, reading.now_ms, mark)
            row = replace(row, details=self._details(provider, grant, reading))
            place = Place(provider.name, name, "access", *base)
            anew = known and await self._consented_anew(reading, row, grant, place)
            if (
                old is not None
                and known
                and not anew
                and not await self._has_other_secret(provider, name, old, grant)
            ):
                if not await self._note(provider, queue, name, reading, grant):
                    continue
                return Put(
                    old.generation, "same", account_state.state(old, troubles, reading.now_ms)
                )
            stored = await self._accounts.put(
                queue, name, base, row, row.expires_at_ms or reading.now_ms + NEW_MS
            )
            if stored:
                self._stored(provider, name, row, reading.now_ms, told=stored == 2)
                state = account_state.state(row, None, reading.now_ms)
                return Put(row.generation, "new" if old is None else "renewed", state)
        raise errors.Timeout(
            f"{provider.name}/{name} changed {PUT_TRIES_MAX} times while it was put; try again"
        )

    async def put_consent(
        self,
        provider: Provider,
        queue: str,
        name: str,
        fields: Mapping[str, Any],
        before: int,
        floor: int | None = None,
    ) -> Put | NotPut:
        """
        Put what the provider itself gave for a consent, as a new grant, and tell of it.

        Nothing is put where the account has another grant than it had ``before`` the code was sent
        (0: there was none), or was deleted meanwhile; nor where it is there already.

        ``floor``: the shard's of then (:class:`AccountReading`), for what may have been put before:
        an account that was new then and has been deleted since is known by it, as far as that can
        be known. None: this is the first try.

        Raises: BadArg: the fields do not fit the provider's settings. What the store raises.
        """
        grant = names.parse_grant(fields, provider)
        await self._vault.ready()
        if provider.rotation == "single_use":
            await self._check_holder(provider, queue, name, brought(provider, grant))
        for _ in range(PUT_TRIES_MAX):
            reading = await self._accounts.get(queue, name)
            old = reading.row
            mark = self._mark(provider, name, grant, old)
            if old is not None and old.grant != before and mark == old.origin:
                state = account_state.state(old, reading.troubles, reading.now_ms)
                return Put(old.generation, "same", state)
            if (refused := _displaced(reading, before, floor, grant.subject)) is not None:
                return refused
            base = (old.grant, old.generation) if old is not None else (reading.floor, 0)
            row = self._new_row(provider, name, grant, base, reading.now_ms, mark)
            row = replace(row, details=self._details(provider, grant, reading))
            put = Put(
                row.generation,
                "new" if old is None else "renewed",
                account_state.state(row, None, reading.now_ms),
            )
            told = f"{put.change} {row.scope[:TOLD_SCOPE_CHARS]}".encode()
            end_ms = row.expires_at_ms or reading.now_ms + NEW_MS
            if await self._accounts.put(queue, name, base, row, end_ms, told):
                self._stored(provider, name, row, reading.now_ms, told=True)
                return put
        raise errors.Timeout(
            f"{provider.name}/{name} changed {PUT_TRIES_MAX} times while it was put; try again"
        )

    def _stored(
        self, provider: Provider, name: str, row: AccountRow, now_ms: int, *, told: bool
    ) -> None:
        """Tell this node's parts of a grant that was put; ``told``: an event lies there of it."""
        self._waiting_readers.wake(f"{provider.name}/{name}", row.generation)
        living = row.expires_at_ms > now_ms
        self._lifecycle.granted(provider.name, name, living=living, recovered=told)

    async def _check_holder(self, provider: Provider, queue: str, name: str, token: str) -> None:
        """
        Note the account of a single-use token.

        This node does not know the tokens that other nodes were given. Raises: BadArg: the token is
        another account's.
        """
        mark = self._vault.fingerprint(provider.name, "", token)
        other = self._holders.pop(mark, name)
        if other != name:
            row = (await self._accounts.get(queue, other)).row
            own = self._vault.fingerprint(provider.name, other, marked(token))
            if row is not None and own in (row.origin, row.current):
                self._holders[mark] = other
                raise errors.BadArg(
                    f"refresh_token is that of {provider.name}/{other}; each would end the other's"
                    " grant"
                )
        while len(self._holders) >= HOLDERS_MAX:
            del self._holders[next(iter(self._holders))]
        self._holders[mark] = name

    def _mark(
        self, provider: Provider, name: str, grant: names.Grant, old: AccountRow | None
    ) -> bytes:
        """Return the fingerprint by which a put is known to be of the account's grant."""
        text = marked(brought(provider, grant))
        # What is asked for may hang on the parameters: others make another grant.
        if not provider.renews:
            own = grant.parameters
            if own is None:
                own = old.details.parameters if old else {}
            text = f"{text}\x02{sorted(own.items())}"
        return self._vault.fingerprint(provider.name, name, text)

    @staticmethod
    def _details(provider: Provider, grant: names.Grant, reading: AccountReading) -> AccountDetails:
        """Return the details of a new grant. Raises BadArg: it lacks a parameter."""
        old = reading.row.details if reading.row is not None else NO_DETAILS
        found = details.put(provider, old, grant, reading.now_ms, renewed=True)
        placeholders.filled(provider, found.parameters)
        return found

    async def _note(
        self, provider: Provider, queue: str, name: str, reading: AccountReading, grant: names.Grant
    ) -> bool:
        """
        Store the changes that a put of the same grant makes beside the tokens.

        Returns False when the account's grant has changed meanwhile.
        """
        row = reading.row
        assert row is not None
        new = details.put(provider, row.details, grant, reading.now_ms, renewed=False)
        if new == row.details:
            return True
        placeholders.filled(provider, new.parameters)
        noted = await self._accounts.detail(queue, name, replace(row, details=new))
        if noted and new.parameters != row.details.parameters and reading.troubles is not None:
            await self._accounts.refresh(
                queue, name, force_ms=FORCE_MS, seen=(row.grant, row.generation)
            )
        self._waiting_readers.wake(f"{provider.name}/{name}", row.generation)
        return noted

    async def take_in(
        self, provider: Provider, queue: str, name: str, fields: Mapping[str, Any]
    ) -> bool:
        """
        Put the account of a sealed export together with its spare.

        The spare is tried before the account is given up. False: nothing was new.

        A file of this very cluster puts nothing where the account has been refreshed since: its
        refresh token was used.
        """
        own = {
            key: value for key, value in fields.items() if key not in (SPARE_FIELD, *MARK_FIELDS)
        }
        if extras := own.pop("extras", None):  # What nobody keeps here is left behind.
            own["extras"] = (
                {key: value for key, value in extras.items() if key in provider.extras}
                if isinstance(extras, Mapping)
                else extras
            )
        # All of it is looked at before anything is stored.
        spare = None
        if SPARE_FIELD in fields:
            its = {key: fields[key] for key in ("client_secret",) if key in fields}
            spare = names.parse_grant({"refresh_token": fields[SPARE_FIELD], **its}, provider)
        put = await self.put(provider, queue, name, own, pair=_pair_of(fields))
        if spare is not None:
            row = (await self._accounts.get(queue, name)).row
            if row is not None and not row.refreshed:  # Else its own token has worked here.
                await self._keep_spare(provider.name, queue, name, row, brought(provider, spare))
        return put.change != "same"

    async def _consented_anew(
        self, reading: AccountReading, row: AccountRow, grant: names.Grant, place: Place
    ) -> bool:
        """
        Tell a new consent from an old file, when a put brings the account's own refresh token.

        A consent brings another access token, which outlasts the stored one or is for a wider
        scope: some providers keep the refresh token when the user allows more (Google calls it
        incremental). ``place``: where the stored access token was sealed for.
        """
        old = reading.row
        if old is None or row.expires_at_ms <= reading.now_ms:
            return False
        scope, stored = set(row.scope.split()), set(old.scope.split())
        wider, dead = scope > stored, _given_up(reading)
        narrower = bool(scope) and not scope >= stored and not dead
        if not wider and (narrower or row.expires_at_ms <= old.expires_at_ms):
            return False
        if dead or not old.access:
            return True
        try:
            return (await self._vault.unseal(old.access, place)).decode() != grant.access_token
        except Unsealable:
            return True  # The stored one is of no use to anybody.

    async def _has_other_secret(
        self, provider: Provider, name: str, old: AccountRow, grant: names.Grant
    ) -> bool:
        """Return whether the put brings another client secret than the account has."""
        if not (provider.account_secret and provider.renews):
            return False
        try:
            place = Place(provider.name, name, "refresh", old.grant, old.generation)
            own = own_of((await self._vault.unseal(old.refresh, place)).decode())
        except Unsealable:
            return True
        return own is None or own.client_secret != grant.client_secret

    async def _keep_spare(
        self, provider: str, queue: str, name: str, row: AccountRow, token: str
    ) -> None:
        base, at = (row.grant, ELSEWHERE), (row.grant, ELSEWHERE + 1)
        _, refresh = seal_pair(self._vault, provider, name, at, "", token)
        spare = AccountRow(
            grant=at[0],
            generation=at[1],
            stored_ms=row.stored_ms,
            expires_at_ms=0,
            due_ms=row.due_ms,
            origin=row.origin,
            current=self._vault.fingerprint(provider, name, marked(token)),
            refresh=refresh,
        )
        # It fits nowhere, and what comes and does not fit is kept as a spare.
        await self._accounts.stored(queue, name, base, spare.pack(), spare.due_ms, spare.due_ms)

    def _new_row(
        self,
        provider: Provider,
        name: str,
        grant: names.Grant,
        base: tuple[int, int],
        now_ms: int,
        mark: bytes,
    ) -> AccountRow:
        number, generation = base[0] + 1, base[1] + 1
        expires_at_ms = grant.expires_at_ms or (
            now_ms + int(grant.expires_in_s * 1000) if grant.expires_in_s else 0
        )
        if grant.access_token and not expires_at_ms:
            expires_at_ms = now_ms + int(provider.default_life_s * 1000)
        if not grant.access_token:
            expires_at_ms = 0  # There is nothing that could expire.
        # A token that never seems to end is refreshed as if it ended when the longest believed life
        # does.
        end_ms = min(expires_at_ms, now_ms + int(provider.life_s_max * 1000))
        life_s = max(0.0, (end_ms - now_ms) / 1000)
        due_ms = (
            due_times.due_before(end_ms, life_s, provider, self._dice.random())
            if life_s
            else now_ms
        )
        access, refresh = seal_pair(
            self._vault,
            provider.name,
            name,
            (number, generation),
            grant.access_token,
            brought(provider, grant),
        )
        return AccountRow(
            grant=number,
            generation=generation,
            stored_ms=now_ms,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            origin=mark,
            current=mark,
            token_type=grant.token_type,
            scope=grant.scope or provider.scope,
            access=access,
            refresh=refresh,
        )


def _pair_of(fields: Mapping[str, Any]) -> tuple[bytes, int] | None:
    """Return the mark and the generation of an exported grant; None: not said. Raises: BadArg."""
    origin, generation = (fields.get(name) for name in MARK_FIELDS)
    if origin is None or generation is None:
        return None
    try:
        mark = bytes.fromhex(origin)
    except (TypeError, ValueError):
        raise errors.BadArg(f"{MARK_FIELDS[0]} is no text of hexadecimal digits") from None
    if isinstance(generation, bool) or not isinstance(generation, int) or generation < 0:
        raise errors.BadArg(f"{MARK_FIELDS[1]} is no whole number from 0")
    return mark, generation


def _displaced(
    reading: AccountReading, before: int, floor: int | None, subject: str
) -> NotPut | None:
    """Say why a consent is of no use to an account any more; None: it is (see ``put_consent``)."""
    old = reading.row
    if old is None:
        last = before - 1 if before else floor
        # A store that has lost its accounts has lost the floor, too.
        if last is None or reading.floor <= last:
            return None
        which = "the account was" if before else "an account of its shard, perhaps this one, was"
        return NotPut("not_stored", f"{which} deleted meanwhile")
    if old.grant != before:
        return NotPut("not_stored", "the account has got another grant meanwhile")
    if subject and old.details.subject not in ("", subject):
        return NotPut("other_subject", "the account is known as somebody else's by now")
    return None


def _given_up(reading: AccountReading) -> bool:
    return reading.troubles is not None and reading.troubles.given_up
