"""
RabbitMQ's HTTP API (its management plugin): one broker, a classic queue.

It has no lease: a task is published, and got for good. So a cycle has two requests instead of
three.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ports import free_ports
from benchmarks.targets import START_S, Target, running
from benchmarks.trios.rabbitmq import places, script, surroundings

from .http_connection import HttpConnection

QUEUE = "bench.cycle"
LOGIN = f"Authorization: Basic {base64.b64encode(b'guest:guest').decode()}\r\n"
PUBLISH = "/api/exchanges/%2F/amq.default/publish"
GET = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}


class RabbitHttp(HttpConnection):
    """Publish, then get, which acknowledges."""

    HEADERS = LOGIN

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        assert not delay_ms, "there are no delays"
        text = (self.board.payload if payload is None else payload).decode()
        body = {"routing_key": QUEUE, "payload": text, "payload_encoding": "string"}
        self.ask(PUBLISH, body | {"properties": {"delivery_mode": 2}})

    def take(self) -> None:
        self.ask(f"/api/queues/%2F/{QUEUE}/get", GET)

    def ack(self, task: Any) -> None:
        self.was_acked()

    def answered(self, found: Any) -> None:
        if isinstance(found, dict):
            self.was_put()
        elif found:
            self.was_taken(None, found[0]["payload"].encode())
        else:  # another connection was first; it has no long poll
            self.take()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Target]:
    """Start a broker with its data in ``folder``. Raises: Missing."""
    server = script("rabbitmq-server")
    port, home = free_ports(4), folder / "rabbit-http"
    home.mkdir()
    cookie = home / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port + 1}\nmanagement.tcp.ip = 127.0.0.1\n"
        f"management.tcp.port = {port}\nmanagement.rates_mode = none\nlog.file.level = warning\n"
    )
    (home / "enabled_plugins").write_text("[rabbitmq_management].\n")
    own = places(home, f"http{secrets.token_hex(3)}@localhost", port + 2)
    names = {**os.environ, **surroundings(home, port + 3), **own}
    epmd = [shutil.which("epmd") or "epmd", "-address", "127.0.0.1", "-port", str(port + 3)]
    with (
        running(epmd, port + 3, folder, "epmd-http"),
        running([str(server)], port, folder, "rabbitmq-http", names) as process,
    ):
        told = _made(port)
        version = f"RabbitMQ {told['rabbitmq_version']}, its HTTP API, two requests a cycle"
        pids = {"broker": process.pid}
        yield Target("rabbitmq", "127.0.0.1", port, pids, RabbitHttp, version=version)


def _made(port: int) -> Any:
    """What the broker says of itself, once it has the queue."""
    until = time.monotonic() + START_S
    while True:
        try:
            _call(port, "PUT", f"/api/queues/%2F/{QUEUE}", {"durable": True})
            return _call(port, "GET", "/api/overview", None)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _call(port: int, method: str, path: str, body: Any) -> Any:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Authorization": LOGIN.strip().partition(": ")[2]},
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        found = answer.read()
    return msgspec.json.decode(found) if found else None
