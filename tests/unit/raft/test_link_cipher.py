"""Frames of Raft's links are sealed as Fernet seals them, and nothing else is opened."""

from __future__ import annotations

import base64

import pysyncobj.syncobj
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pysyncobj.encryptor import getEncryptor

from tidewarden.raft.pysync import InvalidFrame, LinkCipher

OURS, THEIRS = LinkCipher("a password"), getEncryptor("a password")


@given(data=st.binary(max_size=100), at=st.integers(0, 2**40))
def test_fernet_opens_what_it_seals_and_it_opens_what_fernet_seals(data: bytes, at: int) -> None:
    frame = OURS.encrypt_at_time(data, at)
    assert (THEIRS.extract_timestamp(frame), THEIRS.decrypt(frame)) == (at, data)
    frame = THEIRS.encrypt_at_time(data, at)
    assert (OURS.extract_timestamp(frame), OURS.decrypt(frame)) == (at, data)


def test_what_was_changed_anywhere_is_not_opened() -> None:
    cipher = OURS
    whole = base64.urlsafe_b64decode(cipher.encrypt_at_time(b"something", 7))
    for place in range(len(whole)):
        changed = whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :]
        with pytest.raises(InvalidFrame):
            cipher.decrypt(base64.urlsafe_b64encode(changed))
    for size in range(len(whole)):
        with pytest.raises(InvalidFrame):
            cipher.extract_timestamp(base64.urlsafe_b64encode(whole[:size]))


def test_what_was_opened_last_is_no_answer_for_another_frame() -> None:
    cipher = OURS
    good = cipher.encrypt_at_time(b"something", 7)
    assert cipher.decrypt(good) == b"something"
    foreign = LinkCipher("another").encrypt_at_time(b"other", 8)
    for frame in (foreign, b"", b"nothing of the kind", b"\xff" * 80):
        with pytest.raises(InvalidFrame):
            cipher.decrypt(frame)
        assert cipher.decrypt(good) == b"something"


def test_the_library_has_no_other() -> None:
    assert pysyncobj.syncobj.getEncryptor is LinkCipher
