"""What PySyncObj reads and keeps."""

from __future__ import annotations

import pickle

import pysyncobj.pickle
import pytest

from tidewarden.raft import files, wire


@pytest.mark.parametrize(
    "data",
    [
        b"c__builtin__\neval\n(V1+1\ntR.",
        b"c_codecs\nencode\n(V1\nVzlib\ntR.",
        b"c__builtin__\nbytes\n(I1000000000\ntR.",
        b"cpysyncobj.syncobj\nSyncObj\n.",
        b"",
    ],
)
def test_what_the_whitelist_does_not_know_is_refused(data: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, TypeError, EOFError)):
        files.loads(data)


def test_what_the_library_sends_and_stores_is_read() -> None:
    nodes = {wire.TCPNode("127.0.0.1:1")}
    for value in (
        b"",
        b"\xff\x00",
        "ü",
        None,
        True,
        2**60,
        1.5,
        {"type": "x", "entries": [(b"a", 1, 2)]},
        nodes,
    ):
        assert files.loads(pysyncobj.pickle.dumps(value)) == value
