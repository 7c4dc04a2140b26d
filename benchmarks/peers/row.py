"""One row of the table, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Cell = float | str
"""A figure, or the word why there is none."""


@dataclass
class Row:
    """One queue's figures."""

    name: str
    version: str = ""
    enqueue: Cell = "-"
    consume: Cell = "-"
    cycle: Cell = "-"
    late_p50: Cell = "-"
    late_p99: Cell = "-"
    death: Cell = "-"
    memory: Cell = "-"


COLUMNS = (
    ("enqueue", "enqueue", "/s", 0),
    ("consume", "consume", "/s", 0),
    ("cycle", "cycle", "/s", 0),
    ("late_p50", "late p50", "ms", 1),
    ("late_p99", "late p99", "ms", 1),
    ("death", "redelivery", "ms", 1),
    ("memory", "memory", "bytes a task", 0),
)
NAME, WIDTH = 18, 16


def print_table(rows: Sequence[Row], absent: dict[str, str]) -> None:
    """The rows; under each its ratios to the first. ``absent``: names, and why they have none."""
    print()
    print(" " * NAME + "".join(f"{title:>{WIDTH}}" for _, title, _, _ in COLUMNS))
    print(" " * NAME + "".join(f"{unit:>{WIDTH}}" for _, _, unit, _ in COLUMNS))
    for row in rows:
        cells = [(getattr(row, name), digits) for name, _, _, digits in COLUMNS]
        print(
            f"{row.name:{NAME}}"
            + "".join(f"{shown(cell, digits):>{WIDTH}}" for cell, digits in cells)
        )
        if row is not rows[0]:
            first = [getattr(rows[0], name) for name, *_ in COLUMNS]
            ratios = [ratio(cell, ours) for (cell, _), ours in zip(cells, first, strict=True)]
            print(f"{'  to ours':{NAME}}" + "".join(f"{text:>{WIDTH}}" for text in ratios))
    for name, why in absent.items():
        print(f"{name:{NAME}}  {why}")


def shown(cell: Cell, digits: int) -> str:
    return cell if isinstance(cell, str) else f"{cell:,.{digits}f}"


def ratio(cell: Cell, ours: Cell) -> str:
    """How many times ours it is; nothing where that says nothing."""
    if isinstance(cell, str) or isinstance(ours, str) or cell < 0 or ours <= 0:
        return ""
    return f"{cell / ours:,.{3 if cell < ours / 10 else 2}f}"
