"""What the console's overview tells of a node's warnings."""

from __future__ import annotations

import pytest
from support.doors.http_site import FixedNode, site


async def test_each_warning_is_one_problem_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings = ["writes wait (not confirmed by n1; for 1.9 s)", "the certificate ends soon"]
    monkeypatch.setattr(FixedNode, "warnings", lambda _: warnings, raising=False)
    monkeypatch.setattr(FixedNode, "warning", lambda _: "; ".join(warnings), raising=False)
    async with site() as there:
        status, found = await there.ask("GET", "/v1/overview")
    assert status == 200
    assert [one["what"] for one in found["problems"]] == [
        "Writes wait (not confirmed by n1; for 1.9 s).",
        "The certificate ends soon.",
    ]
