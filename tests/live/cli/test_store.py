"""``tidewarden store``: a node's store as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster.processes import until
from support.doors.command_line import app
from support.providers.certificate import make
from support.store.running_store import RunningStore
from support.store.running_store import look as look_at
from typer.testing import CliRunner

from benchmarks.ports import free_ports
from tidewarden.config.load import hash_generated
from tidewarden.store.embedded import lineage
from tidewarden.store.embedded.credentials import StoreCredentials

Starter = Callable[[], subprocess.Popen[str]]
LIMIT_S = 60
CREDENTIALS = StoreCredentials.of("a cluster secret")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration of one of three nodes."""
    secret = tmp_path / "secret"
    secret.write_text("a cluster secret\n")
    base = free_ports(4)
    file = tmp_path / "n0.toml"
    file.write_text(
        f'[cluster]\nsecret_file = "{secret}"\nmembers = {{ n0 = "127.0.0.1:{base}",'
        ' n1 = "127.0.0.1:1", n2 = "127.0.0.1:2" }\n'
        f'[node]\nbase_port = {base}\ndata_dir = "{tmp_path / "data"}"\n'
    )
    return file


@pytest.fixture
def start(file: Path) -> Iterator[Starter]:
    """Starts ``tidewarden store`` and waits until it says that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def starter() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidewarden", "store", "--config", str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if "READY: the store of n0" in line:
                return process
        raise AssertionError("it ended")

    yield starter
    for process in started:
        process.kill()
        process.wait(LIMIT_S)
        assert process.stderr is not None
        process.stderr.close()


def look(tmp_path: Path) -> RunningStore:
    return look_at(tmp_path / "data" / "store", "n0", CREDENTIALS)


def test_it_runs_the_store_until_it_is_told_to_stop(start: Starter, tmp_path: Path) -> None:
    process = start()
    first = look(tmp_path)
    assert first.continues == ()
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)
    left = lineage.read(tmp_path / "data" / "store")
    assert left is not None
    assert left.clean
    start()
    assert look(tmp_path).continues == (first.incarnation,)


def test_with_a_certificate_it_is_reached_by_tls_alone(
    start: Starter, file: Path, tmp_path: Path
) -> None:
    certificate, key = make(tmp_path)
    text = file.read_text() + f'tls_cert = "{certificate}"\ntls_key = "{key}"\n'
    file.write_text(text)
    start()
    port = tomllib.loads(text)["node"]["base_port"] + 3
    login = {"username": "daemon", "password": CREDENTIALS.daemon}
    where = {"host": "127.0.0.1", "port": port}
    with redis.Redis(
        **where, **login, ssl=True, ssl_ca_certs=certificate, decode_responses=True
    ) as there:
        assert there.config_get("port") == {"port": "0"}
    with (
        redis.Redis(**where, **login, socket_timeout=LIMIT_S, retry=Retry(NoBackoff(), 0)) as plain,
        pytest.raises(redis.ConnectionError),
    ):
        plain.ping()


def test_a_second_one_is_refused_and_names_the_first(start: Starter, file: Path) -> None:
    process = start()
    second = CliRunner().invoke(app, ["store", "--config", str(file)])
    assert second.exit_code == 4
    assert f"in use by process {process.pid}; stop that one" in second.stderr
    assert process.poll() is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["store.url=redis://h:1"], "store.url: found the address of a server; allowed for"),
        (["node.role=worker", "node.name=w0"], "node.role: found 'worker', which has no store"),
        (["cluster.members=n0=127.0.0.1:9"], "cluster.members"),
        (["store.fsync=never"], "store.fsync: found 'never'"),
    ],
)
def test_a_node_without_such_a_store_is_told_why(
    file: Path, settings: list[str], said: str
) -> None:
    flags = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["store", "--config", str(file), *flags])
    assert done.exit_code == 4
    assert said in done.stderr
    told = CliRunner().invoke(app, ["store", "--config", str(file), *flags, "--json"])
    assert told.exit_code == 4
    assert json.loads(told.stdout)["ok"] is False


def test_a_node_alone_runs_its_store_itself(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["store", "--set", f"node.data_dir={tmp_path}"])
    assert done.exit_code == 4
    assert "for one alone runs its store itself: tidewarden node" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_taken_port_ends_the_start_with_the_servers_words(start: Starter, file: Path) -> None:
    start()
    other = file.with_name("other")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tidewarden",
            "store",
            "--config",
            str(file),
            "--set",
            f"node.data_dir={other}",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot start: valkey-server ended with status 1; it said: " in done.stderr
    assert "listen" in done.stderr


def test_a_nodes_restart_leaves_the_store_and_what_it_has(
    start: Starter, file: Path, tmp_path: Path
) -> None:
    """The last of three nodes; killed and started anew, it finds the same start of the store."""
    host = start()
    assert look(tmp_path).pid
    (members,) = (line for line in file.read_text().splitlines() if "members" in line)
    secret_hash = hash_generated("of-the-tests")
    alone = file.read_text().replace(members, "")
    file.write_text(f'{alone}[[users]]\nname = "admin"\nsecret_hash = "{secret_hash}"\n')
    port = tomllib.loads(alone)["node"]["base_port"]

    def ask(*words: str) -> Any:
        with redis.Redis(
            port=port,
            username="admin",
            password="of-the-tests",
            protocol=3,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            try:
                return client.execute_command(*words)
            except redis.RedisError:
                return None

    views, stores = [], []
    for number in range(2):
        with subprocess.Popen(
            [sys.executable, "-m", "tidewarden", "node", "--config", str(file)],
            stderr=subprocess.DEVNULL,
        ) as node:
            try:
                until(lambda number=number: ask("Q.PUT", "mail", "x", "ID", str(number)), LIMIT_S)
                status = ask("R.STATUS")
                views.append(status["view"])
                stores.append((status["store_pid"], look(tmp_path)))
                assert (status["primary"], status["in_sync"]) == ("n0", "n0")
                assert ask("Q.STATS", "mail")["total"] == number + 1
            finally:
                node.kill()
    assert stores[0] == stores[1]
    assert views[0] == views[1], "no failover"
    assert host.poll() is None
