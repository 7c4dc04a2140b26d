"""Describes one route as an operation of OpenAPI."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec

from tidewarden.server.access.required_rights import Permission
from tidewarden.server.http.route import Route
from tidewarden.tokens.accounts.names import GrantFields

from . import problems
from .path_names import PATH_NAMES
from .schemas import Schemas, parameters, prose

SCHEME = "bearer"
BYTES = "application/octet-stream"
"""
Bytes have no schema, as OpenAPI 3.1 has it. Generators make a class of a schema that allows
anything, and ask whether a body is of that class, or a list of tasks, which is no class.
"""
_IN_PATH = re.compile(r"{(\w+)}")
_HAND_MADE = {"type": "string"}
"""The schema of a body that is text for people, or a page or a stream for programs."""


def answers_of(route: Route[Any]) -> list[Any]:
    """Return the types of a route's answers, whose schemas the operation refers to."""
    asked = (route.answer, *(kind for _, kind in route.others))
    return [kind for kind in asked if kind is not None and kind is not bytes]


def bodies_of(route: Route[Any]) -> list[Any]:
    """Return the types of a route's bodies, likewise."""
    return [] if route.body is None or route.body is bytes else [route.body]


def module_of(route: Route[Any]) -> str:
    """Return the module, or its package, that is named by the noun of the route."""
    module: str = route.handler.__module__
    return module.rpartition(".")[0] if module.endswith("routes") else module


def tag_of(route: Route[Any]) -> str:
    """Return the group of an operation: the noun of the file, or folder, that has its handler."""
    return module_of(route).rpartition(".")[2]


def id_of(route: Route[Any]) -> str:
    """Return the operation's name, as generated clients call it: ``tokensGet``."""
    words = f"{tag_of(route)}_{getattr(route.handler, '__name__', '')}".split("_")
    return words[0] + "".join(word.capitalize() for word in words[1:])


def operation(route: Route[Any], schemas: Schemas) -> dict[str, Any]:
    """Describe a route as an operation object."""
    summary, text = prose(route.handler.__doc__)
    found: dict[str, Any] = {
        "operationId": id_of(route),
        "tags": [tag_of(route)],
        "summary": summary.removesuffix("."),
        "description": "\n\n".join(filter(None, (text, _permission(route)))),
        "security": [{SCHEME: []}] if route.verb else [],
    }
    if given := _parameters(route):
        found["parameters"] = given
    if route.body is not None:
        found["requestBody"] = {"required": _needs_body(route), "content": _bodies(route, schemas)}
    found["responses"] = _responses(route, schemas)
    return found


def _permission(route: Route[Any]) -> str:
    if not route.verb:
        return "Open to everybody who can reach the port."
    return f"{_who(route.permission)} The verb that does the same is `{route.verb}`."


def _who(permission: Permission) -> str:
    words = [f"`{word}`" for word in sorted(permission.words)]
    right = " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
    match permission.level:
        case "user":
            return f"Needs a user, also where none are configured, with the right {right}."
        case "right":
            return f"Needs the right {right}, where users are configured."
        case "login" | "open":
            return "Needs a user, where users are configured."


def _parameters(route: Route[Any]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, **PATH_NAMES[name]}
        for name in _IN_PATH.findall(route.path)
    ]
    if route.query is not None:
        # No defaults beside a body of bytes: generated clients would send them with any other, too.
        found += parameters(route.query, "query", defaults=not route.raw)
    if route.headers is not None:
        found += parameters(route.headers, "header")
    return found


def _needs_body(route: Route[Any]) -> bool:
    """Return whether a body is needed: an empty one is read as ``{}`` if the route can use that."""
    if route.method == "PATCH" or route.body in (bytes, GrantFields):
        return True
    try:
        msgspec.json.decode(b"{}", type=route.body)
    except msgspec.ValidationError:
        return True
    return False


def _bodies(route: Route[Any], schemas: Schemas) -> dict[str, Any]:
    if route.body is bytes:
        return {BYTES: {}}
    schema = schemas.of(route.body)
    example = schemas.sample(schema, whole=False) if route.example is None else route.example
    found: dict[str, Any] = {"application/json": {"schema": schema, "example": example}}
    if route.raw:
        found[BYTES] = {}
    return found


def _responses(route: Route[Any], schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {str(route.status): _success(route, schemas)}
    for status, kind in route.others:
        found[str(status)] = _answer(status, kind, schemas)
    for status, words in problems.by_status(problems.kinds_of(route)).items():
        name = problems.response_name(words)
        if str(status) not in found:
            found[str(status)] = {"$ref": f"#/components/responses/{name}"}
        else:  # an answer of the route's own has the status, too
            _or_problem(found[str(status)], words)
    return dict(sorted(found.items()))


def _success(route: Route[Any], schemas: Schemas) -> dict[str, Any]:
    if route.answer is bytes:
        found: dict[str, Any] = {
            "description": HTTPStatus(route.status).phrase,
            "content": {route.media: {} if route.media == BYTES else {"schema": _HAND_MADE}},
        }
    else:
        found = _answer(route.status, route.answer, schemas)
    if route.raw_answer:
        found["content"][BYTES] = {}
    if route.answer_headers:
        found["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in route.answer_headers
        }
    return found


def _answer(status: int, kind: Any, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if kind is None:
        return found
    schema = schemas.of(kind)
    content = {"schema": schema, "example": schemas.sample(schema)}
    text = schemas.resolved(schema).get("description")
    return (
        found | ({"description": text} if text else {}) | {"content": {"application/json": content}}
    )


def _or_problem(response: dict[str, Any], words: tuple[str, ...]) -> None:
    content = response["content"]["application/json"]
    problem = problems.response(words)
    schema = problem["content"]["application/json"]["schema"]
    content["schema"] = {"anyOf": [content["schema"], schema]}
    response["description"] += f"\n\n{problem['description']}"
