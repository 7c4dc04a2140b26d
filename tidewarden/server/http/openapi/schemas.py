"""Makes schemas of the types that routes take and answer: msgspec's, tidied for readers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import msgspec.inspect

REF = "#/components/schemas/{name}"
_ROLE = re.compile(r":\w+:`~?([^`]*)`")
_BREAK = re.compile(r"\n(?!\n|- )(?<!\n\n)")


class Schemas:
    """
    Holds the schemas of some types, and those they are made of.

    ``components`` has each struct once, by its name. A struct that is never sent to the server has
    every field, except for fields that may be left out altogether.
    """

    def __init__(self, bodies: Iterable[Any], answers: Iterable[Any]) -> None:
        asked = {repr(kind): kind for kind in bodies}
        unique = asked | {repr(kind): kind for kind in answers}
        found, components = msgspec.json.schema_components(list(unique.values()), ref_template=REF)
        self._by_type: dict[str, dict[str, Any]] = dict(
            zip(unique, map(_tidied, found), strict=True)
        )
        self.components: dict[str, Any] = {
            name: _tidied(components[name]) for name in sorted(components)
        }
        sent: set[str] = set()
        for kind in asked:
            self._reach(self._by_type[kind], sent)
        for name in self.components.keys() - sent - _omitting(list(unique.values())):
            _always_there(self.components[name])

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of one of the types: mostly a reference."""
        return self._by_type[repr(kind)]

    def _reach(self, schema: Any, reached: set[str]) -> None:
        """Add the names of the components that a schema is made of."""
        parts = schema.values() if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if name not in reached:
                reached.add(name)
                self._reach(self.components[name], reached)
        for part in parts if isinstance(schema, dict | list) else ():
            self._reach(part, reached)

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema that a reference names, or the schema itself."""
        if "$ref" not in schema:
            return schema
        found: dict[str, Any] = self.components[str(schema["$ref"]).rpartition("/")[2]]
        return found | {name: value for name, value in schema.items() if name != "$ref"}

    def sample(self, schema: dict[str, Any], *, whole: bool = True) -> Any:
        """
        Return an example of a schema, made of the examples of its parts.

        ``whole``: fields that may be absent are there, too, where they have an example.
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


def parameters(
    kind: type[msgspec.Struct], where: str, *, defaults: bool = True
) -> list[dict[str, Any]]:
    """
    Describe the fields of a struct as parameters; ``where``: ``query`` or ``header``.

    ``defaults``: whether each tells what counts where it is absent.
    """
    _, components = msgspec.json.schema_components([kind], ref_template=REF)
    found = []
    for name, schema in components[kind.__name__]["properties"].items():
        tidy = _tidied(schema)
        if not defaults:
            tidy.pop("default", None)
        text = tidy.pop("description", "")
        parameter = {"name": name, "in": where, "required": False}
        found.append(parameter | ({"description": text} if text else {}) | {"schema": tidy})
    return found


def prose(text: str | None) -> tuple[str, str]:
    """Return the first sentence of a docstring, and all of it, as Markdown."""
    whole = _markdown(inspect.cleandoc(text or ""))
    return whole.partition("\n\n")[0], whole


def _markdown(text: str) -> str:
    return _BREAK.sub(" ", _ROLE.sub(r"`\1`", text.strip()).replace("``", "`"))


def _tidied(schema: Any) -> Any:
    """Remove titles, which repeat the names of components, and make descriptions Markdown."""
    if isinstance(schema, dict):
        if schema.get("enum") == [True]:  # Generators know no enumeration of anything but texts.
            schema = {name: value for name, value in schema.items() if name != "enum"}
            schema |= {"type": "boolean", "const": True}
        return {
            name: _markdown(value) if _is_text(name, value) else _tidied(value)
            for name, value in schema.items()
            if name != "title" or not isinstance(value, str)
        }
    return [_tidied(one) for one in schema] if isinstance(schema, list) else schema


def _omitting(types: list[Any]) -> set[str]:
    """Return the names of the structs that leave out fields which have their defaults."""
    found: set[str] = set()
    seen: set[int] = set()
    left: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if (
            isinstance(part, msgspec.inspect.StructType)
            and part.cls.__struct_config__.omit_defaults
        ):
            found.add(part.cls.__name__)
        if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            left += [getattr(part, name) for name in part.__struct_fields__]
        elif isinstance(part, tuple):
            left += part
    return found


def _always_there(schema: dict[str, Any]) -> None:
    """Require fields that have a default, too: they are written all the same."""
    properties = schema.get("properties", {})
    defaults = [name for name, part in properties.items() if "default" in part]
    for name in defaults:
        del properties[name]["default"]
    if defaults:
        schema["required"] = [
            name for name in properties if name in {*schema.get("required", ()), *defaults}
        ]


def _is_text(name: str, value: Any) -> bool:
    """Return whether a value is a description, and not the schema of a property of that name."""
    return name == "description" and isinstance(value, str)
