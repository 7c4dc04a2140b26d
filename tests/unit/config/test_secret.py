"""Secrets: shown only when asked, and the hashes by which they are known."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from tidewarden.config.load import (
    Secret,
    check_secret,
    hash_generated,
    hash_secret,
)
from tidewarden.config.secret import secret_of_file


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r} {secret!s} {[secret]}"
    assert secret == Secret("hunter2")
    assert secret != Secret("hunter3")
    assert secret != "hunter2"
    assert len({secret, Secret("hunter2")}) == 1
    assert copy.deepcopy(secret) is copy.copy(secret) is secret
    assert not Secret()
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_hashes_of_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hash_secret("hunter2")
    assert made.startswith("scrypt$16384$")
    assert check_secret("hunter2", made)
    monkeypatch.setattr("tidewarden.config.secret.SCRYPT_N", 1 << 6)  # or each would take 50 ms
    stretched = hash_secret("hunter2")
    assert stretched != hash_secret("hunter2")
    assert check_secret("hunter2", stretched)
    assert not check_secret("hunter3", stretched)
    assert check_secret("hunter2", hash_generated("hunter2"))
    assert not check_secret("hunter3", hash_generated("hunter2"))
    for make in (hash_secret, hash_generated):
        no_text = b"\xff\xed\xa0\x80".decode("utf-8", "surrogateescape")
        assert check_secret(no_text, make(no_text))
        assert not check_secret(no_text, make("hunter2"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "sha256$",
        "sha256$" + "g" * 64,
        "scrypt$3$8$1$AAAA$AAAA",
        "scrypt$1073741824$8$1$AAAA$AAAA",
        "scrypt$a$b$c$d$e",
    ],
)
def test_an_unknown_form_of_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        check_secret("x", text)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes("hu\u00e9\n".encode())
    (tmp_path / "bad").write_bytes(b"\xff")
    assert secret_of_file(f"{tmp_path}/good") == "hu\u00e9\n"
    for name, why in (
        ("none", "No such file"),
        ("", "Is a directory"),
        ("bad", "not UTF-8"),
        ("a\0b", "no path holds"),
    ):
        with pytest.raises(OSError, match=why):
            secret_of_file(f"{tmp_path}/{name}")
