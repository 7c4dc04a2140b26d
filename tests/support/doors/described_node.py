"""A node with accounts of our sandbox, as a client sees it who has read /v1/openapi.json."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster.harness import ADMIN, Cluster, Node, serving
from support.doors.http_app import served_in_thread
from support.providers.consenting_provider import consenting_provider
from support.providers.provider_settings import section
from support.providers.sandbox_process import SandboxProcess

ACCOUNTS = 3


class DescribedNode:
    """``node``, its ``cluster``, and ``document``, as it was answered to somebody without login."""

    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        self.node: Node = next(iter(made.nodes.values()))
        self.url = f"http://{self.node.host}:{self.node.base_port + 1}"
        self.bearer = {"Authorization": f"Bearer {ADMIN}:{made.secret}"}
        with self.client() as client:
            self.document: dict[str, Any] = client.get("/v1/openapi.json").json()

    def client(self, **headers: str) -> httpx.Client:
        """A client of the node; ``headers`` go with every request."""
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def user(self) -> httpx.Client:
        """A client that is the administrator's."""
        return self.client(**self.bearer)

    def operation(self, method: str, path: str) -> dict[str, Any]:
        """What is described of a request: of the path without names, else of one that fits."""
        for known, methods in self.document["paths"].items():
            pattern = re.sub(r"{\w+}", "[^/]+", known)
            if re.fullmatch(pattern, path) and method.lower() in methods:
                found: dict[str, Any] = methods[method.lower()]
                return found
        raise KeyError(f"{method} {path}")


@contextlib.contextmanager
def described(request: pytest.FixtureRequest, folder: Path) -> Iterator[DescribedNode]:
    """
    One node that has the accounts ``sandbox/user-N`` of a sandbox of ours, and a provider ``codes``
    at which people consent.
    """
    sandbox = SandboxProcess(folder / "sandbox", ACCOUNTS)
    try:
        with served_in_thread(consenting_provider(interval=60.0)) as codes:
            places = {
                "authorization_url": codes.authorization_url,
                "device_url": f"{codes.url}/device",
            }
            extra = section("sandbox", sandbox) + section("codes", codes, **places)
            extra += '[connect]\nurl = "http://127.0.0.1:1"\n'
            with serving(request, Cluster(folder / "cluster", nodes=1, extra=extra)) as made:
                found = DescribedNode(made)
                _put(found, sandbox.rows)
                yield found
    finally:
        sandbox.stop()


def _put(found: DescribedNode, rows: list[dict[str, str]]) -> None:
    with found.user() as client:
        for row in rows:
            body = {name: row[name] for name in ("refresh_token", "access_token") if row.get(name)}
            path = f"/v1/tokens/sandbox/{row['account']}"
            client.put(path, json=body).raise_for_status()
