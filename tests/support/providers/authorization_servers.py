"""
Authorization servers that none of us wrote, started on free ports: ``dot`` (Python) and ``oidc``
(Node).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import pytest
from support.run.installed import npm_folder

HERE = Path(__file__).parent
START_S = 120.0
ACCOUNTS_MAX = 300  # more, and django-oauth-toolkit's 80 refreshes a second are the test


@dataclass
class AuthorizationServer:
    """A running provider. ``seeds``: account and first refresh token of each grant."""

    process: subprocess.Popen[str]
    base: str
    token_url: str
    client_id: str
    client_secret: str
    seeds: list[tuple[str, str]]

    def stats(self) -> dict[str, Any]:
        """
        Its counters: ``requests``, ``refreshes`` (answered 200), ``answers`` by status and error,
        ``live`` grants, ``alive`` (whose they are), ``reuse`` (requests with an older token),
        ``faults``, and ``accounts``: name -> ``generation`` and, by the generation that was
        presented (as text), ``requests`` and ``refreshes``.
        """
        with httpx.Client(trust_env=False, verify=False, timeout=30) as client:
            return dict(client.get(f"{self.base}/admin/stats").raise_for_status().json())

    def fault(self, kind: str = "", **options: Any) -> None:
        """
        Set the fault of token requests from now on; without arguments: none.

        ``kind``: ``delay`` (``delay_ms``, before processing, or until the fault is lifted),
        ``drop`` (processed, then the connection is cut: a lost answer), ``status`` (``status`` 503,
        ``retry_after`` seconds), ``html`` (a sign-in page with 200). ``every``: each n-th request;
        ``times``: so many in all.
        """
        with httpx.Client(trust_env=False, verify=False, timeout=30) as client:
            client.post(
                f"{self.base}/admin/fault", json={"kind": kind, **options}
            ).raise_for_status()

    def refresh(
        self, refresh_token: str, *, secret: str | None = None, client: httpx.Client | None = None
    ) -> httpx.Response:
        """
        One refresh over HTTP Basic, as RFC 6749 2.3.1 has it. ``secret`` instead of the right one.
        """
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        auth = (
            quote_plus(self.client_id),
            quote_plus(self.client_secret if secret is None else secret),
        )
        if client is not None:
            return client.post(self.token_url, data=form, auth=auth)
        with httpx.Client(trust_env=False, verify=False, timeout=30) as own:
            return own.post(self.token_url, data=form, auth=auth)

    def stop(self) -> None:
        """End the process: it leaves when its standard input closes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        self.process.stdout.close()


def start(command: list[str], cwd: Path, environ: dict[str, str], log: Path) -> AuthorizationServer:
    """Start a provider and read the line in which it says where it serves."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else ""
    if not line:
        process.kill()
        process.wait(60)
        pytest.fail(f"{command[-1]} did not come up:\n{log.read_text()[-3000:]}")
    ready = json.loads(line)
    ready["seeds"] = [(account, token) for account, token in ready["seeds"]]
    return AuthorizationServer(process, **ready)


@pytest.fixture(scope="module")
def dot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., AuthorizationServer]]:
    """
    ``dot(accounts=50, grace=0, life=60, family=False)`` starts django-oauth-toolkit: refresh tokens
    rotate; within ``grace`` seconds a used one gets the same pair again; with ``family`` its use
    after that revokes the grant. ``life``: seconds an access token lives. ``redirect_uri``: people
    sign in and consent in browsers, and go there. They end with the file.
    """
    servers: list[AuthorizationServer] = []

    def factory(
        accounts: int = 50,
        grace: int = 0,
        life: int = 60,
        family: bool = False,
        redirect_uri: str = "",
    ) -> AuthorizationServer:
        assert accounts <= ACCOUNTS_MAX
        folder = tmp_path_factory.mktemp("dot")
        command = [
            sys.executable,
            str(HERE / "dot_provider.py"),
            "--folder",
            str(folder),
            "--accounts",
            str(accounts),
        ]
        command += ["--grace", str(grace), "--life", str(life), *(["--family"] if family else [])]
        command += ["--redirect-uri", redirect_uri] if redirect_uri else []
        servers.append(start(command, folder, dict(os.environ), folder / "log"))
        return servers[-1]

    yield factory
    for server in servers:
        server.stop()


def installed(folder_name: str, script: str) -> list[str]:
    """
    The command that runs a server of Node's: ``script`` beside what the ``package.json`` of
    ``folder_name`` asks for, which is installed into a cache folder once. Skips, saying why, where
    that cannot be had.
    """
    folder = npm_folder(folder_name, HERE / folder_name / "package.json", script)
    text = (HERE / script).read_bytes()
    # By its content: runs of another version of the file may share the folder.
    copy = folder / f"{hashlib.sha256(text).hexdigest()[:12]}-{script}"
    if not copy.exists():
        partly = folder / f"{copy.name}.{os.getpid()}"
        partly.write_bytes(text)
        partly.rename(copy)
    return ["node", "--no-warnings", str(copy)]


@pytest.fixture(scope="session")
def oidc_command() -> list[str]:
    """What starts oidc-provider."""
    return installed("oidc", "oidc_provider.mjs")


@pytest.fixture(scope="module")
def oidc(
    oidc_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., AuthorizationServer]]:
    """
    ``oidc(accounts=50, life=60)`` starts oidc-provider: single-use refresh tokens, reuse revokes
    the grant, no grace. Further names are its environment, such as ``AUTH`` (see
    oidc_provider.mjs).
    """
    servers: list[AuthorizationServer] = []

    def factory(accounts: int = 50, life: int = 60, **settings: str) -> AuthorizationServer:
        environ = {**os.environ, "ACCOUNTS": str(accounts), "LIFE": str(life), **settings}
        folder = tmp_path_factory.mktemp("oidc")
        servers.append(start(oidc_command, folder, environ, folder / "log"))
        return servers[-1]

    yield factory
    for server in servers:
        server.stop()


@contextlib.contextmanager
def ended() -> Iterator[list[AuthorizationServer]]:
    """Servers that are started within end with it."""
    servers: list[AuthorizationServer] = []
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def authlib(tmp_path: Path) -> Iterator[Callable[..., AuthorizationServer]]:
    """
    ``authlib(key, life=60)`` starts Authlib's server, which gives tokens to its client and for
    assertions signed by the private ``key`` (a PEM file).
    """
    with ended() as servers:

        def factory(key: str, life: int = 60) -> AuthorizationServer:
            command = [
                sys.executable,
                str(HERE / "authlib_provider.py"),
                "--key",
                key,
                "--life",
                str(life),
            ]
            servers.append(
                start(command, tmp_path, dict(os.environ), tmp_path / f"authlib-{len(servers)}.log")
            )
            return servers[-1]

        yield factory


@pytest.fixture
def exchanging(tmp_path: Path) -> Iterator[Callable[..., AuthorizationServer]]:
    """
    ``exchanging(life=60)`` starts @jmondi/oauth2-server, which exchanges subject tokens
    ``sub-NAME`` of the kind jwt.
    """
    with ended() as servers:

        def factory(life: int = 60) -> AuthorizationServer:
            command, environ = (
                installed("exchanging", "exchanging_provider.mjs"),
                {**os.environ, "LIFE": str(life)},
            )
            servers.append(
                start(command, tmp_path, environ, tmp_path / f"exchanging-{len(servers)}.log")
            )
            return servers[-1]

        yield factory
