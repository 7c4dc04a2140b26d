"""Login to the console, and what may be done by it."""

from __future__ import annotations

from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.doors.doubles import SECRET
from support.doors.http_site import ALICE, Site, site
from support.providers.certificate import make

from tidewarden.server.access import users
from tidewarden.server.console.login_cookie import COOKIE, LOGIN_S

PAGE = {"Tidewarden-Console": "1", "Sec-Fetch-Site": "same-origin"}
RIGHT = {"user": "admin", "secret": SECRET}


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "FAILURE_DELAY_S", 0.01)


async def sent(subject: Site, method: str, path: str, **more: Any) -> tuple[int, Any, str]:
    """Status, body and Set-Cookie, by a client that keeps no cookies of its own."""
    url = f"http://127.0.0.1:{subject.server.port}{path}"
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, url, **more) as response,
    ):
        return response.status, await response.json(), response.headers.get("Set-Cookie", "")


async def logged_in(subject: Site) -> dict[str, str]:
    status, _, cookie = await sent(subject, "POST", "/console/login", json=RIGHT, headers=PAGE)
    assert status == 200
    return {"Cookie": f"{COOKIE}={SimpleCookie(cookie)[COOKIE].value}"}


async def test_a_right_secret_is_answered_with_a_cookie_that_no_script_reads() -> None:
    async with site(users=True) as subject:
        status, who, cookie = await sent(
            subject, "POST", "/console/login", json=RIGHT, headers=PAGE
        )
        assert (status, who["user"], who["rights"], who["open"]) == (200, "admin", ["all"], False)
        morsel = SimpleCookie(cookie)[COOKIE]
        assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "Strict", "/")
        assert int(morsel["max-age"]) == LOGIN_S
        assert SECRET not in cookie


async def test_a_wrong_secret_is_none() -> None:
    async with site(users=True) as subject:
        for body in ({**RIGHT, "secret": "wrong"}, {**RIGHT, "user": "nobody"}):
            status, answer, cookie = await sent(
                subject, "POST", "/console/login", json=body, headers=PAGE
            )
            assert (status, answer["error"], cookie) == (401, "WRONGPASS", "")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "at most 4096 bytes"),
        (b"x" * 5000, "at most 4096 bytes"),
        (b"s3cret", "cannot be read as JSON"),
        (b'{"user": "admin"}', "missing required field `secret`"),
        (b'{"secret": 5}', r"\$.secret"),
        (b'{"secret": "s3cret", "x": 1}', "unknown field `x`"),
    ],
)
async def test_rubbish_is_told_and_not_quoted(body: bytes, fault: str) -> None:
    async with site(users=True) as subject:
        status, answer, _ = await sent(subject, "POST", "/console/login", data=body, headers=PAGE)
        assert (status, answer["error"]) == (400, "BADARG")
        assert fault.replace("\\", "") in answer["message"]
        assert "s3cret" not in answer["message"]


async def test_a_login_stands_for_the_user() -> None:
    async with site(users=True, rights=("stats:mails",)) as subject:
        assert (await sent(subject, "GET", "/v1/whoami"))[0] == 401
        login = await logged_in(subject)
        status, who, _ = await sent(subject, "GET", "/v1/whoami", headers=login)
        assert (status, who["user"], who["rights"]) == (200, "admin", ["stats:mails"])
        status, answer, _ = await sent(subject, "GET", "/v1/tokens", headers=login)
        assert (status, answer["error"]) == (403, "DENIED")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Tidewarden-Console": "1"},
        {"Tidewarden-Console": "1", "Sec-Fetch-Site": "same-site"},
        {"Tidewarden-Console": "1", "Sec-Fetch-Site": "cross-site"},
        {"Tidewarden-Console": "1", "Sec-Fetch-Site": "none"},
        {"Tidewarden-Console": "1", "Origin": "null"},
        {"Tidewarden-Console": "1", "Origin": "https://evil.example"},
        {"Tidewarden-Console": "1", "Origin": "http://127.0.0.1:1"},
        {"Tidewarden-Console": "1", "Origin": "http://[::"},
        {"Tidewarden-Console": "0", "Sec-Fetch-Site": "same-origin"},
        {**PAGE, "Origin": "https://evil.example"},
    ],
)
async def test_another_site_changes_nothing_by_it(headers: dict[str, str]) -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        for method, path in (
            ("DELETE", "/v1/tokens/p/a"),
            ("POST", "/v1/tokens/p/a/refresh"),
            ("POST", "/console/login"),
            ("POST", "/console/logout"),
        ):
            status, answer, cookie = await sent(subject, method, path, headers={**login, **headers})
            assert (status, answer["error"], cookie) == (403, "DENIED", ""), path
        assert not subject.door.tokens.calls


async def test_its_own_pages_do() -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        own = f"http://127.0.0.1:{subject.server.port}"
        for headers in (PAGE, {"Tidewarden-Console": "1", "Origin": own}):
            status, _, _ = await sent(
                subject, "POST", "/v1/tokens/p/a/refresh", headers={**login, **headers}
            )
            assert status == 202


async def test_a_bearer_needs_no_page() -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        status, _, _ = await sent(
            subject, "POST", "/v1/tokens/p/a/refresh", headers={**login, **ALICE}
        )
        assert status == 202


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/tokens/p/a"),
        ("POST", "/v1/tokens:read"),
        ("GET", "/v1/answers/p/a"),
        ("PUT", "/v1/tokens/p/a"),
        ("PUT", "/v1/providers/p/settings"),
        ("POST", "/v1/cluster/backups"),
        ("GET", "/v1/cluster/backups/x"),
        ("DELETE", "/v1/cluster/backups/x"),
    ],
)
async def test_it_shows_no_secrets_and_says_of_none_where_it_goes(method: str, path: str) -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        status, answer, _ = await sent(subject, method, path, headers={**login, **PAGE})
        assert (status, answer["error"]) == (403, "DENIED")
        assert "shows no secrets" in answer["message"]
        assert not subject.door.tokens.calls


async def test_a_logout_has_the_browser_forget_it() -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        status, _, cookie = await sent(
            subject, "POST", "/console/logout", headers={**login, **PAGE}
        )
        morsel = SimpleCookie(cookie)[COOKIE]
        assert (status, morsel.value, morsel["max-age"]) == (200, "", "0")


async def test_a_logout_ends_the_login_wherever_its_cookie_went() -> None:
    async with site(users=True) as subject:
        login, other = await logged_in(subject), await logged_in(subject)
        assert login != other
        _, answer, _ = await sent(subject, "POST", "/console/logout", headers={**login, **PAGE})
        assert answer == {"logged_out": True, "everywhere": True}
        status, answer, _ = await sent(subject, "GET", "/v1/whoami", headers=login)
        assert (status, answer["error"]) == (401, "NOAUTH")
        assert (await sent(subject, "GET", "/v1/whoami", headers=other))[0] == 200
        again = await sent(subject, "POST", "/console/logout", headers={**login, **PAGE})
        assert again[0] == 200


async def test_by_tls_the_cookie_is_of_this_very_host(tmp_path: Path) -> None:
    async with site(users=True, tls=make(tmp_path)) as subject:
        url = f"https://127.0.0.1:{subject.server.port}"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            async with session.post(
                f"{url}/console/login", json=RIGHT, headers=PAGE, ssl=False
            ) as response:
                morsel = SimpleCookie(response.headers["Set-Cookie"])[f"__Host-{COOKIE}"]
                assert (morsel["secure"], morsel["path"], morsel["domain"]) == (True, "/", "")
            for name, status in ((f"__Host-{COOKIE}", 200), (COOKIE, 401)):
                headers = {"Cookie": f"{name}={morsel.value}"}
                async with session.get(f"{url}/v1/whoami", headers=headers, ssl=False) as response:
                    assert response.status == status, name


async def test_a_login_of_nobody_is_asked_for_again() -> None:
    async with site(users=True) as subject:
        status, answer, _ = await sent(
            subject, "GET", "/v1/whoami", headers={"Cookie": f"{COOKIE}=YWRtaW4.1.x"}
        )
        assert (status, answer["error"]) == (401, "NOAUTH")
        assert "Log in again" in answer["message"]


async def test_where_no_users_are_nobody_logs_in() -> None:
    async with site() as subject:
        headers = {"Cookie": f"{COOKIE}=left.over.x"}
        status, who, _ = await sent(subject, "GET", "/v1/whoami", headers=headers)
        assert (status, who["user"], who["open"]) == (200, "", True)
        assert not [right for right in who["rights"] if right.startswith("token")]
        status, answer, _ = await sent(subject, "POST", "/console/login", json=RIGHT, headers=PAGE)
        assert (status, answer["error"]) == (400, "BADARG")
