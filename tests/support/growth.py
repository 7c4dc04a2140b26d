"""
Counts what an object of the product keeps, whatever its containers are called.

For the tests that nothing grows for ever (``test_growth_*``): they run a structure through many
rounds of its worst case and bound :func:`entries` after them.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

CONTAINERS = (list, set, frozenset, deque, dict)
WALKED = (*CONTAINERS, tuple)


def entries(*roots: Any) -> int:
    """
    How many entries all containers have that the objects reach through attributes of the product's
    classes.
    """
    return sum(found.values()) if (found := by_container(*roots)) else 0


def by_container(*roots: Any) -> dict[str, int]:
    """Likewise, by ``Class.attribute``: what a red test shows."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while todo:
        name, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, WALKED):
            if isinstance(value, CONTAINERS):
                found[name] = found.get(name, 0) + len(value)
            items = [*value, *value.values()] if isinstance(value, dict) else value
            todo += [(name, item) for item in items if isinstance(item, WALKED) or is_ours(item)]
        elif is_ours(value):
            todo += [(f"{type(value).__name__}.{key}", item) for key, item in attributes(value)]
    return found


async def stored_bytes(link: Any) -> dict[str, int]:
    """What each key of the store takes, by name; those that expire by themselves are left out."""
    keys = await link.call("KEYS", "*")
    lives = await asyncio.gather(*(link.call("PTTL", key) for key in keys))
    keys = [key for key, left_ms in zip(keys, lives, strict=True) if left_ms == -1]
    sizes = await asyncio.gather(*(link.call("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys))
    return {key.decode(): size for key, size in zip(keys, sizes, strict=True) if size is not None}


def is_ours(value: Any) -> bool:
    """Whether it is an object of a class of the product, or a callable that carries one."""
    if isinstance(value, (type, types.FunctionType, types.ModuleType)):
        return False
    return isinstance(value, (partial, types.MethodType)) or type(value).__module__.startswith(
        "tidewarden"
    )


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of what an object holds."""
    if isinstance(value, types.MethodType):
        yield "self", value.__self__
        return
    if isinstance(value, partial):
        yield "args", value.args
        return
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                yield slot, getattr(value, slot)
