"""
Lay the documents out for ``make docs``: as in the repository, so that every link keeps its meaning.

    python docs/site_source.py FOLDER

The folder gets all documents and what they link to. A folder that is linked to gets a page with its
files.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)((?:#[^)\s]*)?)\)")


def documents() -> list[Path]:
    """Return every document, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def take(path: Path, into: Path) -> None:
    """Copy a file of the repository, or all of a folder with a page that lists it."""
    there = into / path
    there.parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / path).is_file():
        shutil.copy(ROOT / path, there)
        return
    files = sorted(one for one in (ROOT / path).rglob("*") if one.is_file())
    lines = []
    for one in files:
        if "__pycache__" in one.parts:
            continue
        name = one.relative_to(ROOT / path).as_posix()
        if one.suffix != ".md":
            take(one.relative_to(ROOT), into)
        title = one.read_text("utf-8").splitlines()[0].lstrip("# ") if one.suffix == ".md" else name
        lines.append(f"- [{title}]({name})")
    there.mkdir(exist_ok=True)
    (there / "index.md").write_text("\n".join([f"# {path.name}", "", *lines, ""]), "utf-8")


def lay_out(into: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for document in documents():
        text = (ROOT / document).read_text("utf-8")

        def led(found: re.Match[str], here: Path = document.parent) -> str:
            link, anchor = found[1], found[2]
            target = (ROOT / here / link).resolve().relative_to(ROOT)
            if target.suffix == ".md" or not (ROOT / target).exists():
                return found[0]
            take(target, into)
            if (ROOT / target).is_dir():
                link = f"{link.rstrip('/')}/index.md"
            return f"]({link}{anchor})"

        (into / document).parent.mkdir(parents=True, exist_ok=True)
        (into / document).write_text(LINK.sub(led, text), "utf-8")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
