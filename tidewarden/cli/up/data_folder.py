"""The data folder of ``tidewarden up``: free ports, secrets, and its nodes' configurations."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import secrets
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidewarden.config.addresses import joined as host_and_port
from tidewarden.config.key_file import sync_folder
from tidewarden.config.load import Config, hash_generated
from tidewarden.config.settings import STORE_ABOVE
from tidewarden.errors import ConfigError
from tidewarden.sandbox.grants import CLIENT_ID, CLIENT_SECRET

PORT_MAX = 65_535
STORE_LOG = "appendonlydir"
"""Of a store's folder: where the server keeps its data."""
REPLICATED_FROM = 3
"""So many nodes have stores of their own: of fewer none could be lost."""
ADMIN = "admin"
SANDBOX_LIFE_S = 120
SANDBOX_MARGIN_S = 30


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """Plans a local cluster: its folder, configuration, and numbers."""

    data_dir: Path
    config: Config
    """The user's file and environment, without what ``up`` decides itself."""
    config_file: Path | None
    node_total: int
    sandbox_accounts: int
    """0: no sandbox."""
    one_store: bool = False
    """All nodes shall share one embedded store, however many they are."""

    @property
    def names(self) -> list[str]:
        """Return the names ``n0 n1 …``."""
        return [f"n{number}" for number in range(self.node_total)]

    @property
    def embedded(self) -> bool:
        """Tell whether ``up`` runs the store itself."""
        return self.config.store.url == "embedded"

    @property
    def common_store(self) -> Path:
        """Return the folder of the embedded store that all nodes share, if they do."""
        return self.data_dir / "store"

    def own_store(self, name: str) -> Path:
        """Return the folder of a node's own embedded store, if each has one."""
        return self.folder(name) / "store"

    def own_store_folders(self) -> list[Path]:
        """Return the folders of nodes' own stores with data, also of nodes that have left."""
        return sorted(path.parent for path in self.data_dir.glob(f"n*/store/{STORE_LOG}"))

    @property
    def has_common_data(self) -> bool:
        """Tell whether the store that all nodes share has data."""
        return (self.common_store / STORE_LOG).exists()

    @property
    def store_each(self) -> bool:
        """
        Tell whether each node has an embedded store of its own.

        Once there are such they stay, also where fewer nodes are left.
        """
        if not self.embedded or self.one_store:
            return False
        return self.node_total >= REPLICATED_FROM or bool(self.own_store_folders())

    @property
    def sandbox_port(self) -> int:
        """Return the sandbox's port, above those of all nodes: base + 90 for up to nine of them."""
        return self.config.node.base_port + max(90, 10 * self.node_total)

    def base_port(self, name: str) -> int:
        """Return the first port of a node."""
        return self.config.node.base_port + 10 * self.names.index(name)

    def address(self, name: str, above: int = 0) -> str:
        """Return ``host:port``, as URLs have it, of a node's base port, or of one ``above`` it."""
        return host_and_port(self.config.node.host, self.base_port(name) + above)

    def folder(self, name: str) -> Path:
        """Return a node's own folder."""
        return self.data_dir / name

    def secret(self, name: str) -> str:
        """Return the text of ``DATA/secrets/NAME``."""
        return (self.data_dir / "secrets" / name).read_text("utf-8").strip()

    def ports(self) -> dict[int, str]:
        """Return every TCP port that must be free, and its purpose."""
        ports: dict[int, str] = {}
        for name in self.names:
            base = self.base_port(name)
            ports |= {
                base: f"{name}, Redis clients",
                base + 1: f"{name}, HTTP",
                base + 2: f"{name}, Raft",
            }
            if self.store_each:
                ports[base + STORE_ABOVE] = f"{name}, store"
        if self.sandbox_accounts:
            ports[self.sandbox_port] = "sandbox"
        return ports


def check_ports(plan: FolderPlan) -> None:
    """
    Check that every port is free.

    Raises: ConfigError: names the ports that are not, their purposes, their owners where these can
    be seen, and the way out.
    """
    highest = max(plan.ports())
    if highest > PORT_MAX:
        raise ConfigError(
            [
                f"--base-port {plan.config.node.base_port}: port {highest} would be needed;"
                f" {PORT_MAX} is the highest"
            ]
        )
    busy = [
        (port, use, reason)
        for port, use in plan.ports().items()
        if (reason := _why_not(plan.config.node.host, port))
    ]
    if busy:
        holders = _holders({port for port, _, _ in busy})
        raise ConfigError(
            [
                f"port {port} ({use}): {reason}{' by ' + holders[port] if port in holders else ''}"
                for port, use, reason in busy
            ]
            + [
                "stop what holds them, or give others: --base-port N, or"
                " TIDEWARDEN_NODE_BASE_PORT=N make run (nodes take N, N + 10, …)"
            ]
        )


def make_secrets(plan: FolderPlan) -> None:
    """
    Make ``DATA/secrets/{cluster.key,vault.key,admin.secret}``, 0600, whichever is absent.

    Raises: ConfigError: there is data already, and a key is gone: it could not be read with a new
    one.
    """
    folder = plan.data_dir / "secrets"
    nodes = [path.parent.name for path in plan.data_dir.glob("n*/node.toml")]
    data = [
        name for name in (f"store/{STORE_LOG}", *sorted(nodes)) if (plan.data_dir / name).exists()
    ]
    keys = [
        "cluster.key",
        *(() if plan.config.vault.key_file or plan.config.vault.key_env else ("vault.key",)),
    ]
    lost = [name for name in keys if data and not (folder / name).exists()]
    if lost:
        raise ConfigError(
            [
                f"{folder / name}: missing, but {plan.data_dir} has data made with it"
                f" ({', '.join(data)}); put it back from a copy, or begin anew in another"
                " --data-dir"
                for name in lost
            ]
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(folder / "cluster.key", secrets.token_urlsafe(32))
        _make(folder / "admin.secret", secrets.token_urlsafe(32))
        if "vault.key" in keys:
            _make(folder / "vault.key", base64.b64encode(secrets.token_bytes(32)).decode())
    except OSError as error:
        raise ConfigError([f"{folder}: cannot be written ({error.strerror})"]) from None


def write_node_files(plan: FolderPlan, store_url: str) -> None:
    """
    Write ``DATA/nX/node.toml`` for every node: the user's file, then what ``up`` decides.

    Raises: ConfigError: a folder cannot be written.
    """
    for name in plan.names:
        folder = plan.folder(name)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            text = (
                "# Written by `tidewarden up` at each start; changes are lost. It holds secrets.\n"
            )
            text += to_toml(node_settings(plan, name, store_url))
            write_private(folder / "node.toml", text)
        except OSError as error:
            raise ConfigError([f"{folder}: cannot be written ({error.strerror})"]) from None


def node_settings(plan: FolderPlan, name: str, store_url: str) -> dict[str, Any]:
    """Return one node's configuration, for its TOML file."""
    settings: dict[str, Any] = (
        tomllib.loads(plan.config_file.read_text("utf-8")) if plan.config_file else {}
    )
    folder, host = plan.data_dir.absolute(), plan.config.node.host
    cluster = settings.setdefault("cluster", {})
    cluster["secret_file"] = str(folder / "secrets" / "cluster.key")
    cluster["members"] = {other: plan.address(other) for other in plan.names}
    settings["node"] = {
        "name": name,
        "host": host,
        "base_port": plan.base_port(name),
        "data_dir": str(folder / name),
        "role": "member" if joined(plan, name) else "joining",
        "processes": plan.config.node.processes,
    }
    settings.setdefault("store", {})["url"] = store_url
    if not (plan.config.vault.key_file or plan.config.vault.key_env):
        settings.setdefault("vault", {})["key_file"] = str(folder / "secrets" / "vault.key")
    users = [user for user in settings.get("users", []) if user.get("name") != ADMIN]
    settings["users"] = [
        *users,
        {"name": ADMIN, "secret_hash": hash_generated(plan.secret("admin.secret"))},
    ]
    if plan.sandbox_accounts:
        settings.setdefault("providers", {})["sandbox"] = {
            "token_url": f"http://127.0.0.1:{plan.sandbox_port}/token",
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "rotation": "single_use",
            "margin_s": SANDBOX_MARGIN_S,
        }
    return settings


def joined(plan: FolderPlan, name: str) -> bool:
    """
    Tell whether a node becomes a member without asking.

    Where there have been others (see ``resize``), it waits until they let it in.
    """
    return (plan.folder(name) / "member").exists() or not any(plan.data_dir.glob("n*/member"))


def node_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return our environment without the variables that nodes may not share.

    These would give all nodes one name, port, folder or store.
    """
    ours = ("TIDEWARDEN_NODE_", "TIDEWARDEN_CLUSTER_", "TIDEWARDEN_STORE_URL")
    return {name: value for name, value in environ.items() if not name.startswith(ours)}


def write_private(path: Path, text: str) -> None:
    """
    Write a file that its owner alone may read, whole or not at all, and on disk when this returns.
    """
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    fresh.replace(path)
    sync_folder(path.parent)


def to_toml(table: Mapping[str, Any], path: Sequence[str] = ()) -> str:
    """
    Write TOML of what ``tomllib`` reads: tables, lists of tables, and values that JSON has, too.
    """
    lines, below = [], []
    for name, value in table.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            below.append(f"\n[{_dotted(here)}]\n{to_toml(value, here)}")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            below += [f"\n[[{_dotted(here)}]]\n{to_toml(item, here)}" for item in value]
        else:
            lines.append(f"{json.dumps(name)} = {_value(value)}\n")
    return "".join((*lines, *below))


def _dotted(path: Sequence[str]) -> str:
    return ".".join(json.dumps(part) for part in path)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, (bool, int, float, str)):
        # JSON's surrogate pairs are no TOML, hence the letters themselves; DEL is the one that JSON
        # leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)  # dates and times


def _make(path: Path, text: str) -> None:
    if not path.exists():
        write_private(path, text + "\n")


def _why_not(host: str, port: int) -> str:
    """Say why one cannot listen there; empty when one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As our servers do: connections of the last run that the kernel still remembers are no
        # hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""


def _holders(ports: set[int]) -> dict[int, str]:
    """Name who listens on ports, as far as Linux lets us see: ``process 12 (redis-server)``."""
    sockets: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(table)[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and port in ports:
                sockets[f"socket:[{fields[9]}]"] = port
    holders: dict[int, str] = {}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            held = sockets.get(os.readlink(link))
            if held is not None:
                pid = link.parts[2]
                name = "".join(_lines(f"/proc/{pid}/comm")).strip()
                holders[held] = f"process {pid} ({name})"
    return holders


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
