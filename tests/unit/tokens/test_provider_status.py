"""How a provider stands with us: what an operator reads of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.tokens import harness

from tidewarden.tokens.limits.client_record import ClientRecord, Hold, Quarantine, Rate
from tidewarden.tokens.limits.evidence import Silence
from tidewarden.tokens.verbs.provider_status import beside, figures

PROVIDER = harness.provider("http://user@127.0.0.1:9/token")
LAG_MS = 1000


def of(record: ClientRecord, due_ms: int = 0) -> dict[str, Any]:
    return figures(PROVIDER, record, 50, LAG_MS, due_ms)


def test_figures_of_a_provider_that_answers() -> None:
    found = of(ClientRecord(quarantine=Quarantine(since_ms=20)), 9)
    assert found["state"] == "answers"
    assert (found["since_ms"], found["next_ms"], found["error"], found["nodes"]) == (0, 0, "", [])
    assert found["quarantined_since_ms"] == 1020


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            ClientRecord(
                silences={
                    "n1": Silence(20, 40, 80, "refused", "no"),
                    "n0": Silence(10, 30, 70, "tls", "bad"),
                }
            ),
            ("silent", 1010, 1070, "refused", ["n0", "n1"]),
        ),
        (
            ClientRecord(silences={"n1": Silence(20, 40, 0, "unavailable", "HTTP 503")}),
            ("erring", 1020, 1060, "unavailable", ["n1"]),
        ),
        (
            ClientRecord(
                hold=Hold(
                    "client",
                    15,
                    90,
                    2,
                    outcome="invalid_client",
                    brief="HTTP 401",
                    failed=5,
                    asked=6,
                )
            ),
            ("refusing", 1015, 1090, "invalid_client", []),
        ),
        (ClientRecord(rate=Rate(2.5, 3.0, 30)), ("limiting", 1030, 1060, "rate_limited", [])),
        (
            ClientRecord(rest_ms=80, rest_brief="HTTP 429"),
            ("limiting", 0, 1080, "rate_limited", []),
        ),
    ],
)
def test_figures_of_a_provider_in_trouble(record: ClientRecord, expected: tuple[Any, ...]) -> None:
    found = of(record, 1060)
    assert (
        found["state"],
        found["since_ms"],
        found["next_ms"],
        found["error"],
        found["nodes"],
    ) == expected
    assert found["advice"]


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
