"""The token routes."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from support.doors import doubles
from support.doors.http_site import serving_routes

from tidewarden.config.load import Config
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.routes.tokens import ROUTES, TokenRoutes
from tidewarden.user_limits import UserLimits

Door = doubles.Door


async def ask(tokens: Any, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """One request to the routes alone: status and body."""
    status, answer, headers = await answered(tokens, method, path, body)
    keeps = status == 200 and method == "GET" and path.startswith("/v1/tokens/")
    assert headers["Cache-Control"] == ("private, max-age=61" if keeps else "no-store")
    return status, answer


async def answered(
    tokens: Any, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, Any, Any]:
    routes = TokenRoutes(tokens, LongPolls(UserLimits(Config())))
    async with serving_routes(ROUTES, routes) as port, aiohttp.ClientSession() as session:
        url = aiohttp.client.URL(f"http://127.0.0.1:{port}{path}", encoded=True)
        async with session.request(method, url, data=body, headers=headers) as response:
            found = await response.read()
            return response.status, json.loads(found) if found else None, response.headers


@pytest.mark.parametrize(
    ("request_", "call", "status", "reply"),
    [
        ("GET /v1/tokens/p/a?min_ttl=60&wait=1.5", ("get", "p/a", 60_000, 1500), 200, None),
        ("GET /v1/tokens/p/a?max_stale=0.3", ("get", "p/a", 0, 0, 0, 300), 200, None),
        ("GET /v1/tokens/p/a?min_ttl=1e9", ("get", "p/a", 10**12, 0), 200, None),
        ("GET /v1/tokens/p/a%2Fb%40c%3Ad", ("get", "p/a/b@c:d", 0, 0), 200, None),
        (
            "GET /v1/tokens/p/auth0%7Co%27b%C3%BC%3F%23%25",
            ("get", "p/auth0|o'bü?#%", 0, 0),
            200,
            None,
        ),
        ("GET /v1/tokens/p/a/b@c:d", ("get", "p/a/b@c:d", 0, 0), 200, None),
        ("GET /v1/tokens/p/%25%C3%A4", ("get", "p/%ä", 0, 0), 200, None),
        ("GET /v1/tokens/p/a/refresh", ("get", "p/a/refresh", 0, 0), 200, None),
        ("POST /v1/tokens/p/a/refresh", ("refresh", "p/a"), 202, {"refresh": "queued"}),
        (
            "POST /v1/tokens/p/a/device",
            ("device", "p/a", "", None, ""),
            200,
            {
                "user_code": "WDJB-MJHT",
                "verification_uri": "https://p.example/device",
                "verification_uri_complete": "",
                "until_ms": 2**41,
            },
        ),
        (
            "POST /v1/tokens/p/a%2Fb/connect",
            ("connect", "p/a/b", "", "", None, ""),
            200,
            {"url": "https://auth.example.com/v1/connect/p/a?link=x", "until_ms": 2**41},
        ),
        (
            "POST /v1/tokens/p/a/refresh?generation=7",
            ("refresh", "p/a", 7),
            202,
            {"refresh": "queued"},
        ),
        ("GET /v1/tokens/p/a?newer=7&wait=1", ("get", "p/a", 0, 1000, 7), 200, None),
        ("POST /v1/tokens/p/a%2Fb/refresh", ("refresh", "p/a/b"), 202, {"refresh": "queued"}),
        ("GET /v1/accounts/p/a%2Fb", ("peek", "p/a/b"), 200, {"account": "p/a/b", "state": "dead"}),
        ("GET /v1/answers/p/a%2Fb", ("answers", "p/a/b"), 200, None),
        ("GET /v1/accounts/p/a%2Fb/why", ("why", "p/a/b"), 200, None),
        ("GET /v1/accounts/p/a%2Fwhy", ("peek", "p/a/why"), 200, None),
        ("GET /v1/accounts/p/why", ("peek", "p/why"), 200, None),
        ("GET /v1/providers/p/why", ("why", "p"), 200, None),
        ("GET /v1/accounts/p/nobody/why", ("why", "p/nobody"), 404, None),
        ("DELETE /v1/tokens/p/a", ("delete", "p/a"), 200, {"deleted": True}),
        (
            "GET /v1/tokens?provider=p&state=Dead&count=5&after=c",
            ("list", "p", "dead", 5, "c"),
            200,
            None,
        ),
        (
            "GET /v1/tokens",
            ("list", "", "", 100, ""),
            200,
            {"accounts": [{"account": "p/a", "state": "fresh"}], "after": ""},
        ),
    ],
)
async def test_what_reaches_the_tokens(
    request_: str, call: tuple[Any, ...], status: int, reply: Any
) -> None:
    tokens = doubles.RecordingTokens()
    answer = await ask(tokens, *request_.split(" "))
    assert answer[0] == status
    assert tokens.calls == [call]
    if reply is not None:
        assert answer[1] == reply


async def test_a_token() -> None:
    assert await ask(doubles.RecordingTokens(), "GET", "/v1/tokens/p/a") == (
        200,
        {
            "access_token": "at-1",
            "token_type": "Bearer",
            "expires_at_ms": 2**41,
            "generation": 4,
            "state": "fresh",
            "extras": {},
        },
    )


async def test_a_token_with_what_else_its_provider_said() -> None:
    tokens = doubles.RecordingTokens()
    tokens.extras = {"instance_url": "https://x", "org.id": 7}
    _, answer = await ask(tokens, "GET", "/v1/tokens/p/a")
    assert answer["extras"] == {"instance_url": "https://x", "org.id": 7}
    _, many = await ask(tokens, "POST", "/v1/tokens:read", b'{"accounts": ["p/a"]}')
    assert many["tokens"][0]["extras"] == answer["extras"]


async def test_an_answer_that_is_no_text_comes_in_base64() -> None:
    found = {"node": "n1", "at_ms": 5, "grant": 1, "generation": 2, "current": True}
    assert await ask(doubles.RecordingTokens(), "GET", "/v1/answers/p/a") == (
        200,
        {"answers": [found | {"body": "<p>"}, found | {"body_base64": "/w=="}], "silent": ["n2"]},
    )


async def test_a_token_that_the_reader_has_already() -> None:
    tokens = doubles.RecordingTokens()
    status, _, headers = await answered(tokens, "GET", "/v1/tokens/p/a")
    assert (status, headers["ETag"], headers["Vary"]) == (200, '"2.4.fresh"', "Authorization")
    for tag, expected in (
        ('"2.4.fresh"', 304),
        ('"x", W/"2.4.fresh"', 304),
        ('"2.3.fresh"', 200),
        ("", 200),
    ):
        status, body, headers = await answered(
            tokens, "GET", "/v1/tokens/p/a", headers={"If-None-Match": tag}
        )
        assert (status, body is None) == (expected, expected == 304)
        assert (headers["ETag"], headers["Cache-Control"]) == ('"2.4.fresh"', "private, max-age=61")


async def test_many_tokens_at_once() -> None:
    tokens = doubles.RecordingTokens()
    body = b'{"accounts": ["p/a", "p/nobody"], "min_ttl": 60, "wait": 1.5, "max_stale": 2}'
    status, answer = await ask(tokens, "POST", "/v1/tokens:read", body)
    assert status == 200
    assert tokens.calls == [("get_many", ["p/a", "p/nobody"], 60_000, 1500, 2000)]
    one, two = answer["tokens"]
    assert (one["account"], one["access_token"], one["keep_ms"]) == ("p/a", "at-1", 61_900)
    assert two == {
        "account": "p/nobody",
        "error": "NOTFOUND",
        "message": "there is no such account",
    }
    for wrong in (
        b"{}",
        b'{"accounts": []}',
        b'{"accounts": "p/a"}',
        b'{"accounts": [1]}',
        b'{"accounts": ["noslash"]}',
        b'{"accounts": ["p/a"], "ttl": 1}',
        b'{"accounts": ["p/a"], "wait": -1}',
        b'{"accounts": ["p/a"], "wait": true}',
        b'{"accounts": ["p/a"], "wait": "1"}',
        b'{"accounts": ["p/a"], "wait": 1e300}',
        b'{"accounts": [' + b'"p/a",' * 1000 + b'"p/a"]}',
    ):
        status, answer = await ask(doubles.RecordingTokens(), "POST", "/v1/tokens:read", wrong)
        assert (status, answer["error"]) == (400, "BADARG")


async def test_put() -> None:
    tokens = doubles.RecordingTokens()
    assert await ask(tokens, "PUT", "/v1/tokens/p/a", b'{"refresh_token": "r"}') == (
        200,
        {"generation": 5, "change": "new", "state": "fresh"},
    )
    assert tokens.calls == [("put", "p/a", {"refresh_token": "r"})]
    await ask(tokens, "PUT", "/v1/tokens/p/a?keep=true", b'{"refresh_token": "r"}')
    await ask(tokens, "PUT", "/v1/tokens/p/a?keep=false", b'{"refresh_token": "r"}')
    assert tokens.calls[1:] == [
        ("put", "p/a", {"refresh_token": "r"}, "keep"),
        ("put", "p/a", {"refresh_token": "r"}),
    ]
    for wrong in ("keep=yes", "keep", "KEEP=true"):
        status, answer = await ask(
            tokens, "PUT", f"/v1/tokens/p/a?{wrong}", b'{"refresh_token": "r"}'
        )
        assert (status, answer["error"]) == (400, "BADARG")


@pytest.mark.parametrize(
    ("request_", "status", "word"),
    [
        ("GET /v1/tokens/p/nobody", 404, "NOTFOUND"),
        ("DELETE /v1/tokens/p/nobody", 404, "NOTFOUND"),
        ("GET /v1/tokens/p/a?min_ttl=-5", 400, "BADARG"),
        ("GET /v1/tokens/p/a?min_ttl=1e10", 400, "BADARG"),
        ("GET /v1/tokens/p/a?min_ttl=inf", 400, "BADARG"),
        ("GET /v1/tokens/p/a?min_ttl=nan", 400, "BADARG"),
        ("GET /v1/tokens/p/a?min_ttl=5&min_ttl=6", 400, "BADARG"),
        ("GET /v1/tokens/p/a?minttl=5", 400, "BADARG"),
        ("GET /v1/tokens?count=many", 400, "BADARG"),
        ("PUT /v1/tokens/p/a", 400, "BADARG"),
        ("GET /v1/tokens/p/%FF", 400, "BADARG"),
    ],
)
async def test_wrong_input(request_: str, status: int, word: str) -> None:
    answer = await ask(doubles.RecordingTokens(), *request_.split(" "))
    assert (answer[0], answer[1]["error"]) == (status, word)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"refresh_token": "s3cret', b"\xff"])
async def test_a_body_that_is_no_account_is_not_quoted(body: bytes) -> None:
    tokens = doubles.RecordingTokens()
    status, answer = await ask(tokens, "PUT", "/v1/tokens/p/a", body)
    assert (status, answer["error"]) == (400, "BADARG")
    assert "s3cret" not in answer["message"]
    assert not tokens.calls


@pytest.mark.parametrize("action", ["release", "probe", "quarantine"])
async def test_a_provider_is_steered_and_its_story_answered(action: str) -> None:
    tokens = doubles.RecordingTokens()
    status, answer = await ask(tokens, "POST", f"/v1/providers/p/{action}")
    assert (status, answer["name"]) == (200, "p")
    assert tokens.calls == [(action, "p"), ("why", "p")]
    for wrong, expected in ((f"p%2Fa/{action}", 400), (f"p/{action}?x=1", 400)):
        tokens = doubles.RecordingTokens()
        assert (await answered(tokens, "POST", f"/v1/providers/{wrong}"))[0] == expected, wrong
        assert not tokens.calls
