"""What is said of those who speak something else."""

from __future__ import annotations

import pytest
from support.manual_clock import ManualClock

from tidewarden.server.access.protocol_mismatch import SAID_S, ProtocolMismatch


async def test_all_are_counted_and_now_and_then_one_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    mismatches = ProtocolMismatch("RESP", clock)
    for number in range(1000):
        mismatches.met(f"10.0.0.1:{number}", "it speaks TLS")
    assert [record.getMessage() for record in caplog.records] == [
        "sent away from the RESP door: it speaks TLS"
    ]
    await clock.advance(SAID_S)
    mismatches.met("10.0.0.2:1", "it speaks no TLS")
    last = caplog.records[-1]
    assert (last.__dict__["peer"], last.__dict__["so_far"], mismatches.total) == (
        "10.0.0.2:1",
        1001,
        1001,
    )
    assert len(caplog.records) == 2
