"""Serves the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from tidewarden.errors import BadArg, Error
from tidewarden.server.audit.audit_log import COUNT_MAX, CURSOR, NOTHING, AuditEntry, AuditLog
from tidewarden.server.http.params import parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route

COUNT = 100


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for a page of the audit log."""

    after: Annotated[
        str,
        msgspec.Meta(
            description="The cursor of the page before; without it the oldest entries come.",
            pattern=f"^({CURSOR.pattern})?$",
        ),
    ] = ""
    count: Annotated[
        int, msgspec.Meta(ge=1, le=COUNT_MAX, description="How many entries are looked at.")
    ] = COUNT
    user: Annotated[str, msgspec.Meta(description="Of this user alone.")] | None = None


class AuditPage(msgspec.Struct, frozen=True):
    """Holds a page of the audit log."""

    entries: list[AuditEntry]
    after: Annotated[
        str,
        msgspec.Meta(description="Goes on behind them; as it was sent where nothing followed."),
    ]


class AuditRoutes:
    """Answers ``/v1/audit``; without an audit log there is nothing to answer."""

    def __init__(self, audit: AuditLog | None) -> None:
        self._audit = audit

    async def page(self, request: web.Request) -> web.Response:
        """Return who read, put, exported or deleted which account, and who changed what."""
        if self._audit is None:
            raise Error(NOTHING)
        asked = parameters_of(request, AuditQuery)
        entries, after = await self._audit.page(asked.after, asked.count, asked.user)
        return respond({"entries": entries, "after": after})


ROUTES = (
    Route(
        "GET",
        "/v1/audit",
        "R.AUDIT",
        AuditRoutes.page,
        query=AuditQuery,
        answer=AuditPage,
        errors=(BadArg,),
    ),
)
