"""Installs a peer that pip brings into a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.targets import Missing

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".bench-venv"


@dataclass(frozen=True)
class Package:
    """The name of a peer, and the requirements that pip installs for it."""

    name: str
    requires: tuple[str, ...]


def environment(package: Package) -> Path:
    """
    Return the Python of the package's environment.

    It is made if it is missing or was made for other requirements.

    Raises: Missing.
    """
    folder = ENVIRONMENTS / package.name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = " ".join(package.requires)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"setting up {folder.relative_to(ROOT)} (once) …", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)],
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            *package.requires,
        ],
    ):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            lines = made.stderr.strip().splitlines() or ["no word"]
            raise Missing(f"not installed: pip install {wanted}: {lines[-1][:100]}")
    stamp.write_text(wanted)
    return python
