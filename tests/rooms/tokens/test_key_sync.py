"""A node keeps abreast of the cluster's keys, its journal too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.config.key_file import prepend_key
from tidewarden.config.load import Vault as VaultSettings
from tidewarden.errors import ConfigError
from tidewarden.tokens.accounts.account_record import AccountDetails, AccountRow, parse_row
from tidewarden.tokens.custody.key_sync import KeySync, provider_of, reseal_journal, restore_keys
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.peer_queries import kept_of
from tidewarden.tokens.vault.key_store import KeyStore
from tidewarden.tokens.vault.keyring import Keyring
from tidewarden.tokens.vault.vault import Place, Vault, key_id_of, open_vault

QUEUE = "_tokens:p:c0"


async def opened(key_store: KeyStore, path: Path) -> Vault:
    return await open_vault(Keyring(VaultSettings(), path, {}), key_store, ManualClock())


async def test_the_journal_goes_along(node: Any, tmp_path: Path) -> None:
    key_store = KeyStore((await node()).link.call, "t")
    vault = await opened(key_store, tmp_path / "vault.key")
    journal = Journal(tmp_path / "tokens.journal")
    journal.open()
    place = Place("p", "a", "refresh", 1, 2)
    row = AccountRow(1, 2, 1, 2, 3, b"o" * 8, b"c" * 8, refresh=vault.seal(b"rt", place))
    key = vault.wrapped_key(row.refresh)
    await journal.add_answer(QUEUE, "a", 1, 1, row.pack(), (1, 2), key)
    raw = vault.seal(b"<html>", Place("p", "b", "raw", 1, 1))
    await journal.add_raw(QUEUE, "b", 1, 1, 5, raw, vault.wrapped_key(raw))
    given = vault.seal(b"{}", Place("p", "c", "consent", 4, 0))
    await journal.add_consent(QUEUE, "c", (4, 2), given, ("s", "l"), vault.wrapped_key(given))
    await vault.add_data_key(vault.next_id())
    await reseal_journal(journal, vault)
    await journal.close()
    again = Journal(tmp_path / "tokens.journal")
    again.open()
    found = again.find(QUEUE, "a", 1, 1)
    assert found is not None
    sealed = parse_row(found.row).refresh
    assert key_id_of(sealed) == key_id_of(again.raws()[0].body) == vault.newest_id
    assert await vault.unseal(sealed, place) == b"rt"
    (consent,) = again.consents()
    assert key_id_of(consent.body) == vault.newest_id
    assert await vault.unseal(consent.body, consent.place("p")) == b"{}"
    assert list(again.keys()) == [vault.newest_id]
    await again.close()
    assert provider_of("_tokens:shop:a:b") == "shop"


async def test_what_stands_before_a_row_in_the_journal_stays_there(
    node: Any, tmp_path: Path
) -> None:
    key_store = KeyStore((await node()).link.call, "t")
    vault = await opened(key_store, tmp_path / "vault.key")
    journal = Journal(tmp_path / "tokens.journal")
    journal.open()
    known = AccountDetails({"shop": "a"}, {"api": "x"}, 2**41, "fixed", 2**40)
    sealed = vault.seal(b"rt", Place("p", "a", "refresh", 1, 2))
    row = AccountRow(1, 2, 1, 2, 3, b"o" * 8, b"c" * 8, refresh=sealed, details=known)
    await journal.add_answer(
        QUEUE, "a", 1, 1, row.pack_all(), (1, 2), vault.wrapped_key(row.refresh)
    )
    await vault.add_data_key(vault.next_id())
    await reseal_journal(journal, vault)
    found = journal.find(QUEUE, "a", 1, 1)
    await journal.close()
    assert found is not None
    assert key_id_of(parse_row(found.row).refresh) == vault.newest_id
    assert parse_row(found.row).details == known


async def test_a_change_is_looked_at_once_and_told(node: Any, tmp_path: Path) -> None:
    key_store = KeyStore((await node()).link.call, "t")
    one, two = (
        await opened(key_store, tmp_path / "vault.key"),
        await opened(key_store, tmp_path / "vault.key"),
    )
    journal = Journal(tmp_path / "tokens.journal")
    journal.open()
    keeper = KeySync("n0", one, key_store, journal, ManualClock())
    await keeper.look()
    await two.add_data_key(two.next_id())
    await keeper.look()
    assert one.newest_id < two.newest_id
    change = await key_store.tell()
    await keeper.look()
    known = (await key_store.nodes())["n0"]
    assert (known.newest, known.change, len(known.keks)) == (two.newest_id, change, 1)
    # A key that this node lacks: it says so all the same, and goes on.
    other = tmp_path / "other.key"
    other.write_text((tmp_path / "vault.key").read_text())
    prepend_key(other)
    ahead = await opened(key_store, other)
    await ahead.wrap_by(ahead.keyring.ids[0])
    change = await key_store.tell()
    with pytest.raises(ConfigError, match="give this node the vault key of the cluster"):
        await keeper.look()
    assert (await key_store.nodes())["n0"].change == change
    assert (
        await one.unseal(
            one.seal(b"x", Place("p", "a", "access", 1, 1)), Place("p", "a", "access", 1, 1)
        )
        == b"x"
    )
    # The newest data key, lost by a failover, comes back from whoever knows it.
    await key_store.drop([two.newest_id])
    await ahead.load()
    assert await key_store.has(two.newest_id)
    await keeper.leave()
    assert await key_store.nodes() == {}
    await journal.close()


async def test_a_node_that_was_away_while_keys_were_rotated_starts_again(
    node: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key_store, path = KeyStore((await node()).link.call, "t"), tmp_path / "vault.key"
    vault = await opened(key_store, path)
    journal = Journal(tmp_path / "tokens.journal")
    journal.open()
    raw = vault.seal(b"<html>", Place("p", "b", "raw", 1, 1))
    await journal.add_raw(QUEUE, "b", 1, 1, 5, raw, vault.wrapped_key(raw))
    row = AccountRow(
        1,
        2,
        1,
        2,
        3,
        b"o" * 8,
        b"c" * 8,
        refresh=vault.seal(b"rt", Place("p", "a", "refresh", 1, 2)),
    )
    # Others go to another key-encryption key, drop the old data key, and forget the old key.
    prepend_key(path)
    other = await opened(key_store, path)
    await other.wrap_by(other.keyring.ids[0])
    await other.add_data_key(other.next_id())
    await key_store.drop([vault.newest_id])
    path.write_text(path.read_text().split()[0] + "\n")
    back = await opened(key_store, path)
    await restore_keys(journal, back)
    assert f"data key {vault.newest_id} in this node's journal opens no more" in caplog.text
    await reseal_journal(journal, back)
    assert kept_of(journal, back, QUEUE, "b") == []
    # What waits for the store is not left behind so.
    await journal.add_answer(QUEUE, "a", 1, 1, row.pack(), (1, 2), vault.wrapped_key(row.refresh))
    with pytest.raises(ConfigError, match="give this node the vault key of the cluster"):
        await restore_keys(journal, back)
    await journal.close()
