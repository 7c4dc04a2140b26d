"""The test providers themselves, by plain HTTP: what every token test later relies on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.timeout(400)  # the first run may have to install oidc-provider


@pytest.fixture(params=["dot", "oidc"], scope="module")
def provider(request: pytest.FixtureRequest) -> Any:
    """
    Each provider in its strictest form: single use, no grace. Each test has accounts of its own.
    """
    factory: Callable[..., Any] = request.getfixturevalue(request.param)
    return factory(accounts=12, life=60)


def since(before: dict[str, Any], provider: Any, *names: str) -> tuple[int, ...]:
    """How much its counters have grown."""
    now = provider.stats()
    return tuple(now[name] - before[name] for name in names)


def test_rotation_reuse_and_their_counters(provider: Any) -> None:
    (account, first), *_ = provider.seeds
    before = provider.stats()
    answer = provider.refresh(first)
    assert answer.status_code == 200, answer.text
    pair = answer.json()
    assert pair["refresh_token"] != first
    assert (pair["token_type"].lower(), pair["expires_in"]) == ("bearer", 60)
    again = provider.refresh(first)
    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
    stats = provider.stats()
    assert stats["accounts"][account]["requests"] == {"0": 2}
    assert stats["accounts"][account]["refreshes"] == {"0": 1}
    assert stats["accounts"][account]["generation"] == 1
    assert since(before, provider, "requests", "refreshes", "reuse") == (2, 1, 1)
    grown = {
        answer: count - before["answers"].get(answer, 0)
        for answer, count in stats["answers"].items()
    }
    assert grown == {"200": 1, "400 invalid_grant": 1} | dict.fromkeys(
        before["answers"].keys() - {"200", "400 invalid_grant"}, 0
    )


def test_five_at_once_get_one_pair(provider: Any) -> None:
    _, token = provider.seeds[1]
    with ThreadPoolExecutor(5) as pool:
        codes = sorted(answer.status_code for answer in pool.map(provider.refresh, [token] * 5))
    assert codes == [200, 400, 400, 400, 400]


def test_a_wrong_secret_is_the_clients_fault(provider: Any) -> None:
    before = provider.stats()
    answer = provider.refresh(provider.seeds[2][1], secret="wrong")
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert since(before, provider, "live") == (0,)


def test_a_secret_that_is_not_form_encoded_is_refused(provider: Any) -> None:
    """RFC 6749 2.3.1: without it `%`, `+`, `:` and `/` in a secret go wrong."""
    form = {"grant_type": "refresh_token", "refresh_token": provider.seeds[3][1]}
    with httpx.Client(trust_env=False, verify=False) as client:
        answer = client.post(
            provider.token_url, data=form, auth=(provider.client_id, provider.client_secret)
        )
    assert answer.status_code in (400, 401)


def test_a_lost_answer_has_rotated_the_token(provider: Any) -> None:
    """The case of the unknown outcome: processed, and the client never hears."""
    account, token = provider.seeds[4]
    before = provider.stats()
    provider.fault("drop", times=1)
    with pytest.raises(httpx.RemoteProtocolError):
        provider.refresh(token)
    assert provider.refresh(token).json()["error"] == "invalid_grant"
    assert provider.stats()["accounts"][account]["refreshes"] == {"0": 1}
    assert since(before, provider, "faults") == (1,)


def test_faults_touch_no_grant(provider: Any) -> None:
    token = provider.seeds[5][1]
    before = provider.stats()
    provider.fault("status", retry_after=7)
    answer = provider.refresh(token)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
    provider.fault("status", status=429)
    assert provider.refresh(token).status_code == 429
    provider.fault("html")
    answer = provider.refresh(token)
    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (
        200,
        "text/html",
    )
    provider.fault("delay", delay_ms=300, every=2)
    assert provider.refresh(token).status_code == 200
    started = time.monotonic()
    assert provider.refresh(provider.seeds[6][1]).status_code == 200
    assert time.monotonic() - started >= 0.29  # Node's timers may be a millisecond early.
    provider.fault()
    assert provider.refresh(provider.seeds[7][1]).status_code == 200
    assert since(before, provider, "live") == (0,)


def test_reuse_revokes_the_grant_at_oidc(oidc: Any) -> None:
    server = oidc(accounts=2)
    _, token = server.seeds[0]
    pair = server.refresh(token).json()
    assert server.refresh(token).status_code == 400
    assert server.refresh(pair["refresh_token"]).json()["error"] == "invalid_grant"
    assert server.stats()["live"] == 1


def test_grace_gives_the_same_pair_again_at_dot(dot: Any) -> None:
    server = dot(accounts=2, grace=60)
    account, token = server.seeds[0]
    first, second = server.refresh(token).json(), server.refresh(token).json()
    assert first["refresh_token"] == second["refresh_token"]
    stats = server.stats()
    assert stats["accounts"][account]["refreshes"] == {"0": 2}
    assert (stats["reuse"], stats["live"]) == (1, 2)
    assert server.refresh(first["refresh_token"]).status_code == 200


def test_family_revokes_the_grant_at_dot(dot: Any) -> None:
    server = dot(accounts=2, family=True)
    _, token = server.seeds[0]
    pair = server.refresh(token).json()
    assert server.refresh(token).status_code == 400
    assert server.refresh(pair["refresh_token"]).json()["error"] == "invalid_grant"
    assert server.stats()["live"] == 1
    server.stop()  # as its fixture does
    assert server.process.returncode == 0
