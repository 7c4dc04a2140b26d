"""How a provider stands with us: what an operator reads of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.tokens import harness

from tidewarden.tokens.limits.answer_counts import Silence
from tidewarden.tokens.limits.client_record import ClientRecord, Hold, Quarantine, Rate
from tidewarden.tokens.verbs.provider_status import beside, figures
from tidewarden.tokens.why.facts import client_facts

PROVIDER = harness.provider("http://user@127.0.0.1:9/token")
LAG_MS = 1000


def of(record: ClientRecord, due_ms: int = 0) -> dict[str, Any]:
    return figures(client_facts(PROVIDER, record, 50, LAG_MS), due_ms)


def test_figures_of_a_provider_that_answers() -> None:
    found = of(ClientRecord(quarantine=Quarantine(since_ms=20)), 9)
    assert found["state"] == "answers"
    assert (found["since_ms"], found["next_ms"], found["error"], found["nodes"]) == (0, 0, "", [])
    assert found["quarantined_since_ms"] == 1020


def test_figures_of_a_provider_in_trouble() -> None:
    """The times are unix; unit/tokens/test_why has every situation."""
    silences = {
        "n1": Silence(20, 40, 80, "refused", "no"),
        "n0": Silence(10, 30, 70, "tls", "bad"),
    }
    found = of(ClientRecord(silences=silences), 1060)
    assert (found["since_ms"], found["next_ms"], found["nodes"]) == (1010, 1070, ["n0", "n1"])
    assert (found["state"], found["error"], found["message"]) == ("silent", "refused", "no")
    rests = of(ClientRecord(rest_ms=80, rest_brief="HTTP 429"), 1060)
    assert (rests["since_ms"], rests["next_ms"], rests["held_until_ms"]) == (0, 1080, 1080)
    slow = of(ClientRecord(rate=Rate(2.5, 3.0, 30)), 1060)
    assert (slow["since_ms"], slow["next_ms"], slow["held_until_ms"]) == (1030, 1060, 0)
    assert slow["message"] == "2.5 requests a second are answered well"


@pytest.mark.parametrize(
    ("state", "error", "next_ms", "expected"),
    [
        ("late", "", 40, ("unavailable", 1090)),
        ("expiring", "", 40, ("unavailable", 1090)),
        ("failing", "rejected", 40, ("rejected", 1090)),
        ("failing", "rejected", 1099, ("rejected", 1099)),
        ("fresh", "", 40, ("", 40)),
        ("dead", "invalid_grant", 0, ("invalid_grant", 0)),
    ],
)
def test_an_account_that_is_due_waits_for_its_provider(
    state: str, error: str, next_ms: int, expected: tuple[str, int]
) -> None:
    record = ClientRecord(hold=Hold("erring", 15, 90, 2, outcome="unavailable", brief="HTTP 503"))
    account = {"state": state, "error": error, "message": "", "next_ms": next_ms, "advice": ""}
    found = beside(account, of(record))
    assert (found["error"], found["next_ms"]) == expected
    assert bool(found["advice"]) == (state in ("late", "expiring"))
