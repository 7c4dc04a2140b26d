"""
Authenticates requests of the library requests with the access token of an account.

``requests.get(url, auth=RequestsTokenAuth("shop/42"))``; the extra ``tidewarden[requests]``.
"""

from __future__ import annotations

from typing import Any

import requests
from requests.auth import AuthBase

from tidewarden.client.blocking import Client
from tidewarden.client.replies import Token

from .account_tokens import MIN_TTL_MS, UNAUTHORIZED, WAIT_MS, AccountTokens, authorization


class RequestsTokenAuth(AuthBase):
    """
    Authenticates requests as one account, as :class:`TokenAuth` does.

    A request whose body is a generator is not repeated after a 401; a file is read again from where
    it stood.
    """

    def __init__(
        self,
        account: str,
        client: Client | None = None,
        *,
        min_ttl_ms: int = MIN_TTL_MS,
        wait_ms: int = WAIT_MS,
        scheme: str | None = None,
    ) -> None:
        self._tokens = AccountTokens(account, client, min_ttl_ms=min_ttl_ms, wait_ms=wait_ms)
        self._scheme = scheme

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request, and have its answer looked at."""
        token = self._tokens.get()
        sent = authorization(token, self._scheme)
        request.headers["Authorization"] = sent
        place = _place(request.body)

        def answered(response: requests.Response, **options: Any) -> requests.Response:
            if (
                response.status_code != UNAUTHORIZED
                or response.request.headers.get("Authorization") != sent
            ):
                return response
            return self._once_more(response, token, place, options)

        request.register_hook("response", answered)  # type: ignore[no-untyped-call]
        return request

    def _once_more(
        self, response: requests.Response, token: Token, place: int | None, options: dict[str, Any]
    ) -> requests.Response:
        newer = self._tokens.newer(token)
        request = response.request.copy()
        if newer is None or (place is None and request.body is not None):
            return response
        _ = response.content  # read, so that the connection can be used again
        response.close()
        body: Any = request.body
        if hasattr(body, "seek"):
            body.seek(place)
        request.headers["Authorization"] = authorization(newer, self._scheme)
        # the connection is the adapter that requests sets, as its own digest login uses it
        found: requests.Response = response.connection.send(request, **options)
        found.history.append(response)
        found.request = request
        return found


def _place(body: object) -> int | None:
    """Return from where a body is to be sent again. None: it cannot be."""
    if isinstance(body, str | bytes):
        return 0
    tell = getattr(body, "tell", None)
    try:
        return int(tell()) if tell is not None else None
    except OSError:
        return None
