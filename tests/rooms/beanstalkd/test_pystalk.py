"""
pystalk's own tests, as they are, against our door.

They come from its repository (the package has none of them): ``TIDEWARDEN_TEST_PYSTALK`` names a
checkout, else it is cloned.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.doors.beanstalkd_site import BeanstalkdSite

REPOSITORY = "https://github.com/EasyPost/pystalk"
FETCH_S = 60
# started as `beanstalkd -b folder -l host -p port`: whoever comes is led to our door
STAND_IN = """#!{python}
import socket, sys, threading

def copy(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
while True:
    near, _ = listening.accept()
    far = socket.create_connection(("127.0.0.1", {port}))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""

pytestmark = pytest.mark.thorough


def fetched(folder: Path) -> Path:
    """A checkout of pystalk."""
    if named := os.environ.get("TIDEWARDEN_TEST_PYSTALK"):
        return Path(named)
    command = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, str(folder / "pystalk")]
    environ = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        subprocess.run(command, env=environ, timeout=FETCH_S, check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"pystalk's repository cannot be had: {error}")
    return folder / "pystalk"


def with_mocks(folder: Path) -> list[str]:
    """Where pytest-mock is, which its tests use."""
    if importlib.util.find_spec("pytest_mock") is not None:
        return []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", str(folder / "mock"), "pytest-mock"]
    try:
        subprocess.run(command, timeout=FETCH_S, check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"pytest-mock cannot be had: {error}")
    return [str(folder / "mock")]


async def test_pystalks_own_tests_pass(site: BeanstalkdSite, tmp_path: Path) -> None:
    source = await asyncio.to_thread(fetched, tmp_path)
    places = [str(source), *await asyncio.to_thread(with_mocks, tmp_path)]
    stand_in = tmp_path / "beanstalkd"
    stand_in.write_text(STAND_IN.format(python=sys.executable, port=site.server.port))
    stand_in.chmod(0o700)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ |= {"BEANSTALKD_PATH": str(stand_in), "PYTHONPATH": os.pathsep.join(places)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
        *("--rootdir", str(source), str(source / "tests")),
        cwd=tmp_path,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    print(said.decode().splitlines()[-1])
    assert site.server.stats()["requests_total"]["put"] > 100, "they came here"
