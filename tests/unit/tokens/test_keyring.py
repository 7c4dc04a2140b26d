"""Key-encryption keys: where they come from, what is refused, and that none is shown."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from tidewarden.config.key_file import wrapping_key_id
from tidewarden.config.load import Vault
from tidewarden.errors import ConfigError
from tidewarden.tokens.vault.keyring import Keyring

ONE, TWO = b"1" * 32, b"2" * 32
TEXT = {key: base64.b64encode(key).decode() for key in (ONE, TWO)}


async def test_keys_come_from_a_file_the_environment_or_a_command(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    path.write_text(f"{TEXT[ONE]}\n{TEXT[TWO]}\n")
    for settings in (
        Vault(key_file=str(path)),
        Vault(key_env="KEYS"),
        Vault(key_command=f"cat '{path}'"),
    ):
        ring = Keyring(settings, tmp_path / "none", {"KEYS": f"{TEXT[ONE]},{TEXT[TWO]}"})
        await ring.read(make=True)
        assert ring.ids == (wrapping_key_id(ONE), wrapping_key_id(TWO))
        assert ring.key(wrapping_key_id(TWO)) == TWO
        assert TEXT[ONE] not in repr(ring) + str(vars(Vault))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "text", ["", "short", "!" * 44, base64.b64encode(b"k" * 31).decode(), f"{TEXT[ONE]}\nfoo"]
)
async def test_what_holds_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "vault.key").write_text(text)
    with pytest.raises(ConfigError, match="must hold the base64 of 32 bytes") as caught:
        await Keyring(Vault(), tmp_path / "vault.key", {}).read()
    assert not text or text not in str(caught.value)


async def test_a_file_that_is_missing_is_made_only_when_asked(tmp_path: Path) -> None:
    ring = Keyring(Vault(), tmp_path / "secrets" / "vault.key", {})
    with pytest.raises(
        ConfigError, match="does not exist, but the store holds data sealed with a vault key"
    ):
        await ring.read()
    await ring.read(make=True)
    assert stat.S_IMODE((tmp_path / "secrets" / "vault.key").stat().st_mode) == 0o600


async def test_a_command_may_print_its_keys_one_after_the_other(tmp_path: Path) -> None:
    first, second = TEXT[ONE][:20], TEXT[ONE][20:]
    command = f"sh -c 'printf {first}; sleep 0.1; echo {second}; sleep 0.1; echo {TEXT[TWO]}'"
    ring = Keyring(Vault(key_command=command), tmp_path, {})
    await ring.read()
    assert ring.ids == (wrapping_key_id(ONE), wrapping_key_id(TWO))


async def test_a_command_that_fails_is_told_by_its_name_alone(tmp_path: Path) -> None:
    for command, words in (
        ("false s3cret", "ended with status 1"),
        (f"{tmp_path}/none s3cret", "cannot be run"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            await Keyring(Vault(key_command=command), tmp_path, {}).read()
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="the environment variable NONE is not set"):
        await Keyring(Vault(key_env="NONE"), tmp_path, {}).read()


async def test_a_source_that_went_bad_leaves_what_was_known(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    path.write_text(TEXT[ONE])
    ring = Keyring(Vault(), path, {})
    await ring.read()
    path.write_text("half a ke")
    with pytest.raises(ConfigError):
        await ring.read()
    assert ring.key(wrapping_key_id(ONE)) == ONE
