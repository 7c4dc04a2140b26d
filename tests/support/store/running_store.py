"""Asks the store that runs in a folder which start it is, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidewarden.store.embedded import lineage
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials
from tidewarden.store.embedded.server_folder import ServerFolder


@dataclass(frozen=True)
class RunningStore:
    """The start of a store that runs."""

    incarnation: str
    continues: tuple[str, ...]
    """Earlier starts whose every write it has, newest last."""
    pid: int


def look(folder: Path, node: str, credentials: StoreCredentials) -> RunningStore:
    """The start that the store in ``folder`` announces, which the folder's lineage names."""
    known = lineage.read(folder)
    assert known is not None
    with redis.Redis(
        unix_socket_path=str(ServerFolder(folder, "").socket_path),
        username=DAEMON,
        password=credentials.daemon,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    ) as client:
        announced = client.config_get("replica-announce-ip")["replica-announce-ip"]
        assert announced == f"{node}.{known.incarnation}"
        pid = client.info("server")["process_id"]
    return RunningStore(known.incarnation, known.continues, pid)
