"""Schemas of the types that routes take and answer, as msgspec has them, tidied for readers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

REF = "#/components/schemas/{name}"
_ROLE = re.compile(r":\w+:`~?([^`]*)`")
_BREAK = re.compile(r"\n(?!\n|- )(?<!\n\n)")


class Schemas:
    """
    Holds the schemas of some types, and those they are made of.

    ``components`` has each struct once, by its name.
    """

    def __init__(self, types: Iterable[Any]) -> None:
        unique = {repr(kind): kind for kind in types}
        found, components = msgspec.json.schema_components(list(unique.values()), ref_template=REF)
        self._by_type: dict[str, dict[str, Any]] = dict(
            zip(unique, map(_tidied, found), strict=True)
        )
        self.components: dict[str, Any] = {
            name: _tidied(components[name]) for name in sorted(components)
        }

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of one of the types: mostly a reference."""
        return self._by_type[repr(kind)]

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What a schema refers to, or itself."""
        if "$ref" not in schema:
            return schema
        found: dict[str, Any] = self.components[str(schema["$ref"]).rpartition("/")[2]]
        return found | {name: value for name, value in schema.items() if name != "$ref"}

    def sample(self, schema: dict[str, Any], *, whole: bool = True) -> Any:
        """
        An example of a schema, of the examples of its parts.

        ``whole``: with what may be absent, too, where that has an example.
        """
        found = self.resolved(schema)
        if "examples" in found:
            return found["examples"][0]
        for word in ("const", "default"):
            if word in found and found[word] is not None:
                return found[word]
        if "enum" in found:
            return found["enum"][0]
        for word in ("anyOf", "oneOf", "allOf"):
            if word in found:
                return self.sample(found[word][0], whole=whole)
        match found.get("type"):
            case "object":
                return self._sample_of_object(found, whole=whole)
            case "array":
                return [self.sample(found["items"], whole=whole)] if found.get("items") else []
            case "integer" | "number":
                return found.get("minimum", 0)
            case "boolean":
                return False
            case "string":
                return ""
        return None

    def _sample_of_object(self, schema: dict[str, Any], *, whole: bool) -> dict[str, Any]:
        required = schema.get("required", ())
        found = {
            name: self.sample(part, whole=whole)
            for name, part in schema.get("properties", {}).items()
            if name in required or (whole and "examples" in self.resolved(part))
        }
        more = schema.get("additionalProperties")
        if not found and isinstance(more, dict):
            return {"name": self.sample(more, whole=whole)}
        return found


def parameters(kind: type[msgspec.Struct], where: str) -> list[dict[str, Any]]:
    """What a struct says of parameters; ``where``: ``query`` or ``header``."""
    _, components = msgspec.json.schema_components([kind], ref_template=REF)
    found = []
    for name, schema in components[kind.__name__]["properties"].items():
        tidy = _tidied(schema)
        text = tidy.pop("description", "")
        parameter = {"name": name, "in": where, "required": False}
        found.append(parameter | ({"description": text} if text else {}) | {"schema": tidy})
    return found


def prose(text: str | None) -> tuple[str, str]:
    """The first sentence of a docstring, and all of it, as Markdown."""
    whole = _markdown(inspect.cleandoc(text or ""))
    return whole.partition("\n\n")[0], whole


def _markdown(text: str) -> str:
    return _BREAK.sub(" ", _ROLE.sub(r"`\1`", text.strip()).replace("``", "`"))


def _tidied(schema: Any) -> Any:
    """Without titles, which repeat the names of components; descriptions as Markdown."""
    if isinstance(schema, dict):
        return {
            name: _markdown(value) if _is_text(name, value) else _tidied(value)
            for name, value in schema.items()
            if name != "title" or not isinstance(value, str)
        }
    return [_tidied(one) for one in schema] if isinstance(schema, list) else schema


def _is_text(name: str, value: Any) -> bool:
    """A description; not a property of that name, whose value is a schema."""
    return name == "description" and isinstance(value, str)
