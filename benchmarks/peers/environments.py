"""The Python queues that are measured, and the virtual environment of each."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.targets import Missing

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".bench-venv"


@dataclass(frozen=True)
class Library:
    """The requirements of a peer library, and what it does by default when a worker dies."""

    name: str
    requires: tuple[str, ...]
    rescue: str


WORKER = Library("worker", (), "5 s")  # ours by its SDK; the grace of its session
# The newest that pip gives, each with the dependencies it wants: arq, for one, refuses a current
# redis-py.
LIBRARIES = (
    Library("celery", ("celery[redis]>=5.5", "hiredis"), "1 h"),  # visibility_timeout
    Library("rq", ("rq>=2", "hiredis"), "minutes"),  # its registries' cleaning
    Library("dramatiq", ("dramatiq[redis]>=2", "hiredis"), "60 s"),  # heartbeat_timeout
    Library("arq", ("arq>=0.26",), "5 min"),  # job_timeout
    Library("huey", ("huey>=2.5", "redis", "hiredis"), "lost"),  # popped from the list
    Library("taskiq", ("taskiq>=0.11", "taskiq-redis>=1", "hiredis"), "10 min"),  # idle_timeout
    Library(
        "saq", ("saq[redis]>=0.24", "typing_extensions", "hiredis"), "its timeout"
    ),  # the job's timeout, looked at every minute
)


def environment(library: Library) -> Path:
    """
    Return the Python of the library's environment.

    It is made if it is missing or was made for other requirements.

    Raises: Missing.
    """
    folder = ENVIRONMENTS / library.name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = " ".join(library.requires)
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
            *library.requires,
        ],
    ):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            lines = made.stderr.strip().splitlines() or ["no word"]
            raise Missing(f"not installed: pip install {wanted}: {lines[-1][:100]}")
    stamp.write_text(wanted)
    return python
