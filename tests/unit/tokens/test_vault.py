"""The vault: records open only where they were sealed for, and only with the key of the cluster."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from pathlib import Path

import pytest
from support.inspect import wrap_key
from support.manual_clock import ManualClock

from tidewarden.config.load import Vault as VaultSettings
from tidewarden.errors import ConfigError
from tidewarden.tokens.vault.keyring import Keyring
from tidewarden.tokens.vault.vault import Place, Unsealable, Vault, open_vault

PLACE = Place("google", "alice@example.org", "refresh", 1, 7)


class Keys:
    """The store's hash of wrapped keys."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.loads = 0

    async def keys(self) -> dict[int, bytes]:
        self.loads += 1
        # As a store does, it answers later: others of this node go on meanwhile.
        await asyncio.sleep(0)
        return dict(self.stored)

    async def add(self, key_id: int, wrapped: bytes) -> bytes:
        await asyncio.sleep(0)
        return self.stored.setdefault(key_id, wrapped)

    async def rewrap(self, key_id: int, wrapped: bytes) -> None:
        self.stored[key_id] = wrapped


def ring(path: Path) -> Keyring:
    return Keyring(VaultSettings(), path, {})


async def make(keys: Keys, folder: Path, clock: ManualClock | None = None) -> Vault:
    return await open_vault(ring(folder / "vault.key"), keys, clock or ManualClock())


async def test_what_is_sealed_opens_again(tmp_path: Path) -> None:
    vault = await make(Keys(), tmp_path)
    record = vault.seal(b"1//refresh-token", PLACE)
    assert record[0] == 1
    assert len(record) == 1 + 4 + 12 + len(b"1//refresh-token") + 16
    assert b"refresh-token" not in record
    assert await vault.unseal(record, PLACE) == b"1//refresh-token"
    assert vault.seal(b"1//refresh-token", PLACE) != record  # A nonce of its own.


@pytest.mark.parametrize(
    "other",
    [
        PLACE._replace(provider="googl"),
        PLACE._replace(account="alice@example.or"),
        # The same bytes, cut elsewhere.
        PLACE._replace(provider="googlea", account="lice@example.org"),
        PLACE._replace(field="access"),
        PLACE._replace(grant=2),
        PLACE._replace(generation=8),
    ],
)
async def test_a_record_moved_elsewhere_does_not_open(tmp_path: Path, other: Place) -> None:
    vault = await make(Keys(), tmp_path)
    record = vault.seal(b"token", PLACE)
    with pytest.raises(Unsealable, match="does not open here"):
        await vault.unseal(record, other)


async def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    vault = await make(Keys(), tmp_path)
    record = vault.seal(b"token", PLACE)
    for at in range(len(record)):
        damaged = bytearray(record)
        damaged[at] ^= 1
        with pytest.raises(Unsealable):
            await vault.unseal(bytes(damaged), PLACE)
        with pytest.raises(Unsealable):
            await vault.unseal(record[:at], PLACE)


async def test_the_sealed_form_is_the_documented_one(tmp_path: Path) -> None:
    # version | key id | nonce | ciphertext | tag, associated data length-prefixed: data written
    # today is read tomorrow.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    keys = Keys()
    vault = await make(keys, tmp_path)
    record = vault.seal(b"token", PLACE)
    key_id = int.from_bytes(record[1:5], "big")
    wrapped = keys.stored[key_id]
    master = base64.b64decode((tmp_path / "vault.key").read_text())
    data_key = AESGCM(master).decrypt(
        wrapped[5:17], wrapped[17:], b"tidewarden data key" + key_id.to_bytes(4, "big")
    )
    associated = b""
    for part in (
        b"google",
        b"alice@example.org",
        b"refresh",
        (1).to_bytes(8, "big"),
        (7).to_bytes(8, "big"),
    ):
        associated += len(part).to_bytes(4, "big") + part
    assert AESGCM(data_key).decrypt(record[5:17], record[17:], associated) == b"token"


async def test_a_key_a_day_and_old_ones_go_on(tmp_path: Path) -> None:
    keys, clock = Keys(), ManualClock()
    vault = await make(keys, tmp_path, clock)
    old = vault.seal(b"token", PLACE)
    clock.step_unix(86_400_000)
    await vault.ready()
    new = vault.seal(b"token", PLACE)
    assert old[1:5] != new[1:5]
    assert await vault.unseal(old, PLACE) == await vault.unseal(new, PLACE) == b"token"
    assert len(keys.stored) == 3  # Two data keys, and the one of the fingerprints.


async def test_a_day_that_begins_amid_many_refreshes_gets_one_key(tmp_path: Path) -> None:
    """Its id is drawn by chance, so that each who made one would make another."""
    keys, clock = Keys(), ManualClock()
    vault = await make(keys, tmp_path, clock)
    clock.step_unix(86_400_000)
    before = keys.loads
    await asyncio.gather(*(vault.ready() for _ in range(200)))
    assert len(keys.stored) == 3
    assert keys.loads == before + 1


async def test_two_nodes_share_the_key_of_the_day(tmp_path: Path) -> None:
    keys = Keys()
    one, two = await make(keys, tmp_path), await make(keys, tmp_path)
    assert await two.unseal(one.seal(b"token", PLACE), PLACE) == b"token"
    assert one.fingerprint("p", "a", "token") == two.fingerprint("p", "a", "token")
    assert one.fingerprint("p", "a", "token") != one.fingerprint("p", "b", "token")


async def test_a_store_that_lost_the_key_of_the_day_never_gets_another_under_its_id(
    tmp_path: Path,
) -> None:
    """
    A failover lost the last writes, and the node that made the key is away: another node makes one.
    """
    keys = Keys()
    one = await make(keys, tmp_path)
    record = one.seal(b"token", PLACE)
    keys.stored = {0: keys.stored[0]}
    two = await make(keys, tmp_path)
    assert two.newest_id != one.newest_id
    await one.load()  # It comes back, and what the store lost with it.
    assert await one.unseal(record, PLACE) == await two.unseal(record, PLACE) == b"token"


async def test_two_keys_under_one_id_are_told_and_both_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As older versions made them; and those of two nodes' journals."""
    keys = Keys()
    one = await make(keys, tmp_path)
    record, key_id = one.seal(b"token", PLACE), one.newest_id
    lost = keys.stored.pop(key_id)
    two = await make(keys, tmp_path)
    keys.stored[key_id] = wrap_key(two, key_id, os.urandom(32), two.kek)
    await one.load()
    assert f"data key {key_id} of the store is another" in caplog.text
    assert await one.unseal(record, PLACE) == b"token"
    with pytest.raises(Unsealable):
        await two.unseal(record, PLACE)
    await two.restore(key_id, lost)
    assert await two.unseal(record, PLACE) == b"token"


async def test_a_key_made_by_another_node_since_is_fetched(tmp_path: Path) -> None:
    keys, late = Keys(), ManualClock()
    one = await make(keys, tmp_path)
    late.step_unix(86_400_000)
    two = await make(keys, tmp_path, late)
    assert await one.unseal(two.seal(b"token", PLACE), PLACE) == b"token"


async def test_the_key_file_is_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "vault.key"
    keys = Keys()
    await open_vault(ring(path), keys, ManualClock())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(base64.b64decode(path.read_text())) == 32
    before = path.read_bytes()
    await open_vault(ring(path), keys, ManualClock())
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["vault.key"]


async def test_data_without_their_key_refuse_the_start(tmp_path: Path) -> None:
    keys = Keys()
    await make(keys, tmp_path)
    (tmp_path / "vault.key").unlink()
    with pytest.raises(
        ConfigError, match="does not exist, but the store holds data sealed with a vault key"
    ):
        await make(keys, tmp_path)
    assert not (tmp_path / "vault.key").exists()


async def test_another_key_refuses_the_start(tmp_path: Path) -> None:
    keys = Keys()
    await make(keys, tmp_path)
    (tmp_path / "vault.key").write_bytes(base64.b64encode(os.urandom(32)))
    with pytest.raises(
        ConfigError, match="holds another key than the one the store's data were sealed with"
    ):
        await make(keys, tmp_path)


async def test_a_store_that_lost_a_data_key_gets_it_back(tmp_path: Path) -> None:
    keys = Keys()
    vault = await make(keys, tmp_path)
    record = vault.seal(b"token", PLACE)
    key_id, wrapped = vault.wrapped_key(record)
    del keys.stored[key_id]
    again = await open_vault(ring(tmp_path / "vault.key"), keys, _tomorrow())
    with pytest.raises(Unsealable, match="which the store does not hold"):
        await again.unseal(record, PLACE)
    await again.restore(key_id, wrapped)
    assert await again.unseal(record, PLACE) == b"token"
    assert keys.stored[key_id] == wrapped


async def test_no_key_shows_in_the_vaults_repr(tmp_path: Path) -> None:
    vault = await make(Keys(), tmp_path)
    assert base64.b64decode((tmp_path / "vault.key").read_text()).hex() not in repr(vault) + repr(
        vars(vault)
    )


def _tomorrow() -> ManualClock:
    clock = ManualClock()
    clock.step_unix(86_400_000)
    return clock
