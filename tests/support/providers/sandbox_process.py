"""Our sandbox in a process of its own, as users start it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
from support.cluster.processes import free_base_port, spawn, until

from tidewarden.sandbox.grants import CLIENT_ID, CLIENT_SECRET


class SandboxProcess:
    """
    ``tidewarden sandbox``; it speaks of itself as the servers of ``authorization_servers`` do.

    ``rows``: its accounts as ``tidewarden token import`` takes them. ``seeds``: account and first
    refresh token of each.
    """

    client_id, client_secret = CLIENT_ID, CLIENT_SECRET

    def __init__(self, folder: Path, accounts: int, life_s: int = 120) -> None:
        port = free_base_port()
        self.url = f"http://127.0.0.1:{port}"
        self.token_url = f"{self.url}/token"
        argv = ["sandbox", "--port", str(port), "--accounts", str(accounts), "--life", str(life_s)]
        argv = [sys.executable, "-m", "tidewarden", *argv, "--data-dir", str(folder)]
        folder.mkdir(parents=True)
        self.process = spawn(argv, folder / "log")
        until(lambda: self._get("/stats"), what="the sandbox serves")
        seeds = self._get(f"/seed?n={accounts}").text.splitlines()
        names, *rows = (line.split("\t") for line in seeds)
        self.rows = [dict(zip(names, row, strict=True)) for row in rows]
        self.seeds = [(row["account"], row["refresh_token"]) for row in self.rows]

    def _get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False, verify=False, timeout=10) as client:
            return client.get(self.url + path).raise_for_status()

    def fault(self, kind: str = "", delay_ms: int = 0) -> None:
        """Delay token requests from now on; without arguments: no more."""
        assert kind in ("", "delay")
        self._get(f"/fault?delay_ms={delay_ms}")

    def stats(self) -> dict[str, Any]:
        """Return its counters, of which each account's are by the generation presented."""
        found = self._get("/stats?grants=1").json()
        accounts = {}
        for name, row in found["accounts"].items():
            requests = {str(generation): 1 for generation in range(row["generation"])} | row[
                "presented_again"
            ]
            accounts[name] = {"requests": requests, "revoked": row["revoked"]}
        return {"live": found["live_grants"], "accounts": accounts, "requests": found["requests"]}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait(60)
