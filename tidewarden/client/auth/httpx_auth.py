"""
Authenticates requests of httpx with the access token of an account.

``httpx.Client(auth=TokenAuth("shop/42"))``, or one of httpx's ``AsyncClient``: each request gets
the account's token, which is kept as long as the cluster allows. When a resource answers 401, the
account is refreshed, once for all of the process that wait for it, and the request is sent once
more (RFC 6750, 3.1). httpx comes with the extra ``tidewarden[httpx]``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

try:
    import httpx
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "TokenAuth needs httpx: pip install 'tidewarden[httpx]'", name="httpx"
    ) from None

from tidewarden.client.blocking import Client
from tidewarden.client.client import AsyncClient
from tidewarden.client.replies import Token

from .account_tokens import MIN_TTL_MS, UNAUTHORIZED, WAIT_MS, AccountTokens, authorization


class TokenAuth(httpx.Auth):
    """
    Authenticates the requests of httpx clients as one account; see :class:`AccountTokens`.

    A request is repeated after a 401 only where its body can be sent again: one that streams from a
    generator cannot, and its caller gets the 401.

    Args:
        account: ``provider/account``.
        client, min_ttl_ms, wait_ms: as of :class:`AccountTokens`.
        scheme: the word before the token; None: the token's own type.

    Raises: in requests, what :meth:`Client.token` raises: NotFound, NoAuth, Timeout, Unreachable.
    """

    def __init__(
        self,
        account: str,
        client: Client | AsyncClient | None = None,
        *,
        min_ttl_ms: int = MIN_TTL_MS,
        wait_ms: int = WAIT_MS,
        scheme: str | None = None,
    ) -> None:
        self._tokens = AccountTokens(account, client, min_ttl_ms=min_ttl_ms, wait_ms=wait_ms)
        self._scheme = scheme

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        """Authenticate a request of ``httpx.Client``."""
        token = self._tokens.get()
        sent = self._sign(request, token)
        response = yield request
        if refused(response, sent) and (newer := self._tokens.newer(token)) and again(request):
            response.read()  # before the connection can be used again
            self._sign(request, newer)
            yield request

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Authenticate a request of ``httpx.AsyncClient``."""
        token = await self._tokens.get_async()
        sent = self._sign(request, token)
        response = yield request
        if not refused(response, sent):
            return
        newer = await self._tokens.newer_async(token)
        if newer is not None and again(request):
            await response.aread()
            self._sign(request, newer)
            yield request

    def _sign(self, request: httpx.Request, token: Token) -> str:
        request.headers["Authorization"] = sent = authorization(token, self._scheme)
        return sent


def refused(response: httpx.Response, sent: str) -> bool:
    """Tell whether the token was refused, and not a request that a redirect led elsewhere."""
    return (
        response.status_code == UNAUTHORIZED
        and response.request.headers.get("Authorization") == sent
    )


def again(request: httpx.Request) -> bool:
    """Tell whether a body can be sent again: one that comes in chunks cannot."""
    return "Transfer-Encoding" not in request.headers
