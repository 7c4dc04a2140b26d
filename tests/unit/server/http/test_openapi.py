"""The description of the HTTP door for machines, made of its routes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from support.doors.http_site import site

from tidewarden.errors import BY_CODE
from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.http.openapi import problems
from tidewarden.server.http.openapi.document import document
from tidewarden.server.http.openapi.path_names import PATH_NAMES
from tidewarden.server.http.openapi.schemas import Schemas, prose


class Part(msgspec.Struct):
    word: Annotated[str, msgspec.Meta(examples=["a"])]


class Whole(msgspec.Struct):
    part: Part
    parts: list[Part]
    named: dict[str, int]
    maybe: Annotated[int, msgspec.Meta(examples=[7])] | None = None
    left: str | msgspec.UnsetType = msgspec.UNSET


class Brief(msgspec.Struct, omit_defaults=True):
    maybe: int = 0


DOCUMENT = document(ROUTES.values())
DESCRIBED = [route for route in ROUTES.values() if route.described]


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def answers(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for status, response in operation["responses"].items():
        name = response.get("$ref", "").rpartition("/")[2]
        yield status, DOCUMENT["components"]["responses"][name] if name else response


@pytest.mark.thorough
def test_it_is_openapi() -> None:
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_route_is_described_but_the_pages() -> None:
    assert {what for what, _ in operations()} == {
        f"{route.method} {route.path}" for route in DESCRIBED
    }
    pages = [route for route in ROUTES.values() if not route.described]
    assert pages
    assert all(route.answer is bytes and not route.verb for route in pages)


@pytest.mark.parametrize("route", DESCRIBED, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_has_types(route: Any) -> None:
    assert route.answer is not None, "an answer without a type"
    assert route.answer is not Any
    if route.method in ("PUT", "PATCH"):
        assert route.body is not None, "a body without a type"
    names = re.findall(r"{(\w+)}", route.path)
    assert set(names) <= PATH_NAMES.keys(), "a name in a path needs a row in path_names.py"
    for kind in (route.query, route.headers):
        if kind is not None:
            assert not [one.name for one in msgspec.structs.fields(kind) if one.required]


def test_operations_have_names_of_their_own() -> None:
    names = Counter(operation["operationId"] for _, operation in operations())
    assert [name for name, count in names.items() if count > 1] == []
    assert all(re.fullmatch("[a-z]+[A-Z][A-Za-z]*", name) for name in names)
    assert {"tokensGet", "tasksPut", "tasksTake", "tasksAck", "nodeReady"} <= names.keys()


def test_operations_say_what_they_do_and_who_may() -> None:
    for what, operation in operations():
        route = ROUTES[what.partition(" ")[0], what.partition(" ")[2]]
        assert operation["summary"], what
        assert operation["security"] == ([{"bearer": []}] if route.verb else []), what
        assert not route.verb or "401" in operation["responses"], what
        missing = [
            word for word in route.permission.words if f"`{word}`" not in operation["description"]
        ]
        assert not missing, (what, missing)
        assert "``" not in operation["description"]
    assert "right `token:read`" in DOCUMENT["paths"]["/v1/tokens:read"]["post"]["description"]


def test_examples_are_of_their_schemas() -> None:
    seen = 0
    for what, operation in operations():
        contents = [response for _, response in answers(operation)]
        contents.append(operation.get("requestBody", {}))
        for content in contents:
            for media in content.get("content", {}).values():
                if "example" in media:
                    seen += 1
                    check(media["schema"], media["example"], what)
        for parameter in operation.get("parameters", ()):
            for example in parameter["schema"].get("examples", ()):
                check(parameter["schema"], example, f"{what} {parameter['name']}")
    assert seen > len(DESCRIBED)


def check(schema: dict[str, Any], value: Any, what: str) -> None:
    whole = {**schema, "components": DOCUMENT["components"]}
    faults = [error.message for error in Draft202012Validator(whole).iter_errors(value)]
    assert not faults, (what, value)


def test_every_error_is_there_with_its_status_and_words() -> None:
    error = DOCUMENT["components"]["schemas"]["Error"]["properties"]["error"]
    assert set(error["enum"]) == BY_CODE.keys() - {"ERR", "CONFIG", "UNREACHABLE"}
    for what, operation in operations():
        route = ROUTES[what.partition(" ")[0], what.partition(" ")[2]]
        told = {
            (int(status), word)
            for status, response in answers(operation)
            for word in re.findall(r"^(?:- )?`([A-Z]+)`", response["description"], re.MULTILINE)
        }
        kinds = problems.kinds_of(route)
        assert told == {(kind.http_status, kind.code) for kind in kinds}, what
        assert {"BADARG", "DENIED", "FULL", "INTERNAL"} <= {word for _, word in told}


def test_a_sample_is_made_of_the_examples_of_its_parts() -> None:
    schemas = Schemas([Whole], [])
    sample = schemas.sample(schemas.of(Whole))
    assert sample == {"part": {"word": "a"}, "parts": [{"word": "a"}], "named": {"name": 0}}
    assert "maybe" not in schemas.sample(schemas.of(Whole), whole=False)


def test_what_is_only_answered_has_all_that_has_a_default() -> None:
    answered = Schemas([], [Whole]).components["Whole"]
    assert answered["required"] == ["part", "parts", "named", "maybe"]
    assert "default" not in answered["properties"]["maybe"]
    assert not Schemas([], [list[Brief]]).components["Brief"].get("required")
    asked = Schemas([list[Whole]], [Whole]).components["Whole"]
    assert asked["required"] == ["part", "parts", "named"]
    assert asked["properties"]["maybe"]["default"] is None


def test_docstrings_become_markdown() -> None:
    summary, text = prose("Say :meth:`what` ``x`` is\n    for.\n\n    More of\n    it.\n    ")
    assert summary == "Say `what` `x` is for."
    assert text == "Say `what` `x` is for.\n\nMore of it."


async def test_it_is_answered_to_everybody_and_once_to_a_cache() -> None:
    async with site(users=True) as subject:
        status, found = await subject.ask("GET", "/v1/openapi.json")
        assert (status, found) == (200, msgspec.json.decode(msgspec.json.encode(DOCUMENT)))
        url = f"http://127.0.0.1:{subject.server.port}/v1/openapi.json"
        async with subject.session.get(url) as response:
            tag = response.headers["ETag"]
        headers = {"If-None-Match": tag}
        async with subject.session.get(url, headers=headers) as response:
            assert (response.status, await response.read()) == (304, b"")
