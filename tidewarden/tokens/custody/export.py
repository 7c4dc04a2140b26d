"""
Exports accounts to another cluster, page by page, and imports them.

The lines are sealed by a key of the file (:mod:`tidewarden.config.sealed_file`).

What lies sealed in a row is opened and sealed anew in this process; nothing of it leaves in the
clear.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.clock import in_turns
from tidewarden.config.load import Provider
from tidewarden.config.rights import EVERY_ACCOUNT, AccountRights
from tidewarden.config.sealed_file import ID_BYTES, KEY_BYTES, NotSealed, open_line, seal_line
from tidewarden.queue.task import check_range
from tidewarden.tokens.accounts.account_record import AccountRow, parse_row
from tidewarden.tokens.accounts.account_store import AccountStore, Pairs
from tidewarden.tokens.accounts.details import consent_of
from tidewarden.tokens.provider.grant_request import fields_of
from tidewarden.tokens.vault.vault import Place, Vault
from tidewarden.tokens.verbs.grants import MARK_FIELDS, SPARE_FIELD
from tidewarden.tokens.verbs.listing import LOOKED_MAX, PAGE_MAX, Cursor, parse_cursor

log = logging.getLogger("tidewarden.tokens")

Put = Callable[[str, Mapping[str, Any]], Awaitable[bool]]
"""Puts the fields of ``provider/account``; False: nothing was new."""
Told = Callable[[str], None]
"""Hears of each account, ``provider/name``, that was exported or put."""
READ_MAX = 200
"""Accounts that one call of the store reads: more would hold the loop for too long."""
Page = tuple[list[bytes], str, list[str]]
Results = list[int | str]
Sealing = tuple[bytes, bytes, int]
"""The key and the id of a file, and the number of its next line."""


def ignored(account: str) -> None:
    """Ignore the account."""


class Export:
    """Reads and writes pages of accounts under a file's key."""

    def __init__(
        self,
        accounts: AccountStore,
        vault: Vault,
        providers: Mapping[str, Provider],
        queues: Mapping[str, str],
    ) -> None:
        """Find each provider's queue in ``queues``."""
        self._accounts = accounts
        self._vault = vault
        self._providers = providers
        self._queue_of = queues

    async def page(
        self,
        sealing: Sealing,
        names: list[str],
        count: int,
        after: str,
        exported: AccountRights = EVERY_ACCOUNT,
        told: Told = ignored,
    ) -> Page:
        """
        Return a page of lines, the cursor to go on from, and accounts that cannot be opened.

        A page has about ``count`` accounts, or fewer where not all are ``exported``; the cursor
        ``""`` is the end.

        An account that stays is met at least once. Raises: BadArg: a key, count or cursor that is
        none.
        """
        _check(sealing)
        check_range(count, "count", 1, PAGE_MAX)
        key, file_id, number = sealing
        lines: list[bytes] = []
        unreadable: list[str] = []
        at = await parse_cursor(after, names, self._accounts, self._queue_of)
        shard, scan = at.shard, at.scan
        looked = 0
        for name in names[names.index(at.provider) :]:
            queue = self._queue_of[name]
            shards = await self._accounts.shards(queue)
            while shard < shards:
                if len(lines) + len(unreadable) >= count or (
                    looked >= LOOKED_MAX and not exported.every
                ):
                    return lines, str(Cursor(name, shard, scan)), unreadable
                scan, found = await self._accounts.pairs(queue, shard, scan, min(READ_MAX, count))
                looked += bool(found)
                async for pair in in_turns(found, 1):
                    if not exported.allow(f"{name}/{pair.account}"):
                        continue
                    try:
                        plain = await self._opened(name, pair)
                    except errors.Internal:  # Unsealable, or its row cannot be read.
                        unreadable.append(f"{name}/{pair.account}")
                        continue
                    lines.append(seal_line(key, file_id, number + len(lines), plain))
                    told(f"{name}/{pair.account}")
                shard += scan == 0
            shard = 0
        return lines, "", unreadable

    async def _opened(self, name: str, pair: Pairs) -> bytes:
        row = parse_row(pair.row, pair.details)
        fields: dict[str, Any] = {
            "account": f"{name}/{pair.account}",
            "client": self._providers[name].client_id,
            "token_type": row.token_type,
            "scope": row.scope,
            **dict(zip(MARK_FIELDS, (row.origin.hex(), row.generation), strict=True)),
        }
        at = (row.grant, row.generation)
        refresh = await self._vault.unseal(row.refresh, Place(name, pair.account, "refresh", *at))
        fields |= fields_of(refresh.decode())
        if row.access:
            access = await self._vault.unseal(row.access, Place(name, pair.account, "access", *at))
            fields |= {"access_token": access.decode(), "expires_at_ms": row.expires_at_ms}
        fields |= _beside(self._providers[name], row)
        if spare := await self._spare_of(name, pair, row):
            fields[SPARE_FIELD] = spare
        return msgspec.json.encode(fields)

    async def _spare_of(self, name: str, pair: Pairs, row: AccountRow) -> str:
        """Return the refresh token of the account's spare; empty: another cluster may try none."""
        try:
            spare = parse_row(pair.spare) if pair.spare else None
            if spare is None or (spare.grant, spare.generation + 1) == (row.grant, row.generation):
                # The token before this one works within its grace alone; past that, to use it may
                # end the grant.
                return ""
            place = Place(name, pair.account, "refresh", spare.grant, spare.generation)
            return fields_of((await self._vault.unseal(spare.refresh, place)).decode()).get(
                "refresh_token", ""
            )
        except errors.Internal as error:  # Unsealable, or its row cannot be read.
            log.warning("the spare pair of an account is not exported: %s", error)
            return ""


def _beside(provider: Provider, row: AccountRow) -> dict[str, Any]:
    """Return the details of an account beside its tokens, in the form that a put takes."""
    known = row.details
    found: dict[str, Any] = {
        "parameters": known.parameters,
        "extras": known.extras,
        "subject": known.subject,
    }
    if known.consent_expires_ms:
        found |= {
            "consent_expires_ms": consent_of(provider, row)[0],
            "consent_end": known.consent_end,
        }
    return {name: value for name, value in found.items() if value}


async def put_lines(
    put: Put,
    sealing: Sealing,
    lines: Sequence[bytes],
    written: AccountRights = EVERY_ACCOUNT,
    told: Told = ignored,
) -> Results:
    """
    Put the accounts of these lines and return a result for each.

    It is 1 for a new one, 0 for one that was there so, or why it is left out: it may not be
    ``written``, too.

    Raises: BadArg: a line does not open, or holds no account; then nothing was put. What the store
    raises, which concerns all.
    """
    _check(sealing)
    key, file_id, number = sealing
    try:
        plain = [open_line(key, file_id, number + at, line) for at, line in enumerate(lines)]
    except NotSealed as error:
        raise errors.BadArg(f"The sealed file cannot be read: {error}.") from None
    read = [_account_in(one, number + at) for at, one in enumerate(plain)]
    results: list[int | str] = []
    for account, fields in read:
        if not written.allow(account):
            results.append(f"{account}: it needs the right token:write:{account}")
            continue
        try:
            results.append(int(await put(account, fields)))
            told(account)
        except (errors.BadArg, errors.NotFound, errors.TooBig) as error:
            results.append(f"{account}: {error}")
    return results


def _account_in(plain: bytes, number: int) -> tuple[str, dict[str, Any]]:
    """
    Return the account of an opened line, and its fields, not looked at yet.

    A holder of the file's key may have sealed anything. Raises: BadArg: it is no account.
    """
    try:
        fields = msgspec.json.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = None
    account = fields.pop("account", None) if isinstance(fields, dict) else None
    if not isinstance(account, str):
        raise errors.BadArg(
            f"The sealed file cannot be read: line {number + 1} opens, but holds no account:"
            ' allowed is a JSON object with "account": "provider/name".'
        )
    return account, fields


def _check(sealing: Sealing) -> None:
    key, file_id, number = sealing
    if len(key) != KEY_BYTES or len(file_id) != ID_BYTES or number < 1:
        raise errors.BadArg(
            f"a sealed file has a key of {KEY_BYTES} bytes, an id of {ID_BYTES}, and lines from 1"
        )
