"""The secret that nodes know each other by, and by what a copy of a key is known."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from tidewarden.errors import ConfigError

from .load import Config


def cluster_secret(config: Config) -> str:
    """
    Return the secret by which nodes know each other.

    It comes from ``cluster.secret_file``, or from DATA/secrets/cluster.key, made once.

    Raises: ConfigError: the file cannot be read or made, or is empty.
    """
    named = config.cluster.secret_file
    path = Path(named) if named else Path(config.node.data_dir) / "secrets" / "cluster.key"
    try:
        if not named and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(fd, "w") as file:
                    file.write(secrets.token_urlsafe(32) + "\n")
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"cluster.secret_file: {path} cannot be used: {error}"]) from None
    if not text:
        raise ConfigError([f"cluster.secret_file: {path} is empty; a long random text is needed"])
    return text


def exposed(config: Config) -> list[str]:
    """Name the files of secrets of this node that everybody on its host may read."""
    folder = Path(config.node.data_dir) / "secrets"
    files = {
        "cluster.secret_file": config.cluster.secret_file or folder / "cluster.key",
        "vault.key_file": ""
        if config.vault.key_command or config.vault.key_env
        else config.vault.key_file or folder / "vault.key",
        "node.tls_key": config.node.tls_key,
    }
    found = []
    for name, path in files.items():
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(path).st_mode) if path else 0
            if mode & stat.S_IRWXO:
                found.append(
                    f"{name}: everybody on this host may read {path} ({mode:04o}): chmod o= it"
                )
    return found


def key_names(config: Config, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """
    Say where this node keeps its cluster's keys, each with its :func:`key_check`.

    The cluster's data cannot be used without them.
    """
    folder = Path(config.node.data_dir) / "secrets"
    secret = Path(config.cluster.secret_file or folder / "cluster.key")
    vault = Path(config.vault.key_file or folder / "vault.key")
    found = {"cluster": {"where": str(secret), "check": _check_of(secret)}}
    if command := config.vault.key_command:
        return {**found, "vault": {"where": f"what {command} prints", "check": ""}}
    if name := config.vault.key_env:
        return {
            **found,
            "vault": {
                "where": f"the environment variable {name}",
                "check": key_check(environ.get(name, "")),
            },
        }
    return {**found, "vault": {"where": str(vault), "check": _check_of(vault)}}


def _check_of(path: Path) -> str:
    try:
        return key_check(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""


def key_check(text: str) -> str:
    """
    Return the first 16 digits of a hash of a key.

    Two copies of a key can be compared by it without showing the key.

    A key a line: one check each, joined by blanks. Empty when there is none.
    """
    lines = (line.strip() for line in text.splitlines())
    return " ".join(
        hashlib.sha256(b"tidewarden key check " + line.encode()).hexdigest()[:16]
        for line in lines
        if line
    )
