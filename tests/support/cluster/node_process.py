"""One node of a live test: its process, its signals, its log and its doors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster.nursery import Child
from support.cluster.processes import ADMIN, LIMIT_S, spawn

from tidewarden.client.replies import mapped


class Node:
    """
    One node process: its configuration file, its logs, its signals, its doors.

    ``host``: where it listens. ``namespace``, ``environ``: as of
    :func:`support.cluster.processes.spawn`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        base_port: int,
        text: str,
        secret: str,
        *,
        host: str = "127.0.0.1",
        namespace: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self._namespace = namespace
        self._environ = environ
        self.folder = folder
        self.base_port = base_port
        self.config = folder / "node.toml"
        self.output = folder / "output.log"
        self.secret = secret
        self._process: Child | subprocess.Popen[bytes] | None = None
        # Without `verify`, for which it would read every certificate there is; and nothing kept
        # alive that a kill would cut.
        self._http = httpx.Client(
            trust_env=False,
            verify=False,
            timeout=LIMIT_S,
            headers={"Authorization": f"Bearer {ADMIN}:{secret}"},
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self.stopped = False
        folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    # Its process.

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; :meth:`ready` tells when it serves."""
        if self._environ:  # such as LD_PRELOAD, which concerns only what is executed
            argv = [sys.executable, "-m", "tidewarden", "node", "--config", str(self.config)]
            self._process = spawn(
                argv, self.output, namespace=self._namespace, environ=self._environ
            )
        else:
            self._process = Child(self.config, self.output, self._namespace)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self.stopped = False

    def terminate(self, limit_s: float = LIMIT_S) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(limit_s)

    def close(self) -> None:
        """End the process, for good."""
        self.kill()
        self._http.close()

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    # What is seen of it.

    def log(self) -> str:
        """Its log so far."""
        path = self.folder / f"{self.name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def messages(self, since: int = 0) -> list[str]:
        """The messages of its log, from character ``since`` on."""
        return [
            json.loads(line)["message"]
            for line in self.log()[since:].splitlines()
            if line.startswith("{")
        ]

    def client(self, **options: Any) -> redis.Redis:
        """A plain client, one connection, nothing repeated."""
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.base_port,
            "username": ADMIN,
            "password": self.secret,
            "single_connection_client": True,
            "socket_timeout": LIMIT_S,
            "socket_connect_timeout": 20,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": True,
        }
        return redis.Redis(**(defaults | options))

    def aclient(self) -> redis.asyncio.Redis:
        """The same for asyncio, without a time-out: it may WAIT."""
        return redis.asyncio.Redis(
            host=self.host,
            port=self.base_port,
            username=ADMIN,
            password=self.secret,
            single_connection_client=True,
            socket_timeout=None,
            socket_connect_timeout=20,
            retry=AsyncRetry(NoBackoff(), 0),
            decode_responses=True,
        )

    def say(self, *words: Any) -> Any:
        """One command on a connection of its own."""
        with self.client(socket_timeout=30) as client:
            return client.execute_command(*words)

    def status(self) -> dict[str, Any]:
        """R.STATUS."""
        return mapped(self.say("R.STATUS"))

    def http(self, path: str, **options: Any) -> httpx.Response:
        """GET ``path`` as the admin, on a connection of its own."""
        return self._http.get(f"http://{self.host}:{self.base_port + 1}{path}", **options)

    def metric(self, name: str, kind: str = "") -> float:
        """A number of /metrics; 0 when it is not there."""
        wanted = f'{name}{{kind="{kind}"}}' if kind else name
        for line in self.http("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == wanted:
                return float(value)
        return 0.0

    def ready(self) -> bool:
        """Whether it serves."""
        assert self.running, f"{self.name} ended:\n{self.output.read_text()[-3000:]}"
        return self.http("/health/ready").status_code == 200


def shown(line: str) -> str:
    """A line of a node's JSON log, for people."""
    with contextlib.suppress(ValueError, KeyError):
        record = json.loads(line)
        text = (
            f"{record['time'][11:23]} {record['level']:7} {record['logger'][11:]}:"
            f" {record['message']}"
        )
        return text + ("\n" + record["trace"] if "trace" in record else "")
    return line
