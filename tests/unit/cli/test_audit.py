"""``tidewarden audit``: what it prints, and that it goes on to the end."""

from __future__ import annotations

import json
from typing import Any

from support.doors.command_line import Run, node, run

__all__ = ["node", "run"]  # fixtures

ENTRIES = [
    {"at_ms": 1_700_000_000_000, "node": "n0", "user": "ada", "peer": "h:1", "action": "Q.PURGE",
     "words": ["mails"], "outcome": "NOQUORUM"},
    {"at_ms": 1_700_000_001_000, "node": "n1", "user": "bob", "action": "T.GET",
     "accounts": {"p/a": 3, "p/b": 1}, "count": 9},
    {"at_ms": 1_700_000_002_000, "node": "n1", "user": "", "action": "SIGHUP",
     "words": ["users", "ada", "gone"]},
]  # fmt: skip


def pages(request: list[bytes]) -> Any:
    """One entry a page; behind the last the cursor stays."""
    at = int(request[request.index(b"AFTER") + 1]) if b"AFTER" in request else 0
    return [ENTRIES[at : at + 1], str(min(at + 1, len(ENTRIES)))]


def test_every_page_is_shown_a_line_an_entry(run: Run, node: Any) -> None:
    node.answers = {"R.AUDIT": pages}
    assert run("audit").stdout.splitlines() == [
        "2023-11-14 22:13:20 n0 ada h:1 Q.PURGE [NOQUORUM] mails",
        "2023-11-14 22:13:21 n1 bob - T.GET p/a x3 p/b (9 in all)",
        "2023-11-14 22:13:22 n1 - - SIGHUP users ada gone",
    ]
    assert [json.loads(line) for line in run("audit", "--json").stdout.splitlines()] == ENTRIES
    run("audit", "--user", "ada")
    assert node.asked[-1] == ["R.AUDIT", "AFTER", "3", "USER", "ada", "COUNT", "1000"]
