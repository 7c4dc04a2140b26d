"""Finds the nodes of a local cluster by the data folder of ``tidewarden up``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import quote

DATA_DIR = "tidewarden-data"
DEFAULT_PORT = 7420


def local_urls(data_dir: str | Path = DATA_DIR) -> list[str]:
    """
    List the addresses of the nodes with data in this folder, as its admin; none: 127.0.0.1:7420.

    The admin's secret that ``up`` wrote there is used for them; it goes to loopback addresses only.
    """
    folder = Path(data_dir)
    secret = _read(folder / "secrets" / "admin.secret").strip()
    user = f"admin:{quote(secret, safe='')}@" if secret else ""
    hosts = [
        _host(path)
        for path in sorted(folder.glob("n*/node.toml"), key=lambda path: (len(str(path)), path))
    ]
    return [f"redis://{user}{host}" for host in hosts if host] or [
        f"redis://{user}127.0.0.1:{DEFAULT_PORT}"
    ]


def _host(node_toml: Path) -> str:
    try:
        node = tomllib.loads(_read(node_toml)).get("node", {})
        host, port = str(node.get("host", "127.0.0.1")), int(node.get("base_port", DEFAULT_PORT))
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    except (tomllib.TOMLDecodeError, AttributeError, TypeError, ValueError):
        # a damaged file is `node --check`'s to report; the other nodes can still be asked
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
