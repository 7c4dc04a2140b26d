"""
What is published: the built wheel, installed into an empty environment elsewhere, runs and has
everything inside.
"""

from __future__ import annotations

import email
import os
import signal
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.ports import free_ports

ROOT = Path(__file__).parents[3]
UP_PORTS = 100  # the sandbox is at the ninetieth

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree."""
    out = tmp_path_factory.mktemp("wheel")
    argv = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        str(ROOT),
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(
    scope="module", params=["linked", pytest.param("downloaded", marks=pytest.mark.soak)]
)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """
    Folder of the programs of an environment that has the wheel and what it asks for, nothing else.
    """
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder)  # our pip installs into it; nothing is compiled that is not imported
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    argv = [*pip, "install", "--quiet", "--no-compile", str(wheel)]
    if request.param == "linked":
        argv.append("--no-deps")
        (site,) = folder.glob("lib/*/site-packages")
        link_what_it_asks_for(wheel, site)
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def link_what_it_asks_for(wheel: Path, site: Path) -> None:
    """
    What the wheel asks for, what that asks for, and so on, out of this environment: pip takes ten
    times as long.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    wanted = [(line, "") for line in asked]
    assert len(wanted) > 10
    for line, extra in wanted:  # which grows meanwhile
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(found.version), (
            f"{line}: this environment has {found.version}"
        )
        for path in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            place = site / path
            if not place.is_symlink():
                place.symlink_to(Path(str(found.locate_file(path))))
        further = [
            (one, name) for one in found.requires or () for name in ("", *requirement.extras)
        ]
        wanted += [one for one in further if one not in wanted]


def environ() -> dict[str, str]:
    """This environment without what would lead back to the working tree or to another cluster."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TIDEWARDEN", "VIRTUAL_ENV"))
    }


def test_every_module_script_and_page_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tidewarden").rglob("*")
        if path.suffix in (".py", ".lua", ".html", ".css", ".js", ".svg")
        or path.name in ("py.typed", "uPlot.LICENSE.txt")
    }
    assert any(name.endswith(".lua") for name in wanted)
    assert any(name.endswith("console/static/index.html") for name in wanted)
    assert wanted <= inside
    assert not [name for name in inside if name.startswith("tests/")]


def test_it_runs_elsewhere(installed: Path, tmp_path: Path) -> None:
    argv = [str(installed / "tidewarden"), "version"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environ())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tidewarden ")
    assert "cannot be run" not in done.stdout
    where = [str(installed / "python"), "-c", "import tidewarden; print(tidewarden.__file__)"]
    out = subprocess.run(
        where, capture_output=True, text=True, cwd=tmp_path, env=environ(), check=True
    ).stdout
    assert out.startswith(str(installed.parent))


def test_it_runs_a_cluster_and_stops_it(installed: Path, tmp_path: Path) -> None:
    argv = [
        str(installed / "tidewarden"),
        "up",
        "--nodes",
        "1",
        "--sandbox",
        "5",
        "--base-port",
        str(free_ports(UP_PORTS)),
    ]
    with (
        open(tmp_path / "err", "wb") as err,
        subprocess.Popen(
            argv, cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=err, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:  # the test's own time-out bounds it
                lines.append(line)
                if "READY" in line:
                    break
            else:
                pytest.fail("".join(lines) + (tmp_path / "err").read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.terminate()
