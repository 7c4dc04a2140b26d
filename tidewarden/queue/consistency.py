"""Finds tasks and index entries that do not belong together, and repairs them, piece by piece."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tidewarden.errors import Internal

from .catalog import Catalog
from .shards.shard import Shard
from .task import check_name

PIECE = 200  # entries that one script looks at
EXAMPLES_MAX = 100
LOST_FIELD = b"unreadable field of the record"


class Consistency:
    """
    Finds and repairs tasks and index entries of a queue that do not belong together.

    It runs beside everything else: each piece is one script, which sees its tasks at rest.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def check(self, queue: str, *, repair: bool = False) -> dict[str, Any]:
        """
        Check every task and every index entry of a queue.

        With ``repair`` faults are put right.

        Returns: ``tasks`` seen, how many of them are ``buried``, ``problems``, ``repaired``,
        ``found`` (how many of each kind), and ``examples``: at most 100 of ``[kind, id, detail]``.
        """
        try:
            shards = await self._catalog.open(check_name(queue))
        except Internal as error:  # Only what is in the store says in how many shards it lies.
            return _report(
                queue,
                0,
                0,
                0,
                0,
                Counter({"unreadable settings": 1}),
                [["unreadable settings", "", str(error)]],
            )
        tasks = buried = repaired = 0
        found: Counter[str] = Counter()
        examples: list[list[str]] = []
        for shard in shards:
            problems, parts = await shard.run("queue.check_record", (int(repair),))
            if repair and any(row[0] == LOST_FIELD for row in problems):
                await self._catalog.stored(queue)
                await self._catalog.settle(queue)  # the shard may have lost some of them
            for part in (name.decode() for name in parts):
                seen, more = await self._part(shard, part, repair)
                tasks += seen if part in ("tasks", "accounts") else 0
                buried += seen if part == "buried" else 0
                problems += more
            for kind, task_id, detail, mended in problems:
                found[kind.decode()] += 1
                repaired += mended
                if len(examples) < EXAMPLES_MAX:
                    examples.append(
                        [
                            text.decode("utf-8", "surrogateescape")
                            for text in (kind, task_id, detail)
                        ]
                    )
        return _report(queue, len(shards), tasks, buried, repaired, found, examples)

    async def _part(self, shard: Shard, part: str, repair: bool) -> tuple[int, list[Any]]:
        """
        Check one part of a shard, in as many scripts as it needs; return entries seen and problems.
        """
        seen, problems, cursor = 0, [], b"0"
        while True:
            cursor, more, wrong = await shard.run("queue.check", (part, cursor, PIECE, int(repair)))
            seen += more
            problems += wrong
            if cursor == b"0":
                return seen, problems


def _report(
    queue: str,
    shards: int,
    tasks: int,
    buried: int,
    repaired: int,
    found: Counter[str],
    examples: list[list[str]],
) -> dict[str, Any]:
    return {
        "queue": queue,
        "shards": shards,
        "tasks": tasks,
        "buried": buried,
        "problems": found.total(),
        "repaired": repaired,
        "found": dict(sorted(found.items())),
        "examples": examples,
    }
