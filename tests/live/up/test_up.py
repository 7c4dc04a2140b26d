"""
``tidewarden up`` as a user runs it: processes, signals, ports, and that nothing is left behind.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster.processes import until
from support.cluster.running_up import (
    UP,
    Running,
    base_port,
    data,
    leader,
    processes_in,
    up,
)
from support.doors.command_line import app
from typer.testing import CliRunner

__all__ = ["base_port", "data", "up"]  # fixtures

pytestmark = pytest.mark.timeout(400)


def test_a_cluster_loses_its_leader_stops_and_goes_on(
    up: Callable[..., Running], data: Path, base_port: int
) -> None:
    first = up("--sandbox", "20")
    ready = until(lambda: first.said("READY"), 60)
    assert ready == "READY " + " ".join(f"redis://127.0.0.1:{base_port + 10 * i}" for i in range(3))
    until(lambda: first.said("20 accounts imported"))
    old = until(lambda: leader(data), every_s=0.2)
    assert (data / "secrets" / "admin.secret").stat().st_mode & 0o077 == 0
    assert (data / "n0" / "node.toml").stat().st_mode & 0o077 == 0

    os.kill(old["pid"], signal.SIGKILL)
    until(lambda: first.said(old["node"], "was killed by SIGKILL; it starts again in 5 s"))

    def told() -> Any:
        """Whoever leads by now, once that is said: another may lead before anybody looks."""
        found = leader(data)
        says = "up", f"{found.get('node')} leads, epoch {found.get('epoch')}"
        return found.get("epoch", 0) > old["epoch"] and first.said(*says) and found

    new = until(told, every_s=0.2)
    assert new["node"] != old["node"]
    until(
        lambda: (
            sum(f" {old['node']} " in line and line.endswith("serves") for line in first.lines) == 2
        )
    )

    assert first.stop(signal.SIGINT) == 0
    assert processes_in(data) == {}
    assert first.lines[-1].endswith("stopped")


def test_killed_itself_it_takes_everything_along_and_goes_on(
    up: Callable[..., Running], data: Path
) -> None:
    """
    Its next run has what the first had; then its store is killed, too, and a second one on the
    folder is refused.
    """
    first = up("--nodes", "1", "--sandbox", "5")
    until(lambda: first.said("5 accounts imported"), 60)
    assert len(processes_in(data)) >= 4  # up, store, sandbox, node
    first.stop(signal.SIGKILL)

    again = up("--nodes", "1", "--sandbox", "5")
    until(lambda: again.said("READY"), 60)
    assert again.said("store", "view 2")
    assert not again.said("importing")
    listed = CliRunner().invoke(app, ["token", "list", "--data-dir", str(data), "--json"])
    assert listed.stdout.count("sandbox/user-") == 5
    said = refused(data, 20_900, "--nodes", "1")
    assert (
        f"data folder {data}: in use by process {again.process.pid}; stop that one or name another"
        in said
    )
    (pid,) = (pid for pid, line in processes_in(data).items() if "valkey-server" in line)
    os.kill(pid, signal.SIGKILL)
    until(lambda: again.said("store", "was killed by SIGKILL"))
    until(lambda: again.said("store", "serves again", "view 3"))
    assert not [line for line in again.lines if line.startswith("store ")], (
        "the store's log stands in the midst"
    )
    assert again.stop(signal.SIGTERM) == 0
    assert processes_in(data) == {}


def refused(data: Path, base_port: int, *words: str) -> str:
    """What ``up`` says that is refused before it starts anything."""
    done = CliRunner().invoke(
        app, ["up", "--data-dir", str(data), "--base-port", str(base_port), *words]
    )
    assert done.exit_code == 4
    return done.output


def test_every_busy_port_is_named_with_its_holder(base_port: int, data: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", base_port + 1)),
        socket.create_server(("127.0.0.1", base_port + 12)),
    ):
        said = refused(data, base_port, "--nodes", "2")
        assert f"port {base_port + 1} (n0, HTTP): in use by process {os.getpid()} (" in said
        assert f"port {base_port + 12} (n1, Raft): in use by process {os.getpid()} (" in said
        assert "--base-port N" in said
        assert not (data / "secrets").exists()


@pytest.mark.parametrize("folder", ["a-file/data", "/proc/nowhere"])
def test_an_unwritable_folder_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a-file").touch()
    done = CliRunner().invoke(app, ["up", "--data-dir", str(tmp_path / folder), "--json"])
    assert done.exit_code == 4
    (line,) = done.stdout.splitlines()
    assert f"data folder {tmp_path / folder}: cannot be written" in json.loads(line)["problems"][0]


def test_a_wrong_binary_stops_the_start(data: Path, base_port: int, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[store]\nbinary = "/bin/sleep"\n')
    words = [
        "--config",
        str(tmp_path / "config.toml"),
        "--data-dir",
        str(data),
        "--base-port",
        str(base_port),
    ]
    done = CliRunner().invoke(app, ["up", *words])
    assert done.exit_code == 4
    assert "store.binary: /bin/sleep is no valkey-server" in done.output
    assert processes_in(data) == {}


@pytest.fixture(scope="module")
def shown(base_port: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A lone node's run in a terminal, which has ended: its data folder, and what could be read."""
    data = tmp_path_factory.mktemp("lone") / "data"
    ours, theirs = pty.openpty()
    arguments = ["--nodes", "1", "--data-dir", str(data), "--base-port", str(base_port)]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [*UP, *arguments], stdout=theirs, stderr=theirs, stdin=theirs, env=environ
    ) as process:
        os.close(theirs)
        shown = b""
        end = time.monotonic() + 120
        while (
            b"leads, epoch 1" not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown)
            or b"kill -9" not in shown
        ):
            assert time.monotonic() < end, shown.decode(errors="replace")
            shown += os.read(ours, 65_536)
        process.send_signal(signal.SIGTERM)
        while True:
            try:
                shown += os.read(ours, 65_536)
            except OSError:
                break
        assert process.wait(120) == 0
    os.close(ours)
    assert processes_in(data) == {}
    return data, re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()


def test_a_terminal_shows_the_live_view(shown: tuple[Path, str]) -> None:
    _, text = shown
    assert "n0 leads, epoch 1" in text
    assert "stopped" in text


def resized(up: Callable[..., Running], data: Path, count: int) -> Running:
    """
    One run on the folder with so many nodes; their number of members is right, and it has ended.
    """
    running = up("--data-dir", str(data), "--nodes", str(count))
    until(lambda: running.said("READY"), 60)
    names = [f"n{number}" for number in range(count)]
    # one that has left is shown, without a vote, until it is taken for dead
    until(lambda: sorted(leader(data).get("members", ())) == names, every_s=0.2)
    assert running.stop(signal.SIGTERM) == 0
    return running


def test_more_nodes_than_before_join(
    up: Callable[..., Running], shown: tuple[Path, str], base_port: int
) -> None:
    data, _ = shown  # where one ran
    assert resized(up, data, 2).said("n1", "joins the cluster")
    said = refused(data, base_port, "--nodes", "1")
    assert "has 2 nodes, so a majority must stay" in said
    assert "tidewarden cluster leave n1" in said


@pytest.mark.soak
def test_fewer_nodes_than_before_leave_and_may_come_back(
    up: Callable[..., Running], data: Path
) -> None:
    resized(up, data, 3)
    assert resized(up, data, 2).said("n2", "left the cluster")
    assert resized(up, data, 3).said("n2", "joins the cluster")
