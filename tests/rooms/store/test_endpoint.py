"""Where a link leads to, while that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.store.servers import StoreServer

from tidewarden.errors import BadArg, StoreDown
from tidewarden.store import endpoint
from tidewarden.store.connect import open_transport
from tidewarden.store.endpoint import Endpoint, server_of


class OneServer:
    """Knows one primary."""

    name = "the test"
    fault, alone = "", False

    def __init__(self, url: str) -> None:
        self.url = url

    def follow(self, moved: Callable[[str], None]) -> None:
        pass

    async def forget(self, moved: Callable[[str], None]) -> None:
        pass

    async def find(self) -> str:
        return self.url


class Listener(asyncio.Protocol):
    """Counts the ends of connections it was told of."""

    ends = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends += 1


async def test_the_end_of_a_connection_that_was_given_up_is_told_to_nobody(
    valkey: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the next one was made, and was taken for that one's end, again and again."""
    way, listener = Endpoint(valkey.url, OneServer(valkey.url), "store"), Listener()

    async def opened(*args: Any, **options: Any) -> Any:
        found = await open_transport(*args, **options)
        way.leads_to("unix:///elsewhere")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(endpoint, "open_transport", opened)
        with pytest.raises(StoreDown, match="another primary"):
            await way.open("first", listener)
    transport, _ = await way.open("second", listener)
    assert listener.ends == 0
    transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)
    assert listener.ends == 1


def test_another_way_to_a_server_is_told_from_another_server() -> None:
    straight = "rediss://default:secret@10.0.0.1:7423?ssl_ca_certs=/ca.pem"
    assert server_of(straight) == server_of(f"{straight}&by=40001") == "rediss://10.0.0.1:7423"
    assert server_of(straight) != server_of(straight.replace("10.0.0.1", "10.0.0.2"))
    assert server_of("unix://default:secret@/run/store/socket") == "unix:///run/store/socket"


def test_a_url_that_was_found_may_lead_another_way() -> None:
    """A node that starts tries the primary's first write by a link to one address."""
    Endpoint("redis://10.0.0.1:7423?by=40001", None, "primary").check()
    with pytest.raises(BadArg, match="socktimeout"):
        Endpoint("redis://10.0.0.1:7423?by=40001&socktimeout=3", None, "primary").check()
