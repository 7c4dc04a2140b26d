"""
Every container that lives longer than a request stands in docs/testing.md, "What stays", with its
worst case and bound.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.run.trees import statements, statements_in

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tidewarden"
KINDS = {
    "dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "TimerQueue",
    "WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "KnownShards",
}  # fmt: skip
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
# Rooms and files whose objects do not live long, or are for tests and trials.
ELSEWHERE = {
    "cli",
    "config/load.py",
    "config/settings.py",
    "config/sources.py",
    "config/presets.py",
    "sandbox",
    "clock.py",
}
# Classes whose objects live as long as one request, call or answer.
SHORT = {
    "Batch",
    "BatchCall",
    "Beginnings",
    "Finding",
    "Take",
    "Asked",
    "PendingCall",
    "RefreshWish",
    "_Batch",
    "BatchError",
    "MetricsSnapshot",
    "Snapshot",
    "ViewSnapshot",
    "Coming",
    "RequestProgress",
    "JournalReading",
    "Asking",
    "ServerIdentity",
    "SetGroup",
    "Schemas",
    "_Party",
    "Search",
    "Outlook",
}


def is_container(value: ast.expr | None) -> bool:
    """Whether what is assigned is one, or makes one for each object of a dataclass."""
    if isinstance(value, DISPLAYS):
        return True
    if not isinstance(value, ast.Call):
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    name = (
        made.id
        if isinstance(made, ast.Name)
        else made.attr
        if isinstance(made, ast.Attribute)
        else ""
    )
    if name == "field":
        factories = [one.value for one in value.keywords if one.arg == "default_factory"]
        return any(isinstance(one, ast.Name) and one.id in KINDS for one in factories)
    return name in KINDS


def containers(path: Path) -> Iterator[str]:
    """``Class.attribute`` of each in a file."""
    for kind in statements(path):
        for node in statements_in(kind) if isinstance(kind, ast.ClassDef) else ():
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not is_container(node.value):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    if target.value.id == "self":
                        yield f"{kind.name}.{target.attr}"
                elif isinstance(target, ast.Name) and node in kind.body:
                    yield f"{kind.name}.{target.id}"


def told() -> set[str]:
    """Those of the table: after ``Class.first`` further ones of the class may be ``.second``."""
    text = (ROOT / "docs" / "testing.md").read_text("utf-8")
    found: set[str] = set()
    for row in text[
        text.index("## What stays") : text.index("## What goes on by itself")
    ].splitlines():
        kind = ""
        for name in re.findall(r"`([A-Za-z_]*\.[a-z_]+)`", row.split(" | ")[0]):
            kind = name.partition(".")[0] or kind
            found.add(f"{kind}.{name.partition('.')[2]}")
    return found


def test_the_table_has_each_and_no_other() -> None:
    there = {
        name
        for path in PACKAGE.rglob("*.py")
        if not ELSEWHERE & {path.relative_to(PACKAGE).parts[0], str(path.relative_to(PACKAGE))}
        for name in containers(path)
        if name.partition(".")[0] not in SHORT
    }
    assert {"Sweep._timers", "Session.held", "Counts.late"} <= there, "they are found"
    assert there - told() == set(), (
        "a new one needs its row: what is its worst case, and what bounds it?"
    )
    assert told() - there == set(), "these are gone"
