"""Files of key-encryption keys."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from tidewarden.config.key_file import make_file, parse_keys, prepend_key, wrapping_key_id
from tidewarden.errors import ConfigError

ONE = b"1" * 32


def test_a_fresh_key_goes_before_the_others(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    path.write_text(base64.b64encode(ONE).decode())
    made = prepend_key(path)
    assert [wrapping_key_id(key) for key in parse_keys(path.read_text(), "it")] == [
        made,
        wrapping_key_id(ONE),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["vault.key"]
    path.write_text("nonsense")
    with pytest.raises(ConfigError):
        prepend_key(path)
    assert path.read_text() == "nonsense"


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "vault.key"
    assert make_file(path)
    before = path.read_bytes()
    assert len(parse_keys(before.decode(), "it")) == 1
    assert not make_file(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["vault.key"]
