"""Where others are told to reach a node that listens at every address of its host."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.config.load import Config, Node, Store
from tidewarden.node.advertised_address import own_host, told_address


@pytest.mark.parametrize(
    ("at", "host"),
    [
        ("redis://127.0.0.1:6379", "127.0.0.1"),
        ("127.0.0.2:6379", "127.0.0.1"),
        ("unix:///tmp/store.sock", ""),
        ("unix:///tmp/store.sock redis://127.0.0.1", "127.0.0.1"),
        ("redis://[oops", ""),
        ("", ""),
    ],
)
async def test_the_own_address_on_the_way_to_the_store(at: str, host: str) -> None:
    assert await own_host(at) in ({host, "127.0.0.2"} if host else {""})


async def test_what_is_set_comes_first_and_nothing_is_said_in_the_log(caplog: Any) -> None:
    own = Store(url="redis://127.0.0.1:6379")
    for node, at, told in (
        (Node(host="0.0.0.0", advertise="n0.example.org"), "", "n0.example.org:7420"),
        (Node(host="10.0.0.5"), "", "10.0.0.5:7420"),
        (Node(host="0.0.0.0", base_port=7500), "redis://127.0.0.1:6379", "127.0.0.1:7500"),
    ):
        assert await told_address(Config(node=node, store=own), at) == told
        assert not caplog.messages
    # its store is nobody else's
    assert await told_address(Config(node=Node(host="::")), "unix:///x") == ""
    assert not caplog.messages
    assert await told_address(Config(node=Node(host="::"), store=own), "unix:///x") == ""
    assert "set node.advertise" in caplog.text
