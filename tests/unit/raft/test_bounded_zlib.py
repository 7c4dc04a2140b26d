"""Compressed messages have a longest length."""

from __future__ import annotations

import tracemalloc
import zlib

import pysyncobj.tcp_connection
import pytest

from tidewarden.raft import wire
from tidewarden.raft.wire import BoundedZlib


def test_what_is_within_the_bound_comes_out() -> None:
    for size in (0, 1, 65_536, wire.INFLATED_BYTES_MAX):
        assert BoundedZlib.decompress(BoundedZlib.compress(b"x" * size)) == b"x" * size


@pytest.mark.parametrize("size", [0, 1, wire.PLAIN_BYTES_MAX])
def test_short_ones_are_not_compressed_and_any_zlib_reads_them(size: int) -> None:
    packed = BoundedZlib.compress(b"x" * size, 3)
    assert len(packed) == size + 11
    assert zlib.decompress(packed) == b"x" * size


@pytest.mark.thorough
def test_a_bomb_stays_packed() -> None:
    bomb = zlib.compress(b"\0" * (64 << 20))
    assert len(bomb) < wire.FRAME_BYTES_MAX
    tracemalloc.start()
    with pytest.raises(zlib.error, match="longer than"):
        BoundedZlib.decompress(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * wire.INFLATED_BYTES_MAX


@pytest.mark.parametrize("data", [b"", b"nothing of the kind", zlib.compress(b"x" * 1000)[:-3]])
def test_what_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(zlib.error):
        BoundedZlib.decompress(data)


def test_the_library_has_no_other() -> None:
    assert pysyncobj.tcp_connection.zlib is BoundedZlib
