"""
An authorization server at which people consent at once, and a browser without windows.

Its codes work once, for the request that they were issued for. It answers as it is told: ``faults``
and ``script`` of the scripted provider are for its token endpoint, too.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
from aiohttp import web
from support.doors.http_app import serving_app

CLIENT_ID, CLIENT_SECRET = "c0", "cl-secret"


def query_of(address: str) -> dict[str, str]:
    """Return what the query of an address says, each name once."""
    found = parse_qs(urlsplit(address).query, keep_blank_values=True)
    assert all(len(values) == 1 for values in found.values()), address
    return {name: values[0] for name, values in found.items()}


def unsigned(claims: dict[str, Any]) -> str:
    """Return an ID token whose signature nobody could check."""
    head, body = ({"alg": "RS256"}, claims)
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in (head, body)]
    return ".".join(part.rstrip("=") for part in (*parts, "c2ln"))


def _is_client(request: web.Request) -> bool:
    basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
    return request.headers.get("Authorization") == f"Basic {basic}"


@dataclass
class ConsentingProvider:
    """Grants what it is asked for to whoever is signed in."""

    client_id: ClassVar[str] = CLIENT_ID
    client_secret: ClassVar[str] = CLIENT_SECRET

    subject: str = "ada"
    """Who is signed in."""
    scope: str | None = None
    """What is granted; None: what was asked for, and the answer does not say so."""
    issuer: str = ""
    """``iss`` of its answers; empty: they have none."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Of its ID tokens, over the right ones."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Members of each token answer, over the usual ones; None leaves one out."""
    faults: deque[Any] = field(default_factory=deque)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further members of its metadata."""
    url: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """The requests that codes were issued for and that nobody has traded."""
    forms: list[dict[str, Any]] = field(default_factory=list)
    """What its token endpoint was asked."""
    pushed: dict[str, dict[str, str]] = field(default_factory=dict)
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    """Requests for device codes by these, each with ``ended``: what is answered now."""
    interval: float = 0.05
    life_s: float = 600.0
    """Of device codes."""
    _count: int = 0

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def authorization_url(self) -> str:
        return f"{self.url}/authorize"

    def sign_in(self, location: str, **more: str) -> str:
        """
        Consent at the address that a browser was sent to; returns the one that it is sent back to.

        ``more``: further parameters of the answer.
        """
        assert location.startswith(f"{self.authorization_url}?"), location
        asked = query_of(location)
        if "request_uri" in asked:
            assert asked.keys() == {"client_id", "request_uri"}
            asked = self.pushed.pop(asked["request_uri"])
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked | {"by": self.subject}
        told = {"code": code, "state": asked["state"]}
        if self.issuer:
            told["iss"] = self.issuer
        return f"{asked['redirect_uri']}?{urlencode(told | more)}"

    async def token(self, request: web.Request) -> web.StreamResponse:
        """Answer the token endpoint."""
        form = dict(await request.post())
        self.forms.append(form)
        if self.faults:
            return await self.faults.popleft()(request, self, str(form.get("code", "")))
        asked = self.codes.pop(str(form.get("code", "")), None)
        if not _is_client(request):
            return web.json_response({"error": "invalid_client"}, status=401)
        if "device_code" in form:
            return self._of_device(str(form["device_code"]))
        if asked is None or form.get("redirect_uri") != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        if challenge := asked.get("code_challenge"):
            digest = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != challenge:
                return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(self._granted(asked))

    def _of_device(self, code: str) -> web.Response:
        asked = self.devices.get(code, {"ended": "invalid_grant"})
        if asked["ended"]:
            return web.json_response({"error": asked["ended"]}, status=400)
        del self.devices[code]
        return web.json_response(self._granted(asked))

    async def ask_device(self, request: web.Request) -> web.Response:
        """Give a code for another device, at which nobody has consented yet."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        if not _is_client(request):
            return web.json_response({"error": "invalid_client"}, status=401)
        code = secrets.token_urlsafe(16)
        self.devices[code] = form | {"ended": "authorization_pending"}
        told = {
            "device_code": code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.url}/device",
            "expires_in": self.life_s,
            "interval": self.interval,
        }
        return web.json_response(told)

    def answer_devices(self, ended: str = "") -> None:
        """Have everybody who holds a device code told this from now on; empty: they consented."""
        for asked in self.devices.values():
            asked["ended"] = ended

    def _granted(self, asked: dict[str, str]) -> dict[str, Any]:
        self._count += 1
        subject = asked.get("by", self.subject)
        answer: dict[str, Any] = {
            "access_token": f"at-{subject}-{self._count}",
            "refresh_token": f"rt-{subject}-{self._count}",
            "token_type": "Bearer",
            "expires_in": 3600,
        }
        if self.scope is not None:
            answer["scope"] = self.scope
        if "openid" in asked.get("scope", "").split():
            right = {
                "iss": self.issuer or self.url,
                "aud": CLIENT_ID,
                "sub": subject,
                "exp": int(time.time()) + 60,
                **({"nonce": asked["nonce"]} if "nonce" in asked else {}),
            }
            answer["id_token"] = unsigned(right | self.claims)
        return {name: value for name, value in (answer | self.extra).items() if value is not None}

    async def push(self, request: web.Request) -> web.Response:
        """Take a pushed request."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        if not _is_client(request):
            return web.json_response({"error": "invalid_client"}, status=401)
        uri = f"urn:ietf:params:oauth:request_uri:{secrets.token_urlsafe(8)}"
        self.pushed[uri] = form
        return web.json_response({"request_uri": uri, "expires_in": 60}, status=201)

    async def tell(self, _request: web.Request) -> web.Response:
        """Answer with its metadata."""
        return web.json_response(
            {
                "issuer": self.url,
                "token_endpoint": self.token_url,
                "authorization_endpoint": self.authorization_url,
            }
            | self.metadata
        )


@contextlib.asynccontextmanager
async def consenting_provider(**settings: Any) -> AsyncIterator[ConsentingProvider]:
    """Serve one in this loop."""
    made = ConsentingProvider(**settings)
    app = web.Application()
    app.router.add_post("/token", made.token)
    app.router.add_post("/par", made.push)
    app.router.add_post("/device", made.ask_device)
    app.router.add_get("/.well-known/oauth-authorization-server", made.tell)
    async with serving_app(app) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


class Browser:
    """
    A browser as far as cookies go, before doors that it knows by one public address.

    ``doors``: the ports behind it, asked in turn.
    """

    def __init__(self, client: aiohttp.ClientSession, address: str, *doors: int) -> None:
        self.cookies: dict[str, str] = {}
        self.attributes: dict[str, Any] = {}
        """Of the cookie that was set last."""
        self.headers: dict[str, str] = {}
        """Of the last answer."""
        self._client = client
        self._address = address
        self._doors = deque(doors)

    async def open(self, url: str) -> tuple[int, str]:
        """Open an address; returns the status, and where it leads, else what the page says."""
        assert url.startswith(f"{self._address}/"), url
        port = self._doors[0]
        self._doors.rotate(-1)
        asked = aiohttp.client.URL(
            f"http://127.0.0.1:{port}{url.removeprefix(self._address)}", encoded=True
        )
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Cookie": sent} if sent else {}
        async with self._client.get(asked, headers=headers, allow_redirects=False) as response:
            for name, cookie in response.cookies.items():
                self.attributes = {key: value for key, value in cookie.items() if value != ""}
                self.cookies[name] = cookie.value
                if cookie["max-age"] == "0":
                    del self.cookies[name]
            self.headers = dict(response.headers)
            return response.status, response.headers.get("Location") or await response.text()
