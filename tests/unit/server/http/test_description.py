"""The description of HTTP as generators of clients read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.http.openapi.document import document

WHOLE = document(ROUTES.values())


def parts(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
        for one in found.values():
            yield from parts(one)
    elif isinstance(found, list):
        for one in found:
            yield from parts(one)


def test_each_error_has_a_name_so_that_routes_share_one_class_for_it() -> None:
    responses = WHOLE["components"]["responses"]
    assert len(responses) > 10
    for response in responses.values():
        (name,) = response["content"]["application/json"]["schema"].values()
        schema = WHOLE["components"]["schemas"][name.rpartition("/")[2]]
        assert schema["allOf"][0] == {"$ref": "#/components/schemas/Error"}


def test_an_enumeration_is_of_texts_for_generators_drop_what_has_another() -> None:
    found = [one["enum"] for one in parts(WHOLE) if isinstance(one.get("enum"), list)]
    assert found
    assert [values for values in found if not all(isinstance(one, str) for one in values)] == []
    for name in ("Kick", "Move"):
        everything = WHOLE["components"]["schemas"][name]["properties"]["all"]
        assert (everything["type"], everything["const"]) == ("boolean", True)
