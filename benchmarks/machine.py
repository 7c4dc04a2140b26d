"""The machine that figures come from, and how scripts of this folder begin and end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hiredis
import uvloop

T = TypeVar("T")
QUIET = 0.9
"""So much of its processors a quiet machine leaves idle."""


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on."""
    best, kind = "", "?"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, *_ = line.split()
        inside = folder.resolve().is_relative_to(point.replace("\\040", " "))
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def processor() -> str:
    """The processor's name, as Linux tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def print_machine(folder: Path, *versions: str) -> None:
    """Versions, one a line, and what they run on."""
    for version in versions:
        print(version)
    print(
        f"Python {platform.python_version()}, uvloop {uvloop.__version__}, hiredis"
        f" {hiredis.__version__}"
    )
    print(
        f"Linux {platform.release()}, {os.cpu_count()} cores of {processor()}, load"
        f" {os.getloadavg()[0]:.1f}, files on {file_system(folder)}",
        flush=True,
    )


def processor_ticks() -> tuple[int, int]:
    """Return the ticks in which the machine's processors were idle, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text("ascii").split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def is_busy(over_s: float = 1.0) -> bool:
    """
    Look for so long whether others use the processors; nothing of a script's runs meanwhile.

    What is measured then is marked: it shows more of the machine than of the product.
    """
    before = processor_ticks()
    time.sleep(over_s)
    idle, total = (now - then for now, then in zip(processor_ticks(), before, strict=True))
    return idle < QUIET * total


def arguments(about: str) -> argparse.ArgumentParser:
    """
    Return a parser with the options that every script takes.

    From here on SIGTERM ends a script as Ctrl-C does, so that it leaves nothing behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where data may lie while it runs; the system's temporary folder",
    )
    return parser


@contextlib.contextmanager
def own_folder(inside: Path | None) -> Iterator[Path]:
    """A folder that is gone after the block."""
    with tempfile.TemporaryDirectory(
        prefix="tw-bench-", dir=inside, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a uvloop loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


median = statistics.median


def against(limit: float, found: float, *, least: bool, unit: str = "", aim: str = "") -> str:
    """``limit ≥ 0.5 (0.43: missed)``: a limit of the budget and whether this run kept it."""
    kept = found >= limit if least else found <= limit
    sign = "≥" if least else "≤"
    return f"limit {sign} {limit:g}{unit}{aim}: {'kept' if kept else 'MISSED'}"


def print_heads() -> None:
    """The heads of the columns that :func:`line` prints."""
    print(f"\n{'':34}  {'rounds':>6}  {'median':>8}  {'p95':>8}  {'p99':>8}  {'max':>8}")


def line(name: str, found: Sequence[float], unit: str) -> None:
    """A row: how many there were, their median, p95, p99 and maximum."""
    figures = (median(found), percentile(found, 0.95), percentile(found, 0.99), max(found))
    print(
        f"{name:34}  {len(found):>6}  "
        + "  ".join(f"{figure:>8.2f}" for figure in figures)
        + f"  {unit}",
        flush=True,
    )
