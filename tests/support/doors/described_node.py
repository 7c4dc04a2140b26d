"""A node with accounts of our sandbox, as a client sees it who has read /v1/openapi.json."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.cluster.harness import ADMIN, Cluster, Node, free_base_port, serving, spawn, until

from tidewarden.sandbox.grants import CLIENT_ID, CLIENT_SECRET

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
    """One node that has the accounts ``sandbox/user-N`` of a sandbox of ours."""
    port = free_base_port()
    argv = [sys.executable, "-m", "tidewarden", "sandbox", "--port", str(port)]
    argv += ["--accounts", str(ACCOUNTS), "--data-dir", str(folder / "sandbox")]
    (folder / "sandbox").mkdir(parents=True)
    process = spawn(argv, folder / "sandbox.log")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as sandbox:
            until(lambda: _answers(sandbox), what="the sandbox serves")
            seeds = sandbox.get(f"/seed?n={ACCOUNTS}").text.splitlines()
        extra = f"""
[providers.sandbox]
token_url = "http://127.0.0.1:{port}/token"
client_id = "{CLIENT_ID}"
client_secret = {json.dumps(CLIENT_SECRET)}
"""
        with serving(request, Cluster(folder / "cluster", nodes=1, extra=extra)) as made:
            found = DescribedNode(made)
            _put(found, seeds)
            yield found
    finally:
        process.terminate()
        process.wait(30)


def _answers(sandbox: httpx.Client) -> bool:
    try:
        return sandbox.get("/stats").status_code == 200
    except httpx.TransportError:
        return False


def _put(found: DescribedNode, seeds: list[str]) -> None:
    names = seeds[0].split("\t")
    with found.user() as client:
        for line in seeds[1:]:
            row = dict(zip(names, line.split("\t"), strict=True))
            account = row.pop("account")
            body = {name: row[name] for name in ("refresh_token", "access_token") if row.get(name)}
            client.put(f"/v1/tokens/sandbox/{account}", json=body).raise_for_status()
