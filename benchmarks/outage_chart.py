"""
The chart of :mod:`benchmarks.outage`: accounts that ever expired, by capacity, one panel an outage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

WIDTH, HEIGHT = 250, 170
LEFT, TOP, GAP = 64, 72, 38
COLOURS = {"edf": "#b23a48", "bands": "#d98c21", "tokens": "#1f6f8b", "live": "#8a8f98"}
NAMES = {
    "edf": "earliest deadline first",
    "bands": "bands, fixed window",
    "tokens": "token queues",
    "live": "the least that any order lets expire",
}
FONT = "font-family='system-ui, sans-serif' font-size='12' fill='#333'"


class CaseLike(Protocol):
    """One outage."""

    @property
    def outage_min(self) -> int: ...
    @property
    def capacity(self) -> float: ...
    @property
    def clustered(self) -> bool: ...


class FleetLike(Protocol):
    """What became of the accounts."""

    @property
    def ever(self) -> set[int]: ...


def write(path: Path, results: Mapping[CaseLike, Mapping[str, FleetLike]]) -> None:
    """Write the chart as SVG. Raises: OSError."""
    outages = sorted({case.outage_min for case in results})
    kinds = sorted({case.clustered for case in results})
    top = max(len(fleet.ever) for found in results.values() for fleet in found.values())
    width = LEFT + len(outages) * (WIDTH + GAP)
    height = TOP + len(kinds) * (HEIGHT + 62)
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
            f" width='{width}' height='{height}'>"
        ),
        f"<rect width='{width}' height='{height}' fill='white'/>",
        (
            f"<text x='{LEFT}' y='20' {FONT} font-weight='bold'>Accounts that ever expired after an"
            " outage</text>"
        ),
        *_legend(),
    ]
    for row, clustered in enumerate(kinds):
        for column, outage_min in enumerate(outages):
            mine = {
                c.capacity: f
                for c, f in results.items()
                if (c.outage_min, c.clustered) == (outage_min, clustered)
            }
            x, y = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + 62)
            title = f"{outage_min} min, expiries {'in crowds' if clustered else 'spread evenly'}"
            parts += _panel(x, y, title, mine, top)
    parts.append("</svg>")
    path.write_text("\n".join(parts) + "\n")


def _legend() -> Iterable[str]:
    x = LEFT
    for order, name in NAMES.items():
        yield f"<rect x='{x}' y='34' width='12' height='12' fill='{COLOURS[order]}'/>"
        yield f"<text x='{x + 17}' y='44' {FONT}>{name}</text>"
        x += 34 + 7 * len(name)


def _panel(
    x: int, y: int, title: str, found: Mapping[float, Mapping[str, FleetLike]], top: int
) -> Iterable[str]:
    capacities = sorted(found)
    step = WIDTH / max(1, len(capacities))
    bar = step * 0.8 / len(NAMES)
    yield f"<text x='{x}' y='{y - 6}' {FONT}>{title}</text>"
    for share in (0, 0.5, 1):
        line = y + HEIGHT * (1 - share)
        yield f"<line x1='{x}' x2='{x + WIDTH}' y1='{line:.0f}' y2='{line:.0f}' stroke='#ddd'/>"
        yield (
            f"<text x='{x - 6}' y='{line + 4:.0f}' {FONT}"
            f" text-anchor='end'>{top * share:,.0f}</text>"
        )
    for i, capacity in enumerate(capacities):
        at = x + step * (i + 0.1)
        for j, order in enumerate(NAMES):
            tall = HEIGHT * len(found[capacity][order].ever) / top
            yield (
                f"<rect x='{at + j * bar:.1f}' y='{y + HEIGHT - tall:.1f}' width='{bar - 1:.1f}'"
                f" height='{tall:.1f}' fill='{COLOURS[order]}'><title>{NAMES[order]}:"
                f" {len(found[capacity][order].ever):,}</title></rect>"
            )
        yield (
            f"<text x='{x + step * (i + 0.5):.0f}' y='{y + HEIGHT + 16}' {FONT}"
            f" text-anchor='middle'>{capacity:g} ×</text>"
        )
    yield (
        f"<text x='{x + WIDTH / 2:.0f}' y='{y + HEIGHT + 32}' {FONT} text-anchor='middle'>capacity"
        " / load</text>"
    )
