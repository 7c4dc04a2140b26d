"""
Serves ``P.*``, by which providers are put, shown and removed while nodes run.

A secret is in no reply and in no error text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidewarden.config.rights import Rights
from tidewarden.config.stored_provider import hosts_of
from tidewarden.errors import Error
from tidewarden.server.access.required_rights import (
    Arguments,
    Permission,
    Requirement,
    name_of,
    on_account,
    some_as_user,
)
from tidewarden.server.audit.audited import first_and, whole
from tidewarden.server.resp import encoder
from tidewarden.server.resp.connection import Connection
from tidewarden.server.resp.parser import Request
from tidewarden.server.resp.reply_slot import Pending
from tidewarden.tokens.custody.stored_providers import StoredProviders

from .command import Command
from .token import provider_name

ADMIN, EXPORT = ("token:admin",), ("token:export",)


def put(connection: Connection, request: Request) -> Pending:
    """Answer ``P.PUT``."""
    name = provider_name(request[1])
    return Pending(_stored(connection).put(name, bytes(request[2])), encoder.encode)


def show(connection: Connection, request: Request) -> Pending:
    """Answer ``P.GET``."""
    return Pending(_stored(connection).one(provider_name(request[1])), encoder.encode)


def listing(connection: Connection, request: Request) -> Pending:
    """Answer ``P.LIST``."""
    return Pending(seen_providers(_stored(connection), connection.peer.rights), encoder.encode)


async def seen_providers(stored: StoredProviders, rights: Rights) -> list[dict[str, Any]]:
    """List the providers that were put and that the user administers."""
    seen, found = rights.accounts(*ADMIN), await stored.all()
    return [one for one in found if seen.allow(one["provider"])]


def delete(connection: Connection, request: Request) -> Pending:
    """Answer ``P.DELETE``."""
    return Pending(_stored(connection).remove(provider_name(request[1])), _integer)


def _stored(connection: Connection) -> StoredProviders:
    tokens = connection.server.services.tokens
    if tokens is None:
        raise Error("This node serves no tokens.")
    return tokens.stored_providers


def _integer(found: bool, resp: int) -> bytes:
    return encoder.integer(int(found))


def _administers_and_exports(request: Arguments) -> Iterable[Requirement]:
    """
    Require the right to administer the provider and to export its accounts.

    A user who says where a provider's refresh tokens are sent to can get hold of them there.
    """
    name = name_of(request[1])
    return [(ADMIN, name), (EXPORT, name)]


COMMANDS = (
    Command(
        "P.PUT",
        put,
        3,
        3,
        Permission("user", frozenset((*ADMIN, *EXPORT)), _administers_and_exports),
        "provider json",
        group="token",
        audited=first_and(hosts_of),
    ),
    Command("P.GET", show, 2, 2, on_account(*ADMIN), "provider", group="token"),
    Command("P.LIST", listing, 1, 1, some_as_user(*ADMIN), group="token"),
    Command(
        "P.DELETE", delete, 2, 2, on_account(*ADMIN), "provider", group="token", audited=whole()
    ),
)
