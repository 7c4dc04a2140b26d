"""Who is at the other end, and what it may use."""

from __future__ import annotations

import pytest

from tidewarden.server.peer import FRIEND, GUEST, STRANGER, Peer
from tidewarden.server.verbs import Command


@pytest.mark.parametrize(("let_in", "at_first"), [(True, GUEST), (False, STRANGER)])
def test_entering_and_leaving(let_in: bool, at_first: tuple[str, ...]) -> None:
    peer = Peer("127.0.0.1:5", 0.0, let_in=let_in)
    assert peer.may == at_first
    peer.enter("admin")
    assert (peer.user, peer.may) == ("admin", FRIEND)
    peer.leave()
    assert (peer.user, peer.may) == (None, at_first)


def test_who_is_kept_out_hears_why() -> None:
    command = Command("T.GET", lambda connection, request: b"", 2, 6, needs="user")
    assert "T.GET needs a named user" in str(Peer("", 0.0, let_in=True).kept_out(command))
    assert "Authentication required" in str(Peer("", 0.0, let_in=False).kept_out(command))
