"""On which line of a TOML file a setting stands: ``tomllib`` does not tell."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]#]+?)\s*\]\]?")
_ASSIGNMENT = re.compile(r"""^\s*((?:[A-Za-z0-9_.-]|"[^"]*"|'[^']*')+)\s*=""")


def line_at(path: str, lines: dict[str, int], *names: str) -> str:
    """``file:line`` of the first of ``names`` that has a line, else the file alone."""
    return next((f"{path}:{lines[name]}" for name in names if name in lines), path)


def lines_of(text: str) -> dict[str, int]:
    """
    Line of each section and key, by dotted name; ``[[users]]`` are numbered.

    ``tomllib`` tells none. This reads the usual forms; what it misses costs a message its line,
    nothing else.
    """
    lines: dict[str, int] = {}
    section = ""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1].replace('"', "").replace("'", "")
            if line.lstrip().startswith("[["):
                counts[section] = counts.get(section, -1) + 1
                lines.setdefault(section, number)
                section = f"{section}[{counts[section]}]"
            lines.setdefault(section, number)
            lines.setdefault(section.partition(".")[0], number)
        elif assignment := _ASSIGNMENT.match(line):
            key = assignment[1].replace('"', "").replace("'", "")
            lines.setdefault(f"{section}.{key}" if section else key, number)
    return lines
