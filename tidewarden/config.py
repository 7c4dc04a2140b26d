"""
The configuration: loaded, checked, frozen; once, at the start.

Each value comes from the TOML file, or from ``TIDEWARDEN_SECTION_KEY`` in the environment, or from a flag
``--set section.key=value``; the later wins. Paths are relative to the folder the process was started in.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from . import tls
from .errors import ConfigError
from .rights import fault_of
from .secret import HASH_ALLOWED, Secret, check_secret, hash_generated, hash_secret, known_hash
from .settings import (
    NAME,
    NAME_ALLOWED,
    Cluster,
    Config,
    Limits,
    Log,
    Node,
    Provider,
    Queues,
    Raft,
    Store,
    Tokens,
    User,
    Vault,
)
from .sources import Found, Sources, nearest, read

__all__ = [
    "NAME", "NAME_ALLOWED", "Cluster", "Config", "Limits", "Log", "Node", "Provider", "Queues", "Raft", "Secret", "Store", "Tokens",
    "User", "Vault", "check_secret", "hash_generated", "hash_secret", "is_loopback", "load",
]  # fmt: skip

# Variables of the command line, which no node reads.
CLIENT_VARIABLES = frozenset({"TIDEWARDEN_URL"})

SECTIONS = {
    "cluster": Cluster,
    "node": Node,
    "raft": Raft,
    "store": Store,
    "limits": Limits,
    "queues": Queues,
    "tokens": Tokens,
    "log": Log,
    "vault": Vault,
}
SECRET_KEYS = ("client_secret", "client_secret_file", "client_secret_env")


def keys(cls: type) -> frozenset[str]:
    """The settings of a section."""
    return frozenset(item.name for item in dataclasses.fields(cls) if item.metadata)


def load(path: str | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """
    The configuration from the file at ``path`` (none: the defaults), ``environ`` and ``flags`` (``{"node.name": …}``).

    Raises: ConfigError: with every problem: where it stands, what was found, what is allowed.
    """
    sources = Sources({name: keys(cls) for name, cls in SECTIONS.items()}, keys(Provider) | set(SECRET_KEYS))
    if path is not None:
        sources.read_file(path)
    sources.read_environ(environ, CLIENT_VARIABLES)
    sources.read_flags(flags)
    problems = sources.problems
    tables = sources.tables
    config = Config(
        cluster=read(Cluster, "cluster", tables["cluster"], problems),
        node=read(Node, "node", tables["node"], problems),
        raft=read(Raft, "raft", tables["raft"], problems),
        store=read(Store, "store", tables["store"], problems),
        limits=read(Limits, "limits", tables["limits"], problems),
        queues=read(Queues, "queues", tables["queues"], problems),
        tokens=read(Tokens, "tokens", tables["tokens"], problems),
        log=read(Log, "log", tables["log"], problems),
        vault=read(Vault, "vault", tables["vault"], problems),
        users=_users(sources.users, problems),
        providers={
            section.removeprefix("providers."): _provider(section.removeprefix("providers."), table, environ, problems)
            for section, table in tables.items()
            if section.startswith("providers.")
        },
        source=path or "defaults",
    )
    _check(config, tables, problems)
    if problems:
        raise ConfigError(problems)
    return config


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _users(tables: list[dict[str, Found]], problems: list[str]) -> tuple[User, ...]:
    users: list[User] = []
    for number, table in enumerate(tables):
        section = f"users[{number}]"
        problems.extend(
            f"{table[key].origin}: unknown setting {section}.{key}; {nearest(key, keys(User))}"
            for key in sorted(table.keys() - keys(User))
        )
        user = read(User, section, table, problems)
        if user.secret_hash and not known_hash(user.secret_hash):
            origin = table["secret_hash"].origin
            problems.append(
                f"{origin}: {section}.secret_hash: found a value that is not shown; allowed: {HASH_ALLOWED}"
            )
        problems.extend(
            f"{table['rights'].origin}: {section}.rights: found {right[:80]!r}; {fault}"
            for right in user.rights
            if (fault := fault_of(right))
        )
        if user.name and user.name in {other.name for other in users}:
            problems.append(
                f"{table['name'].origin}: {section}.name: found {user.name!r} twice; allowed: one of a name"
            )
        users.append(user)
    return tuple(users)


def _provider(name: str, table: dict[str, Found], environ: Mapping[str, str], problems: list[str]) -> Provider:
    section = f"providers.{name}"
    if not re.fullmatch(NAME, name):
        problems.append(f"{section}: found the name {name!r}; allowed: {NAME_ALLOWED}")
    provider = dataclasses.replace(read(Provider, section, table, problems), name=name)
    if provider.token_url and (fault := _url_fault(provider.token_url, ("http", "https"))):
        problems.append(f"{table['token_url'].origin}: {section}.token_url: {fault}")
    written = [key for key in SECRET_KEYS if key in table]
    if any(table[key].text for key in written):  # the environment and flags override the file's choice of key, too
        written = [key for key in written if table[key].text]
    if provider.auth == "none":
        problems.extend(
            f"{table[key].origin}: {section}.{key}: not allowed with auth = 'none', which sends no secret"
            for key in written
        )
        return provider
    if len(written) != 1:
        where = f"{table[written[0]].origin}: " if written else ""
        found = " and ".join(written) or "none of them"
        allowed = f"exactly one of {', '.join(SECRET_KEYS)}, or auth = 'none'"
        problems.append(f"{where}{section}: found {found}; allowed: {allowed}")
        return provider
    return dataclasses.replace(provider, client_secret=_client_secret(section, written[0], table, environ, problems))


def _client_secret(
    section: str, key: str, table: dict[str, Found], environ: Mapping[str, str], problems: list[str]
) -> Secret:
    """The client's secret itself, wherever the file says it is. One line end after it belongs to the file."""
    found = table[key]
    fault = "found no text; allowed: a text"
    if isinstance(found.value, str) and found.value:
        if key == "client_secret":
            return Secret(found.value)
        if key == "client_secret_env":
            if text := environ.get(found.value, ""):
                return Secret(text)
            fault = f"found {found.value!r}, which the environment does not have; allowed: a variable that is set"
        else:
            try:
                if text := Path(found.value).expanduser().read_text("utf-8").removesuffix("\n").removesuffix("\r"):
                    return Secret(text)
                fault = f"found {found.value!r}, which is empty; allowed: a file with the secret"
            except (OSError, UnicodeDecodeError) as error:
                fault = f"found {found.value!r}: {_reason(error)}; allowed: a readable file with the secret"
    problems.append(f"{found.origin}: {section}.{key}: {fault}")
    return Secret()


def _check(config: Config, tables: Mapping[str, Mapping[str, Found]], problems: list[str]) -> None:
    """The rules that join several settings."""

    def problem(name: str, text: str) -> None:
        section, _, key = name.rpartition(".")
        found = tables[section].get(key)
        problems.append(f"{found.origin if found else config.source}: {name}: {text}")

    _check_members(config, problem)
    cert, key = config.node.tls_cert, config.node.tls_key
    if bool(cert) != bool(key):
        there, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        problem(f"node.{missing}", f"found none; allowed with node.{there}: a PEM file")
    elif cert and (fault := tls.fault_of(cert, key)):
        problem("node.tls_cert", f"found {cert!r} with node.tls_key {key!r}: {fault}; allowed: two PEM files")
    peers = config.peers()
    secret_file = config.cluster.secret_file
    if secret_file and (fault := _secret_file_fault(secret_file)):
        problem("cluster.secret_file", f"found {secret_file!r}: {fault}; allowed: a readable file with the secret")
    if peers and not secret_file and config.node.role != "worker":
        problem("cluster.secret_file", "found none; allowed with peers: a file with the secret that all nodes share")
    if not is_loopback(config.node.host):
        needs = "which others can reach; allowed only with"
        if not config.users:
            problem("node.host", f"found {config.node.host!r}, {needs} [[users]], so that not everybody may connect")
        if not secret_file:
            problem(
                "node.host", f"found {config.node.host!r}, {needs} cluster.secret_file, so that nodes know each other"
            )
    if config.store.url == "embedded":
        if peers:
            reason = "stores do not replicate yet: run `tidewarden up`, or give store.url"
            problem("store.url", f"found 'embedded' with peers {', '.join(sorted(peers))}; {reason}")
    elif fault := _store_fault(config.store.url):
        problem("store.url", fault)
    if config.store.replicas > 0 and config.store.url == "embedded":
        problem("store.replicas", f"found {config.store.replicas} with an embedded store, which has none; allowed: 0")
    if 0 < config.store.maxmemory_bytes < 1_048_576:
        problem("store.maxmemory_bytes", f"found {config.store.maxmemory_bytes}; allowed: 0 or at least 1,048,576")
    if config.limits.request_bytes < config.limits.payload_bytes:
        allowed = f"0 or at least limits.payload_bytes ({config.limits.payload_bytes})"
        problem("limits.request_bytes", f"found {config.limits.request_bytes}; allowed: {allowed}")
    if config.vault.key_file and config.vault.key_env:
        problem("vault.key_env", "found with vault.key_file; allowed: one of the two")


def _check_members(config: Config, problem: Callable[[str, str], None]) -> None:
    members = config.cluster.members
    for name, address in members.items():
        host, _, port = address.rpartition(":")
        if not re.fullmatch(NAME, name):
            problem("cluster.members", f"found the name {name!r}; allowed: {NAME_ALLOWED}")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_531:
            problem(
                "cluster.members", f"found {name} = {address!r}; allowed: 'host:base_port', the port from 1 to 65,531"
            )
        elif name == config.node.name and int(port) != config.node.base_port:
            allowed = f"node.base_port, which is {config.node.base_port}"
            problem("cluster.members", f"found {name} = {address!r}, this node; allowed as its port: {allowed}")
    if config.node.role == "worker":
        if config.node.name in members:
            problem("node.name", f"found {config.node.name!r} with role 'worker'; allowed: none of cluster.members")
        if config.store.url == "embedded":
            problem("store.url", "found 'embedded' with role 'worker'; allowed: the members' store")
    elif config.node.role == "joining" and not set(members) - {config.node.name}:
        problem("node.role", "found 'joining' without others in cluster.members; allowed: with those it is to join")
    if members and config.node.name not in members and config.node.role != "worker":
        problem(
            "node.name", f"found {config.node.name!r}; allowed: one of cluster.members: {', '.join(sorted(members))}"
        )
    if len(set(members.values())) != len(members):
        problem("cluster.members", "found one address twice; allowed: an address of its own for each node")


def _store_fault(url: str) -> str:
    """What is wrong with the URL of a store of one's own, or nothing."""
    scheme, _, rest = url.partition("+sentinel://")
    if not rest or scheme not in ("redis", "rediss"):
        return _url_fault(url, ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"), secret=True)
    hosts, _, service = rest.partition("?")[0].rpartition("@")[2].partition("/")
    if not service or "/" in service:
        return "found no service in it; allowed: redis+sentinel://host:port,host:port/service, the service named as in `sentinel monitor`"
    faults = (_url_fault(f"redis://{one}", ("redis",), secret=True) for one in hosts.split(","))
    wrong = any(faults) or any(character.isspace() for character in url)
    return "found a host or a port that is none; allowed: redis+sentinel://host:port,host:port/service" if wrong else ""


def _url_fault(url: str, schemes: tuple[str, ...], *, secret: bool = False) -> str:
    """What is wrong with ``url``, or nothing. A ``secret`` one is not shown: it may carry a password."""
    forms = " or ".join(f"{scheme}://" for scheme in schemes)
    fault = f"found {'an address that is not shown' if secret else repr(url)}; allowed: an address that begins {forms}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{fault}, with a port from 1 to 65535"
    if parts.scheme not in schemes or any(character.isspace() for character in url):
        return fault
    if parts.scheme == "unix":
        return "" if parts.path.startswith("/") else f"{fault}, then the whole path of the socket"
    if not parts.hostname or port == 0:
        return f"{fault}, then a host"
    if "http" in parts.scheme and (parts.fragment or parts.username is not None):
        return "found a user, a password or a #fragment in it; allowed: an address without"
    return ""


def _secret_file_fault(path: str) -> str:
    try:
        return "" if Path(path).read_text("utf-8").strip() else "it is empty"
    except (OSError, UnicodeDecodeError) as error:
        return _reason(error)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
