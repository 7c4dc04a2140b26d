"""A node of two processes that speaks TLS: redis-py, httpx, the SDK, and a fresh certificate."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.cluster.harness import ADMIN, Cluster, Node, closing, until
from support.providers import certificate

from tidewarden.cli.connection import Broken, dial
from tidewarden.client import Client
from tidewarden.client.replies import mapped


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return certificate.make(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pem: tuple[str, str]
) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("tls"), nodes=1)
    node = cluster.nodes["n0"]
    settings = {"tls_cert": pem[0], "tls_key": pem[1]}
    changes = {f"node__{name}": f'"{path}"' for name, path in settings.items()}
    node.config.write_text(cluster.config_text("n0", node__processes="2", **changes))
    with closing(request, cluster):
        node.start()
        until(lambda: served(node, pem[0]), what="n0 serves")
        yield cluster


def served(node: Node, ca: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        url = f"https://127.0.0.1:{node.base_port + 1}/health/ready"
        return (
            httpx.get(
                url, verify=ssl.create_default_context(cafile=ca), trust_env=False
            ).status_code
            == 200
        )
    return False


def client(node: Node, ca: str, **options: Any) -> redis.Redis:
    return node.client(host="127.0.0.1", ssl=True, ssl_ca_certs=ca, **options)


def test_takes_wait_and_what_is_held_is_free_when_its_connection_goes(
    made: Cluster, pem: tuple[str, str]
) -> None:
    node = made.nodes["n0"]
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(client(node, pem[0], protocol=2 + number % 2))
            for number in range(8)
        ]
        for number, one in enumerate(clients):
            assert one.execute_command("Q.PUT", "big", bytes(1_000_000), "ID", str(number)) == str(
                number
            )
        first, second = clients[:2]
        assert len(first.execute_command("Q.TAKE", "COUNT", 100, "FROM", "big")) == 8
        assert second.execute_command("Q.TAKE", "FROM", "big") == []
        first.close()
        rows: list[Any] = []
        while len(rows) < 8:
            rows += second.execute_command("Q.TAKE", "COUNT", 100, "WAIT", 50_000, "FROM", "big")
        pairs = [word for row in rows for word in row[1:3]]
        assert second.execute_command("Q.ACK", "big", *pairs) == [1] * 8
        # passed on by the other process
        assert mapped(clients[2].execute_command("R.STATUS"))["pid"] == node.pid


def test_the_sdk_works_with_it(made: Cluster, pem: tuple[str, str]) -> None:
    node = made.nodes["n0"]
    with Client(f"rediss://{ADMIN}:{made.secret}@127.0.0.1:{node.base_port}?ca={pem[0]}") as sdk:
        queue = sdk.queue("sdk")
        queue.put(b"x")
        task = queue.take(wait_ms=50_000)
        assert task is not None
        with task:
            assert task.payload == b"x"


def test_the_command_line_works_with_it(made: Cluster, pem: tuple[str, str]) -> None:
    node = made.nodes["n0"]
    here = f"127.0.0.1:{node.base_port}"
    line = dial(f"rediss://{ADMIN}:{made.secret}@{here}?ca={pem[0]}")
    try:
        line.call("Q.PUT", "cli", "x" * 1_000_000, "ID", "line")
        assert len(line.call("Q.PEEK", "cli", "line")["payload"]) == 1_000_000
    finally:
        line.close()
    with pytest.raises(Broken, match="certificate verify failed"):
        dial(f"rediss://{ADMIN}:{made.secret}@{here}")
    with pytest.raises(Broken):
        dial(f"redis://{ADMIN}:{made.secret}@{here}")


def test_a_fresh_certificate_counts_in_every_process(
    made: Cluster, pem: tuple[str, str], tmp_path: Path
) -> None:
    node = made.nodes["n0"]
    fresh = certificate.make(tmp_path)
    with client(node, pem[0]) as old:
        for source, target in zip(fresh, pem, strict=True):
            shutil.copy(source, target)
        os.kill(node.pid, signal.SIGHUP)

        def taken_up() -> bool:
            found = {
                ssl.get_server_certificate(("127.0.0.1", node.base_port + n % 2)) for n in range(16)
            }
            return {text.strip() for text in found} == {Path(fresh[0]).read_text().strip()}

        until(taken_up, what="the fresh certificate at both doors")
        assert old.ping()
