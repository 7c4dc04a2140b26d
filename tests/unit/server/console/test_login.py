"""Login to the console, and what may be done by it."""

from __future__ import annotations

import re
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.doors.doubles import SECRET
from support.doors.http_site import ALICE, Site, site
from support.providers.certificate import make

from tidewarden.server.console.login_cookie import LOGIN_S
from tidewarden.server.http.authorization import ROUTES

PAGE = {"Tidewarden-Console": "1", "Sec-Fetch-Site": "same-origin"}
RIGHT = {"user": "admin", "secret": SECRET}


async def sent(subject: Site, method: str, path: str, **more: Any) -> tuple[int, Any, str]:
    """Status, body and Set-Cookie, by a client that keeps no cookies of its own."""
    url = f"http://127.0.0.1:{subject.server.port}{path}"
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, url, **more) as response,
    ):
        body = await response.json() if method != "HEAD" else None
        return response.status, body, response.headers.get("Set-Cookie", "")


async def logged_in(subject: Site) -> dict[str, str]:
    status, _, cookie = await sent(subject, "POST", "/console/login", json=RIGHT, headers=PAGE)
    assert status == 200
    (morsel,) = SimpleCookie(cookie).values()
    return {"Cookie": f"{morsel.key}={morsel.value}"}


async def test_a_right_secret_is_answered_with_a_cookie_that_no_script_reads() -> None:
    async with site(users=True) as subject:
        status, who, cookie = await sent(
            subject, "POST", "/console/login", json=RIGHT, headers=PAGE
        )
        assert (status, who["user"], who["rights"], who["open"]) == (200, "admin", ["all"], False)
        (morsel,) = SimpleCookie(cookie).values()
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


# Of the verbs of routes. None of them answers secrets, or says where secrets go. T.IMPORT, T.EXPORT
# and V.* have no routes: a new one is refused until its verb stands here.
ENOUGH_FOR = """
CLIENT L.ACQUIRE L.LIST L.PEEK L.RELEASE L.RENEW P.DELETE P.GET P.LIST PING Q.ACK Q.BURY Q.CHECK Q.CONFIG
Q.DELETE Q.DROP Q.DROPTOPIC Q.FAIL Q.HOLDERS Q.KICK Q.LINK Q.LIST Q.MOVE Q.PAUSE Q.PEEK Q.PURGE Q.PUT Q.REASONS Q.RELEASE Q.RELEASEALL
Q.RESUME Q.STATS Q.TAKE Q.TOUCH Q.UNLINK Q.UPDATE Q.WAIT R.AUDIT R.CONFIRM R.CONSUMERS R.DISCARDED R.JOIN
R.LEAVE R.RECOVER R.STATUS R.SWITCHOVER R.TAP R.TRAFFIC R.TRANSFER S.DELETE S.GET S.LIST S.NEXT S.PAUSE
S.RESUME S.RUN SESSION T.DELETE T.LIST T.PEEK T.PROVIDER T.REFRESH T.STATS T.WHY
"""


async def test_it_shows_no_secrets_and_says_of_none_where_it_goes() -> None:
    """Of no route that there is, or will be: each verb is on the list above, or refused."""
    allowed = set(ENOUGH_FOR.split())
    secret = {"T.GET", "T.MGET", "T.ANSWERS", "T.PUT", "T.CONNECT", "T.DEVICE", "P.PUT"}
    refused = [one for one in ROUTES.values() if one.verb and one.verb not in allowed]
    assert {one.verb for one in refused} == secret | {"R.BACKUP"}
    async with site(users=True) as subject:
        login = await logged_in(subject)
        for one in refused:
            path = re.sub(r"\{\w+\}", "p", one.path)
            for method in {one.method, "HEAD"} if one.method == "GET" else {one.method}:
                status, answer, _ = await sent(subject, method, path, headers={**login, **PAGE})
                assert status == 403, (method, path)
                assert method == "HEAD" or "shows no secrets" in answer["message"]
        assert not subject.door.tokens.calls


async def test_consoles_of_two_clusters_on_one_host_have_a_login_each() -> None:
    """A browser sends the cookies of a host to each of its ports, and keeps one of each name."""
    async with (
        site(users=True) as one,
        site(users=True) as other,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):

        async def asked(subject: Site, method: str, path: str) -> int:
            url = f"http://127.0.0.1:{subject.server.port}{path}"
            json = RIGHT if path == "/console/login" else None
            async with browser.request(method, url, json=json, headers=PAGE) as response:
                return response.status

        for subject in (one, other):
            assert await asked(subject, "POST", "/console/login") == 200
        for subject in (one, other):
            assert await asked(subject, "GET", "/v1/whoami") == 200
        assert await asked(one, "POST", "/console/logout") == 200
        assert await asked(one, "GET", "/v1/whoami") == 401
        assert await asked(other, "GET", "/v1/whoami") == 200


async def test_a_logout_has_the_browser_forget_it() -> None:
    async with site(users=True) as subject:
        login = await logged_in(subject)
        status, _, cookie = await sent(
            subject, "POST", "/console/logout", headers={**login, **PAGE}
        )
        (morsel,) = SimpleCookie(cookie).values()
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
                (morsel,) = SimpleCookie(response.headers["Set-Cookie"]).values()
                assert (morsel["secure"], morsel["path"], morsel["domain"]) == (True, "/", "")
            plain = morsel.key.removeprefix("__Host-")
            assert plain != morsel.key
            for name, status in ((morsel.key, 200), (plain, 401)):
                headers = {"Cookie": f"{name}={morsel.value}"}
                async with session.get(f"{url}/v1/whoami", headers=headers, ssl=False) as response:
                    assert response.status == status, name


async def test_a_login_of_nobody_is_asked_for_again() -> None:
    async with site(users=True) as subject:
        name = (await logged_in(subject))["Cookie"].partition("=")[0]
        status, answer, _ = await sent(
            subject, "GET", "/v1/whoami", headers={"Cookie": f"{name}=YWRtaW4.1.x"}
        )
        assert (status, answer["error"]) == (401, "NOAUTH")
        assert "Log in again" in answer["message"]


async def test_where_no_users_are_nobody_logs_in() -> None:
    async with site() as subject:
        headers = {"Cookie": "tidewarden=left.over.x"}
        status, who, _ = await sent(subject, "GET", "/v1/whoami", headers=headers)
        assert (status, who["user"], who["open"]) == (200, "", True)
        assert not [right for right in who["rights"] if right.startswith("token")]
        status, answer, _ = await sent(subject, "POST", "/console/login", json=RIGHT, headers=PAGE)
        assert (status, answer["error"]) == (400, "BADARG")
