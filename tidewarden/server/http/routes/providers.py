"""
Serves providers that are put, shown and removed while nodes run.

A secret is in no answer and in no error text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.config.rights import Rights
from tidewarden.errors import Exists, Full, NotFound, TooBig
from tidewarden.server.http.params import NoOptions, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Route, whole
from tidewarden.server.verbs.provider import seen_providers
from tidewarden.tokens.custody.stored_providers import StoredProviders

from .tokens import provider_of

Settings: TypeAlias = Annotated[
    dict[str, Any],
    Meta(
        description="As those of `[providers.NAME]` in the configuration file, without what names"
        " files or variables of a node."
    ),
]


class PutProvider(msgspec.Struct):
    """Shows a provider that was put, without its secrets."""

    provider: str
    put_ms: Annotated[int, Meta(description="When, in unix milliseconds.")]
    fault: Annotated[
        str, Meta(description="Why it is not in force on the node that answers; empty: it is.")
    ]
    settings: Annotated[
        dict[str, Any], Meta(description="As they were put, with `set` in place of secrets.")
    ]


class PutProviders(msgspec.Struct):
    """Shows the providers that were put and that the user administers."""

    providers: list[PutProvider]


class ProviderRemoved(msgspec.Struct):
    """Says that the provider is gone; its accounts are kept, and not refreshed."""

    deleted: bool = True


class ProviderRoutes:
    """
    Answers ``/v1/providers/{provider}/settings`` and the list of them.

    Args:
        stored: the providers of the node.
        rights: those of the caller.
    """

    def __init__(self, stored: StoredProviders, rights: Callable[[web.Request], Rights]) -> None:
        self._stored = stored
        self._rights = rights

    async def put(self, request: web.Request) -> web.Response:
        """
        Put a provider, or replace one that was put, on all nodes.

        It is in force at once on the node that answers, and within about a second on the others.
        """
        parameters_of(request, NoOptions)
        document = await request.read()
        return respond(await whole(self._stored.put(provider_of(request), document)))

    async def get(self, request: web.Request) -> web.Response:
        """Return a provider that was put, without its secrets."""
        parameters_of(request, NoOptions)
        return respond(await self._stored.one(provider_of(request)))

    async def list(self, request: web.Request) -> web.Response:
        """Return every provider that was put and that the user administers."""
        parameters_of(request, NoOptions)
        found = await seen_providers(self._stored, self._rights(request))
        return respond({"providers": found})

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a provider that was put; its accounts are kept, and not refreshed."""
        parameters_of(request, NoOptions)
        name = provider_of(request)
        if not await whole(self._stored.remove(name)):
            raise NotFound(f"There is no provider {name[:60]!r} that was put.")
        return respond({"deleted": True})


SETTINGS = "/v1/providers/{provider}/settings"
ROUTES = (
    Route(
        "GET",
        "/v1/providers/settings",
        "P.LIST",
        ProviderRoutes.list,
        answer=PutProviders,
        errors=STORE,
    ),
    Route(
        "GET", SETTINGS, "P.GET", ProviderRoutes.get, answer=PutProvider, errors=(NotFound, *STORE)
    ),
    Route(
        "PUT",
        SETTINGS,
        "P.PUT",
        ProviderRoutes.put,
        body=Settings,
        example={
            "token_url": "https://login.example.com/oauth/token",
            "client_id": "tidewarden",
            "client_secret": "cs-41f0",
        },
        answer=PutProvider,
        errors=(Exists, Full, TooBig, *STORE),
    ),
    Route(
        "DELETE",
        SETTINGS,
        "P.DELETE",
        ProviderRoutes.delete,
        answer=ProviderRemoved,
        errors=(NotFound, *STORE),
    ),
)
