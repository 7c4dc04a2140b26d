"""
Metadata: where they are looked for, what is refused in them; a real server's are read in
tests/live/tokens/provider/test_clients.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.manual_clock import ManualClock

from tidewarden.config.load import Provider
from tidewarden.config.placeholders import filled
from tidewarden.tokens.provider.discovery import (
    FRESH_S,
    RETRY_S,
    ConsentEndpoints,
    Discovery,
    NotFoundError,
    addresses,
    read_consent,
    read_metadata,
    read_revocation,
)

ISSUER = "https://as.example/tenant"
GOOD = {"issuer": ISSUER, "token_endpoint": "https://as.example/t"}


def provider(**settings: Any) -> Provider:
    return Provider(name="p", issuer=ISSUER, client_id="c", **settings)


class Session:
    """Asks ``answer`` for the status and the JSON of each address."""

    def __init__(self, answer: Callable[[str], Awaitable[tuple[int, Any]]]) -> None:
        self.answer = answer

    @contextlib.asynccontextmanager
    async def get(self, address: str, *, allow_redirects: bool) -> AsyncIterator[Any]:
        assert not allow_redirects
        status, found = await self.answer(address)

        async def chunks() -> AsyncIterator[bytes]:
            yield json.dumps(found).encode()

        yield SimpleNamespace(status=status, content=SimpleNamespace(iter_any=chunks))


def test_where_people_consent_is_read_as_far_as_it_can_be_used() -> None:
    told = {
        "authorization_endpoint": "https://as.example/a?x=1",
        "pushed_authorization_request_endpoint": "https://as.example/par",
        "authorization_response_iss_parameter_supported": True,
        "device_authorization_endpoint": "https://as.example/d",
    }
    found = read_consent(provider(), json.dumps(GOOD | told).encode())
    places = ("https://as.example/a?x=1", "https://as.example/par")
    assert found == ConsentEndpoints(*places, True, "https://as.example/d")
    for wrong in (7, None, "http://as.example/a", "javascript:x", "https://as.example/#a"):
        odd = dict.fromkeys(told, wrong)
        assert read_consent(provider(), json.dumps(GOOD | odd).encode()) == ConsentEndpoints()
    settings = {"issuer": "https://{t}.as.example", "account_parameters": {"t": "[a-z]+"}}
    own = filled(Provider(name="p", client_id="c", **settings), {"t": "x"})
    elsewhere = json.dumps(told).encode()
    assert read_consent(own, elsewhere) == ConsentEndpoints(says_issuer=True)


async def test_settings_say_where_people_consent_before_metadata_do() -> None:
    async def answer(_: str) -> tuple[int, Any]:
        return 200, GOOD

    session: Any = Session(answer)
    looking = Discovery(ManualClock())
    assert await looking.consent(provider(), session) == ConsentEndpoints()
    own = provider(authorization_url="https://as.example/own", par_url="https://as.example/par")
    found = await looking.consent(own, session)
    assert found == ConsentEndpoints("https://as.example/own", "https://as.example/par")


def test_the_well_known_part_goes_between_host_and_path() -> None:
    assert list(addresses(ISSUER + "/")) == [
        "https://as.example/.well-known/oauth-authorization-server/tenant",
        "https://as.example/tenant/.well-known/openid-configuration",
    ]


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (b"<html>", "no JSON object"),
        (b"[1]", "no JSON object"),
        ({**GOOD, "issuer": "https://as.example"}, "of another issuer"),
        ({"issuer": ISSUER}, "name no token_endpoint"),
        ({**GOOD, "token_endpoint": "ftp://x"}, "name no token_endpoint"),
        ({**GOOD, "token_endpoint": "http://as.example/t"}, "is not encrypted"),
    ],
)
def test_metadata_that_will_not_do(found: Any, fault: str) -> None:
    with pytest.raises(NotFoundError, match=fault):
        read_metadata(provider(), found if isinstance(found, bytes) else json.dumps(found).encode())


def test_a_client_with_a_certificate_is_sent_where_those_go() -> None:
    raw = json.dumps(
        {**GOOD, "mtls_endpoint_aliases": {"token_endpoint": "https://mtls.as.example/t"}}
    ).encode()
    assert read_metadata(provider(), raw) == "https://as.example/t"
    assert read_metadata(provider(tls_cert="c", tls_key="k"), raw) == "https://mtls.as.example/t"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://as.example/r", "https://as.example/r"),
        ("http://as.example/r", ""),
        ("http://127.0.0.1/r", ""),
        ("ftp://as.example/r", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_where_tokens_are_revoked(url: Any, found: str) -> None:
    assert (
        read_revocation(provider(), json.dumps({**GOOD, "revocation_endpoint": url}).encode())
        == found
    )


async def test_it_is_asked_once_an_hour_and_goes_on_with_what_it_knew() -> None:
    asked: list[str] = []
    status = 200

    async def answer(address: str) -> tuple[int, Any]:
        asked.append(address)
        return 404 if "oauth-auth" in address else status, GOOD

    clock = ManualClock()
    discovery, session = Discovery(clock), Session(answer)
    for _ in range(3):
        assert await discovery.endpoint(provider(), session) == "https://as.example/t"
    assert len(asked) == 2  # One place, then the other.
    status = 503
    await clock.advance(FRESH_S)
    assert await discovery.endpoint(provider(), session) == "https://as.example/t"
    assert await discovery.endpoint(provider(), session) == "https://as.example/t"
    assert len(asked) == 4
    other = Discovery(clock)
    for _ in range(2):
        with pytest.raises(
            NotFoundError, match=r"HTTP 404; /tenant/.well-known/openid-configuration: HTTP 503"
        ):
            await other.endpoint(provider(), session)
    assert len(asked) == 6
    status = 200
    await clock.advance(RETRY_S)
    assert await other.endpoint(provider(), session) == "https://as.example/t"
    elsewhere = Provider(name="q", token_url="https://q/t")
    assert await other.endpoint(elsewhere, session) == "https://q/t"


@pytest.mark.thorough
async def test_metadata_that_hang_hold_up_no_refresh_to_an_endpoint_that_is_known() -> None:
    hanging = False

    async def answer(_address: str) -> tuple[int, Any]:
        if hanging:
            await asyncio.get_running_loop().create_future()
        return 200, GOOD

    clock = ManualClock()
    discovery, session = Discovery(clock), Session(answer)
    slow = provider(timeout_s=4.0)
    assert await discovery.endpoint(slow, session) == "https://as.example/t"
    hanging = True
    await clock.advance(FRESH_S)
    async with asyncio.timeout(slow.timeout_s):  # As the refresh has it.
        first, second = await asyncio.gather(
            discovery.endpoint(slow, session), discovery.endpoint(slow, session)
        )
    assert first == second == "https://as.example/t"
    other = Discovery(clock)
    with pytest.raises(NotFoundError, match="no answer"):
        await other.endpoint(slow, session)


OWN = Provider(
    name="p",
    issuer="https://{tenant}.as.example",
    client_id="c",
    account_parameters={"tenant": "[a-z]+"},
)


@pytest.mark.parametrize(
    "url", ["https://b.as.example/t", "https://evil.example/t", "https://a.as.example:444/t"]
)
def test_an_accounts_own_issuer_names_no_address_of_another_host(url: str) -> None:
    its = filled(OWN, {"tenant": "a"})
    raw = {
        "issuer": its.issuer,
        "token_endpoint": "https://a.as.example/t",
        "revocation_endpoint": url,
    }
    assert read_metadata(its, json.dumps(raw).encode()) == "https://a.as.example/t"
    assert read_revocation(its, json.dumps(raw).encode()) == ""
    with pytest.raises(NotFoundError, match="at another host than the issuer"):
        read_metadata(its, json.dumps(raw | {"token_endpoint": url}).encode())


async def test_each_account_is_asked_about_at_its_own_issuer() -> None:
    async def answer(address: str) -> tuple[int, Any]:
        issuer = f"https://{urlsplit(address).netloc}"
        return 200, {"issuer": issuer, "token_endpoint": f"{issuer}/t"}

    discovery, session = Discovery(ManualClock()), Session(answer)
    for tenant in ("a", "b", "a"):
        its = filled(OWN, {"tenant": tenant})
        assert await discovery.endpoint(its, session) == f"https://{tenant}.as.example/t"
