"""
``make setup`` on a machine whose Python lacks what makes virtual environments, as Debian's may; and
the site of ``make docs``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
# As Debian's python3: without python3-venv `-m venv` leaves a folder without pip behind, and fails.
case "$*" in
  *ensurepip*) test -e {whole} ;;
  "-m venv "*) mkdir -p "$3/bin"
    if test -e {whole}; then cp {installed} "$3/bin/python"; else cp {bare} "$3/bin/python"; exit 1; fi ;;
  *) exit 0 ;;
esac
"""
BARE = '#!/bin/sh\ncase "$*" in "-m pip "*) exit 1 ;; esac\n'
INSTALLED = '#!/bin/sh\necho "$*" >> {asked}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    places = {name: tmp_path / name for name in ("whole", "installed", "bare", "asked")}
    for name, text in (("python", PYTHON), ("bare", BARE), ("installed", INSTALLED)):
        (tmp_path / name).write_text(text.format(**places))
        (tmp_path / name).chmod(0o755)
    return tmp_path


def setup(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = ["make", "--no-print-directory", "setup", f"PYTHON={folder / 'python'}"]
    environ = {**os.environ, "MAKEFLAGS": ""}
    return subprocess.run(
        argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_is_missing_is_said_and_setup_goes_on_once_it_is_there(folder: Path) -> None:
    for _ in range(2):
        made = setup(folder)
        assert made.returncode != 0
        assert "apt install python3-venv" in made.stderr
        assert not (folder / ".venv").exists()
    (folder / "whole").touch()
    made = setup(folder)
    assert made.returncode == 0, made.stderr
    assert "-m pip install --quiet --editable" in (folder / "asked").read_text()
    assert (folder / ".venv/.ready").exists()


def test_a_half_made_environment_is_made_anew(folder: Path) -> None:
    """As an earlier ``make``, or an interrupted one, has left it."""
    left = folder / ".venv/bin/python"
    left.parent.mkdir(parents=True)
    shutil.copy(folder / "bare", left)
    (folder / "whole").touch()
    made = setup(folder)
    assert made.returncode == 0, made.stderr
    assert "-m pip install" in (folder / "asked").read_text()


def mkdocs() -> str:
    """The generator, where ``make docs`` or somebody else has installed it."""
    beside = (ROOT / ".docs-venv" / "bin" / "mkdocs", Path(sys.executable).parent / "mkdocs")
    program = next((str(one) for one in beside if one.exists()), None)
    if program is None:
        pytest.skip("mkdocs-material is not here: make docs installs it")
    return program


@pytest.mark.thorough
def test_the_site_is_built_and_a_broken_link_is_an_error(tmp_path: Path) -> None:
    program = mkdocs()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    source = tmp_path / "build" / "site-source"

    def built() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "build", "--strict"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    subprocess.run([sys.executable, ROOT / "docs" / "site_source.py", source], check=True)
    done = built()
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "site"
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {one["location"] for one in index["docs"]}
    assert {"index.html", "docs/protocol.html#qreasons", "docs/howto.html#begin"} <= found
    assert (site / "examples" / "compose.yaml").exists()
    pages = "".join(path.read_text("utf-8") for path in site.rglob("*.html"))
    assert "fonts.googleapis.com" not in pages
    with (source / "README.md").open("a") as readme:
        readme.write("\n[nowhere](docs/protocol.md#nothing-of-that-name)\n")
    done = built()
    assert done.returncode != 0
    assert "nothing-of-that-name" in done.stderr
