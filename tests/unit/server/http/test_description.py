"""The description of HTTP as generators of clients read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.http.openapi.document import document
from tidewarden.server.http.openapi.operations import BYTES

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


def test_bytes_have_no_schema_for_generators_make_a_class_of_one() -> None:
    """
    With it they would ask whether a body is of that class or the other's, a list of tasks: Python
    raises TypeError then, whatever the body is.
    """
    found = [one[BYTES] for one in parts(WHOLE["paths"]) if BYTES in one]
    assert found
    assert [one for one in found if one] == []


def test_options_beside_a_body_of_bytes_have_no_defaults_for_generators_send_them() -> None:
    """With a body of JSON they are refused."""
    operation = WHOLE["paths"]["/v1/queues/{queue}/tasks"]["post"]
    options = [one for one in operation["parameters"] if one["in"] == "query"]
    assert {"priority", "wait_ms", "if_exists"} <= {one["name"] for one in options}
    assert [one["name"] for one in options if "default" in one["schema"]] == []
    others = WHOLE["paths"]["/v1/queues/{queue}/tasks"]["get"]["parameters"]
    assert {one["name"]: one["schema"].get("default") for one in others}["count"] == 100
