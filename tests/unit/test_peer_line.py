"""The line by which a node asks another: whatever answers at its address."""

from __future__ import annotations

import asyncio

import pytest
from support.providers.raw_provider import CONTINUE, Flood, listening

from tidewarden.peer_line import HTTP_PORT, PeerAway, PeerLine, mac_for


async def test_what_answers_without_end_is_not_heard_out() -> None:
    """For as long as an answer may take it would fill the node's memory."""
    flood = Flood(b"", CONTINUE * 2000)
    line = PeerLine("/internal/x", mac_for("a secret", b"of a test"), tls=False)
    async with listening(flood.serve) as port, asyncio.timeout(60):
        with pytest.raises(PeerAway) as caught:
            await line.ask("n1", f"127.0.0.1:{port - HTTP_PORT}", b"question")
        assert "has not answered within" not in str(caught.value), "it was left before that"
        await flood.cut_off.wait()
    await line.close()
