"""Describes all routes: OpenAPI 3.1, for programs that make clients."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from tidewarden.server.http.route import Route

PATH = "/v1/openapi.json"


class Description(msgspec.Struct):
    """Holds an OpenAPI document; its other fields are as the specification of OpenAPI says."""

    openapi: Annotated[str, Meta(examples=["3.1.0"])]
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class DescriptionHeaders(msgspec.Struct, kw_only=True):
    """Names the document that the reader has."""

    if_none_match: Annotated[
        str, Meta(description="The `ETag` of the document that the reader has.")
    ] = msgspec.field(name="If-None-Match", default="")


class DescriptionRoutes:
    """Answers ``/v1/openapi.json``. A thread makes the document when it is asked for first."""

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document
        self._made: asyncio.Future[bytes] | None = None

    async def get(self, request: web.Request) -> web.Response:
        """
        Return the description of all routes, for programs that make clients of it.

        It is the same on all nodes of a version, and has nothing in it that is of a node.
        """
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._encoded))
        document = await asyncio.shield(self._made)
        headers = {
            "Cache-Control": "no-cache",
            "ETag": f'"{hashlib.sha256(document).hexdigest()[:32]}"',
        }
        if headers["ETag"] in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=document, headers={"Content-Type": "application/json", **headers})

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self._document())


ROUTES = (
    Route(
        "GET",
        PATH,
        "",
        DescriptionRoutes.get,
        headers=DescriptionHeaders,
        answer=Description,
        answer_headers=(("ETag", "Changes with the document."),),
        others=((304, None),),
    ),
)
