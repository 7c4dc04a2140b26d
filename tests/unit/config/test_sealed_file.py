"""Sealed exports: what opens them, and that every change to one is noticed."""

from __future__ import annotations

import base64
import json

import pytest

from tidewarden.config import sealed_file
from tidewarden.config.sealed_file import (
    NotSealed,
    check_last,
    file_key,
    last_line,
    new_header,
    open_line,
    read_header,
    seal_line,
)


def test_a_line_opens_in_its_place_alone() -> None:
    header = new_header("hkdf")
    again = read_header(header.line().encode())
    key = file_key(again, b"k" * 32)
    assert key == file_key(header, b"k" * 32) != file_key(new_header("hkdf"), b"k" * 32)
    line = seal_line(key, header.id, 1, b"s3cret")
    assert b"s3cret" not in base64.b64decode(line)
    assert open_line(key, header.id, 1, line + b"\n") == b"s3cret"
    for other in (
        (key, header.id, 2, line),
        (key, b"0" * 16, 1, line),
        (file_key(header, b"x" * 32), header.id, 1, line),
        (key, header.id, 1, line[:-4]),
        (key, header.id, 1, b"!" + line[1:]),
    ):
        with pytest.raises(
            NotSealed, match="does not open: another key, another file's line, or damage"
        ):
            open_line(*other)


def test_the_last_line_says_how_many() -> None:
    key, header = b"k" * 32, new_header("hkdf")
    check_last(key, header.id, 4, last_line(key, header.id, 3))
    for number, line in (
        (3, last_line(key, header.id, 3)),
        (4, seal_line(key, header.id, 4, b"3")),
    ):
        with pytest.raises(NotSealed):
            check_last(key, header.id, number, line)


def test_a_passphrase_is_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "SCRYPT_N", 1 << 4)
    header = sealed_file.Header(b"i" * 16, "scrypt", b"s" * 16, 1 << 4)
    assert read_header(header.line().encode()) == header
    assert (
        file_key(header, b"correct horse")
        == file_key(header, b"correct horse")
        != file_key(header, b"correct hors")
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"account,refresh_token",
        b"[1]",
        b'{"tidewarden_export": 2}',
        b"{" * 100_000,
        json.dumps({"tidewarden_export": 1, "id": "00", "kdf": "hkdf", "salt": "00"}).encode(),
        json.dumps({"tidewarden_export": 1, "id": "00" * 16, "kdf": "none", "salt": "00"}).encode(),
        json.dumps(
            {"tidewarden_export": 1, "id": "00" * 16, "kdf": "scrypt", "salt": "00", "n": 1 << 30}
        ).encode(),
        json.dumps(
            {"tidewarden_export": 1, "id": "00" * 16, "kdf": "scrypt", "salt": "00", "n": 1000}
        ).encode(),
    ],
)
def test_what_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(NotSealed):
        read_header(line)
