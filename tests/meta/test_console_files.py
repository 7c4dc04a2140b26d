"""The console's files are plain: nothing in them is markup made of data, inline, or from abroad."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "tidewarden/server/console/static"
VENDORED = ROOT / "vendor"
FILES = sorted(path for path in ROOT.rglob("*") if path.is_file())
OURS = [path for path in FILES if VENDORED not in path.parents]
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
SENT_BYTES_MAX = 70_000  # packed, as a browser is sent them
WIDTH_MAX = 100
# What makes markup or code of text, by which the name of a queue could do something.
MAKES_MARKUP = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser"
    r"|createContextualFragment|setHTMLUnsafe|eval|Function)\b(?!:)"
)
ABROAD = re.compile(r"""(?:https?:)?//[a-z0-9-]+\.[a-z]""", re.IGNORECASE)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_no_text_becomes_markup_or_code() -> None:
    assert not names([path for path in SCRIPTS if MAKES_MARKUP.search(path.read_text("utf-8"))])
    assert MAKES_MARKUP.search("place.innerHTML = name")


def test_nothing_is_inline() -> None:
    """The policy forbids it, so that it would do nothing anyway."""
    for path in (path for path in FILES if path.suffix in (".html", ".svg")):
        text = path.read_text("utf-8")
        assert not re.search(r"\s(on[a-z]+|style)\s*=", text), path.name
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style", text), path.name
    styled = re.compile(r"""setAttribute\(\s*["'](on|style)""")
    assert not names([path for path in SCRIPTS if styled.search(path.read_text("utf-8"))])


def test_nothing_is_fetched_from_elsewhere() -> None:
    """Addresses that name a standard, as of SVG, are not fetched."""
    own = [path for path in OURS if path.suffix != ".svg"]
    assert not names([path for path in own if ABROAD.search(path.read_text("utf-8"))])


def test_it_is_small_and_its_lines_end_at_100_columns() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in OURS) < SENT_BYTES_MAX
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in OURS
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > WIDTH_MAX
    ]
    assert not wide


def test_what_is_vendored_has_its_licence() -> None:
    assert "MIT License" in (VENDORED / "uPlot.LICENSE.txt").read_text("utf-8")


def test_every_module_that_is_imported_is_there() -> None:
    imported = re.compile(r"""\b(?:from|import|URL)\s*\(?\s*"(\.[^"]+)\"""")
    for path in (path for path in OURS if path.suffix == ".js"):
        for name in imported.findall(path.read_text("utf-8")):
            assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which reads the modules")
def test_every_script_is_javascript() -> None:
    for path in SCRIPTS:
        subprocess.run(["node", "--check", path], check=True, timeout=250)
