"""
Requests that carry a token of ours, to a resource that django-oauth-toolkit guards; a token is
revoked behind our back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from urllib.parse import quote

import httpx
import pytest
import requests
from support.cluster.harness import ADMIN, Cluster, cluster
from support.providers.authorization_servers import AuthorizationServer
from support.providers.provider_settings import section

from tidewarden.client import AsyncClient, Client
from tidewarden.client.auth import AccountTokens, TokenAuth
from tidewarden.client.auth.requests_auth import RequestsTokenAuth
from tidewarden.errors import NotFound

pytestmark = pytest.mark.timeout(400)


@dataclass
class Desk:
    """A cluster that keeps accounts of a provider fresh."""

    cluster: Cluster
    provider: AuthorizationServer
    client: Client
    url: str

    @property
    def resource(self) -> str:
        return f"{self.provider.base}/api/mail"

    def refreshes(self, user: str) -> int:
        """How many of this user's refreshes the provider has answered."""
        return sum(self.provider.stats()["accounts"][user]["refreshes"].values())

    def revoke(self, token: str) -> None:
        """End an access token at the provider; its refresh token goes on."""
        found = httpx.post(f"{self.provider.base}/admin/end", content=token, trust_env=False)
        assert found.json() == {"ended": 1}


@pytest.fixture(scope="module")
def desk(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    dot: Callable[..., AuthorizationServer],
) -> Iterator[Desk]:
    provider = dot(accounts=8, life=600)
    extra = section("dot", provider, rotation="single_use", margin_s=60)
    with cluster(request, tmp_path_factory.mktemp("auth"), nodes=1, extra=extra) as made:
        (node,) = made.nodes.values()
        url = f"redis://{ADMIN}:{quote(made.secret, safe='')}@127.0.0.1:{node.base_port}"
        with Client(url) as client:
            for user, refresh_token in provider.seeds:
                client.execute("T.PUT", f"dot/{user}", json.dumps({"refresh_token": refresh_token}))
                client.token(f"dot/{user}", wait_ms=30_000)
            yield Desk(made, provider, client, url)


def test_a_revoked_token_is_replaced_and_the_request_sent_once_more(desk: Desk) -> None:
    auth = TokenAuth("dot/u0", desk.client)
    before = desk.refreshes("u0")
    with httpx.Client(auth=auth, trust_env=False) as web:
        assert web.get(desk.resource).json()["user"] == "u0"
        assert desk.refreshes("u0") == before
        desk.revoke(desk.client.token("dot/u0").access_token)
        found = web.post(desk.resource, content=b"hello")
        assert (found.status_code, found.json()) == (200, {"user": "u0", "body": "hello"})
    assert desk.refreshes("u0") == before + 1


def test_many_threads_and_tasks_share_one_refresh(desk: Desk) -> None:
    before = desk.refreshes("u1")
    auth = TokenAuth("dot/u1", desk.client)
    with httpx.Client(auth=auth, trust_env=False) as web:
        assert web.get(desk.resource).status_code == 200
    desk.revoke(desk.client.token("dot/u1").access_token)

    def blocking() -> int:
        with httpx.Client(auth=TokenAuth("dot/u1", desk.client), trust_env=False) as web:
            return web.get(desk.resource, timeout=60).status_code

    async def tasks() -> list[int]:
        async with httpx.AsyncClient(auth=auth, trust_env=False, timeout=60) as web:
            found = await asyncio.gather(*(web.get(desk.resource) for _ in range(10)))
        return [response.status_code for response in found]

    with ThreadPoolExecutor(11) as threads:
        waiting = [threads.submit(blocking) for _ in range(10)]
        assert asyncio.run(tasks()) == [200] * 10
        assert [one.result() for one in waiting] == [200] * 10
    assert desk.refreshes("u1") == before + 1


async def test_an_asyncio_client_of_ones_own(desk: Desk) -> None:
    async with AsyncClient(desk.url) as client:
        auth = TokenAuth("dot/u2", client)
        async with httpx.AsyncClient(auth=auth, trust_env=False) as web:
            assert (await web.get(desk.resource)).json()["user"] == "u2"
        with (
            pytest.raises(RuntimeError, match="give TokenAuth a Client"),
            httpx.Client(auth=auth, trust_env=False) as web,
        ):
            web.get(desk.resource)


def test_a_body_that_cannot_be_sent_again_gets_the_401_and_the_next_request_the_new_token(
    desk: Desk,
) -> None:
    with httpx.Client(auth=TokenAuth("dot/u3", desk.client), trust_env=False) as web:
        assert web.get(desk.resource).status_code == 200
        desk.revoke(desk.client.token("dot/u3").access_token)
        refused = web.post(desk.resource, content=iter([b"once"]))
        assert refused.status_code == 401
        assert web.get(desk.resource).status_code == 200


def test_a_resource_that_refuses_every_token_causes_one_refresh(desk: Desk) -> None:
    before = desk.refreshes("u4")
    with httpx.Client(auth=TokenAuth("dot/u4", desk.client, scheme="Odd"), trust_env=False) as web:
        assert [web.get(desk.resource).status_code for _ in range(20)] == [401] * 20
    assert desk.refreshes("u4") == before + 1


def test_requests(desk: Desk) -> None:
    before = desk.refreshes("u5")
    with requests.Session() as web:
        web.trust_env = False
        web.auth = RequestsTokenAuth("dot/u5", desk.client)
        assert web.get(desk.resource, timeout=30).json()["user"] == "u5"
        desk.revoke(desk.client.token("dot/u5").access_token)
        file = BytesIO(b"skip, file")
        file.seek(6)
        found = web.post(desk.resource, data=file, timeout=30)
        assert (found.status_code, found.json()["body"]) == (200, "file")
        assert [one.status_code for one in found.history] == [401]
    assert desk.refreshes("u5") == before + 1


def test_a_token_is_kept_and_not_asked_for_each_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with Client(desk.url) as client:
        inner = client.inner
        token = inner.token

        async def counted(account: str, **options: bool) -> object:
            asked.append(account)
            return await token(account, **options)

        monkeypatch.setattr(inner, "token", counted)
        tokens = AccountTokens("dot/u6", client)
        assert len({tokens.get().access_token for _ in range(50)}) == 1
        assert asked == ["dot/u6"]
        with pytest.raises(NotFound):
            AccountTokens("dot/nobody", client).get()
