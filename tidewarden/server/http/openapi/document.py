"""Makes the OpenAPI document of the HTTP door from its tables of routes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from tidewarden import __version__
from tidewarden.server.http.route import Route

from . import problems
from .operations import SCHEME, answers_of, bodies_of, module_of, operation, tag_of
from .schemas import Schemas, prose

ABOUT = """\
A node of Tidewarden: a delay queue under leases, and a refresher of OAuth tokens.

Times end in `_ms` and are Unix milliseconds, or lengths of time in milliseconds; what ends in `_s`
is seconds. Errors are one schema, `Error`; what each word asks of a caller is in docs/protocol.md.

A lease belongs to no connection: it ends by its time, or with the session that the header
`Tidewarden-Session` names.\
"""
BEARER = """\
`user:secret`, or the secret alone where there is one user. Where no users are configured (on
loopback alone), only the routes of tokens, accounts, providers and events need one.\
"""


def document(routes: Iterable[Route[Any]]) -> dict[str, Any]:
    """
    Return the document of the routes that are for programs.

    It is the same on all nodes of a version, and has nothing of a node in it.
    """
    listed = [route for route in routes if route.described]
    schemas = Schemas(
        (kind for route in listed for kind in bodies_of(route)),
        (kind for route in listed for kind in answers_of(route)),
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidewarden",
            "version": __version__,
            "description": ABOUT,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the node that answered this document"}],
        "tags": _tags(listed),
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas.components
            | {problems.SCHEMA: problems.schema()}
            | {problems.schema_name(words): problems.schema_of(words) for words in _words(listed)},
            "responses": {
                problems.response_name(words): problems.response(words) for words in _words(listed)
            },
            "securitySchemes": {
                SCHEME: {"type": "http", "scheme": "bearer", "description": BEARER}
            },
        },
    }


def _tags(routes: Iterable[Route[Any]]) -> list[dict[str, str]]:
    modules = {tag_of(route): module_of(route) for route in routes}
    return [
        {"name": tag, "description": prose(importlib.import_module(modules[tag]).__doc__)[0]}
        for tag in sorted(modules)
    ]


def _words(routes: Iterable[Route[Any]]) -> list[tuple[str, ...]]:
    """Return the words of errors that share a status, for each status of each route."""
    return sorted(
        {
            words
            for route in routes
            for words in problems.by_status(problems.kinds_of(route)).values()
        }
    )
