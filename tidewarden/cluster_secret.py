"""The secret that nodes know each other by."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from tidewarden.config import Config
from tidewarden.errors import ConfigError


def cluster_secret(config: Config) -> str:
    """
    The secret that nodes know each other by: from ``cluster.secret_file``, or DATA/secrets/cluster.key, made once.

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
