"""
Words the fault of a field, from msgspec's message and the field's type.

The sentence names the field, what is allowed and what was found; text is never quoted, because it
may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
DIGITS_MAX = 40


def fault_of(message: str, kind: Any, sent: object, noun: str) -> str:
    """
    Return one or two sentences about what is wrong.

    Args:
        message: of msgspec's ValidationError.
        kind: what was asked for.
        sent: what was sent, decoded; UNSET: it cannot be.
        noun: what a name stands for, ``field`` or ``parameter``.
    """
    found = _PLACE.match(message)
    assert found is not None
    what, path = found["what"], found["path"] or ""
    info = inspect.type_info(kind)
    steps: list[str | int] = []
    for step in _STEP.finditer(path):
        word = step[1] or step[2]
        steps.append(word if step[1] or word == "..." else int(word))
        info, sent = _within(info, steps[-1], sent), _item(sent, steps[-1])
    where = path.removeprefix(".")
    if unknown := _UNKNOWN.fullmatch(what):
        names = ", ".join(field.encode_name for field in _fields(info)) or "none"
        return (
            f"There is no {noun} {unknown[1][:40]!r} {f'in {where}' if where else 'here'}; there"
            f" are {names}."
        )
    if missing := _MISSING.fullmatch(what):
        name = missing[1]
        field = next((one for one in _fields(info) if one.encode_name == name), None)
        allowed = "" if field is None else f": {allowed_of(field.type)}"
        return f"{f'{where}.{name}' if where else name} is missing{allowed}."
    return f"{where or 'The body'} must be {allowed_of(info)}: found {_shown(sent, info)}."


def allowed_of(info: inspect.Type) -> str:
    """Return the words for the values that this type allows."""
    match info:
        case inspect.Metadata():
            return allowed_of(info.type)
        case inspect.IntType() | inspect.FloatType():
            noun = "an integer" if isinstance(info, inspect.IntType) else "a number"
            low = info.ge if info.gt is None else f"more than {info.gt}"
            high = info.le if info.lt is None else f"less than {info.lt}"
            if low is not None and high is not None:
                return f"{noun} of {low} to {high}"
            return f"{noun} of {low} or more" if low is not None else noun
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            pattern = f" that fits {info.pattern}" if info.pattern else ""
            return f"text{_size(info.min_length, info.max_length, 'characters')}{pattern}"
        case inspect.BytesType():
            return "base64 text"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, info.values))}"
        case inspect.ListType():
            return f"a list{_size(info.min_length, info.max_length, 'items')}"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case inspect.UnionType():
            return " or ".join(dict.fromkeys(map(allowed_of, info.types)))
        case inspect.NoneType():
            return "null"
    return "JSON"


def _size(low: int | None, high: int | None, noun: str) -> str:
    if high is None:
        return f" of {low} or more {noun}" if low else ""
    return f" of {low or 0} to {high} {noun}"


def _fields(info: inspect.Type) -> Iterator[inspect.Field]:
    match info:
        case inspect.StructType():
            yield from info.fields
        case inspect.Metadata():
            yield from _fields(info.type)
        case inspect.UnionType():
            for one in info.types:
                yield from _fields(one)


def _within(info: inspect.Type, step: str | int, sent: object) -> inspect.Type:
    """Return the type of the value under a name, or at a place."""
    match info:
        case inspect.Metadata():
            return _within(info.type, step, sent)
        case inspect.UnionType():
            wanted = inspect.ListType if isinstance(step, int) else inspect.StructType
            for one in info.types:
                if isinstance(one, wanted):
                    return _within(one, step, sent)
        case inspect.StructType():
            for field in info.fields:
                if field.encode_name == step:
                    return field.type
        case inspect.ListType():
            return info.item_type
        case inspect.DictType():
            return info.value_type
    return inspect.AnyType()


def _item(sent: object, step: str | int) -> object:
    if isinstance(sent, Mapping) and isinstance(step, str):
        return sent.get(step, msgspec.UNSET)
    if isinstance(sent, list) and isinstance(step, int) and step < len(sent):
        return sent[step]
    return msgspec.UNSET


def _shown(sent: object, info: inspect.Type) -> str:
    match sent:
        case None:
            return "null"
        case bool():
            return str(sent).lower()
        case int() | float():
            return repr(sent)[:DIGITS_MAX]
        case str():
            long = isinstance(info, inspect.StrType) and info.pattern is None
            return f"text of {len(sent)} characters" if long else "other text"
        case list():
            return f"a list of {len(sent)} items"
        case Mapping():
            return "an object"
    return "something else"
