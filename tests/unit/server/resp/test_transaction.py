"""The requests since MULTI are bounded."""

from __future__ import annotations

import pytest

from tidewarden.errors import TooBig
from tidewarden.server.resp.transaction import BYTES_MAX, REQUESTS_MAX, Transaction


def test_requests_are_kept_in_order() -> None:
    transaction = Transaction()
    assert transaction.add([b"PING"]) == transaction.add([b"ECHO", b"x"]) == b"+QUEUED\r\n"
    assert transaction.requests == [[b"PING"], [b"ECHO", b"x"]]
    assert not transaction.failed


def test_too_many_or_too_long() -> None:
    transaction = Transaction()
    for _ in range(REQUESTS_MAX):
        transaction.add([b"PING"])
    with pytest.raises(TooBig):
        transaction.add([b"PING"])
    with pytest.raises(TooBig):
        Transaction().add([b"ECHO", b"x" * BYTES_MAX])
