"""
What CI installs before the tests: only what is missing, and an npm that goes with the node that is
there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / ".ci" / "packages").read_text("utf-8").split("\n")[1:-1]
STUBS = {
    "id": "echo 0",
    "dpkg": "exit 1",
    "apt-get": 'echo "$@" >> "$LOG"; case " $* " in *" $REFUSED "*) exit 100 ;; esac',
    "make": 'echo "make $@" >> "$LOG"',
}


def ci(folder: Path, *programs: str, refused: str = "none") -> tuple[list[str], str]:
    """
    What is asked of apt-get and make on a machine that has ``programs`` and no package; what is
    said.
    """
    for name, body in (STUBS | dict.fromkeys(programs, "")).items():
        stub = folder / name
        stub.write_text(f"#!/bin/sh\n{body}\n")
        stub.chmod(0o755)
    (folder / "dirname").symlink_to(str(shutil.which("dirname")))
    done = subprocess.run(
        [str(shutil.which("bash")), str(ROOT / ".ci" / "run")],
        env={"PATH": str(folder), "LOG": str(folder / "log"), "REFUSED": refused},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "log").read_text().splitlines(), done.stdout


@pytest.mark.parametrize(
    ("programs", "left_out"),
    [((), set()), (("node",), {"nodejs"}), (("node", "npm"), {"nodejs", "npm"})],
    ids=["plain", "node alone", "node with npm"],
)
def test_node_and_npm_are_installed_where_they_are_missing(
    tmp_path: Path, programs: tuple[str, ...], left_out: set[str]
) -> None:
    assert {"nodejs", "npm"} <= set(PACKAGES)
    asked, _ = ci(tmp_path, *programs)
    assert asked[0] == "update -qq"
    assert asked[1].split()[4:] == [one for one in PACKAGES if one not in left_out]
    assert asked[2:] == ["make test"]


def test_a_package_that_cannot_be_had_does_not_keep_the_others_away(tmp_path: Path) -> None:
    asked, said = ci(tmp_path, refused="tarantool")
    assert [line.split()[4:] for line in asked[2:-1]] == [[one] for one in PACKAGES]
    assert asked[-1] == "make test"
    assert said == "CI: could not install tarantool; tests that need it will say so and skip\n"
