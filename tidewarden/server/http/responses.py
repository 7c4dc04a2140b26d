"""Makes the JSON answers of the HTTP door."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from aiohttp import web

from tidewarden.errors import Error, NotFound

FAILED: web.ResponseKey[str] = web.ResponseKey("failed", str)
"""The word of the error that a response tells."""


def respond(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Answer with ``body`` as JSON, which no cache may keep."""
    data = msgspec.json.encode(body, enc_hook=str)
    return web.Response(
        body=data,
        status=status,
        headers={
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            **(headers or {}),
        },
    )


def problem(
    error: Error, status: int = 0, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Answer with ``{"error": word, "message": …}`` and the word's status."""
    extra = dict(headers or {})
    code = status or error.http_status
    if code == 401:
        extra["WWW-Authenticate"] = "Bearer"
    answer = respond({"error": error.code, "message": error.http_message}, code, extra)
    answer[FAILED] = error.code
    return answer


def nothing_at(request: web.Request, hidden: Collection[str]) -> NotFound:
    """
    Return the error for a path that does not exist.

    It lists the existing ones, except for those that are only for other nodes.
    """
    paths = {resource.canonical for resource in request.app.router.resources()}.difference(hidden)
    there = sorted({path.partition("/{")[0].partition(":")[0] for path in paths})
    return NotFound(f"There is nothing at {request.path[:200]}; there are {', '.join(there)}.")
