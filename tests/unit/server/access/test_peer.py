"""Who is at the other end, and what it may use."""

from __future__ import annotations

import pytest

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Denied, NoAuth
from tidewarden.server.access.peer import (
    AUTHENTICATED,
    DEFAULT_USER,
    LIMITED,
    UNAUTHENTICATED,
    Peer,
)
from tidewarden.server.access.required_rights import every_as_user, on
from tidewarden.server.verbs.command import Command


@pytest.mark.parametrize(
    ("open_to_all", "at_first"), [(True, DEFAULT_USER), (False, UNAUTHENTICATED)]
)
def test_entering_and_leaving(open_to_all: bool, at_first: tuple[str, ...]) -> None:
    peer = Peer("127.0.0.1:5", 0.0, open_to_all=open_to_all)
    assert peer.may == at_first
    peer.enter("admin")
    assert (peer.user, peer.may) == ("admin", AUTHENTICATED)
    peer.leave()
    assert (peer.user, peer.may) == (None, at_first)


def test_who_is_kept_out_hears_why() -> None:
    command = Command("T.GET", lambda connection, request: b"", 2, 6, every_as_user("token:read"))
    with pytest.raises(NoAuth, match=r"T.GET needs a named user"):
        Peer("", 0.0, open_to_all=True).check(command, [b"T.GET"])
    with pytest.raises(NoAuth, match="Authentication required"):
        Peer("", 0.0, open_to_all=False).check(command, [b"T.GET"])


def test_rights_limit_whoever_entered_and_go_with_him() -> None:
    command = Command("Q.PUT", lambda connection, request: b"", 3, 6, on(("put",), 1))
    peer = Peer("", 0.0, open_to_all=True)
    assert command.level in peer.may
    peer.enter("ada", Rights(("put:a",)))
    assert peer.may == LIMITED
    peer.check(command, [b"Q.PUT", b"a", b""])
    with pytest.raises(Denied, match="needs the right put:b, which the user ada does not have"):
        peer.check(command, [b"Q.PUT", b"b", b""])
    with pytest.raises(BadArg, match="0 arguments"):
        peer.check(command, [b"Q.PUT"])
    peer.leave()
    assert peer.may == DEFAULT_USER
