"""
The configuration: loaded, checked, frozen; once, at the start.

Each value comes from the TOML file, or from ``TIDEWARDEN_SECTION_KEY`` in the environment, or from
a flag ``--set section.key=value``; the later wins. Paths are relative to the folder the process was
started in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tidewarden.errors import ConfigError

from . import return_addresses, tls
from .addresses import (
    NETWORKS_ALLOWED,
    NOT_SHOWN,
    address_fault,
    is_loopback,
    parse_address,
    secret_url_fault,
    url_fault,
)
from .key_file import key_faults
from .provider import Provider
from .provider_reading import (
    NAME,
    NAME_ALLOWED,
    NEXT_KEYS,
    SECRET_KEYS,
    SUBJECT_KEYS,
    read_provider,
)
from .rights import fault_of
from .secret import HASH_ALLOWED, Secret, check_secret, hash_generated, hash_secret, known_hash
from .settings import (
    BEANSTALKD_ABOVE,
    Audit,
    Beanstalkd,
    Cluster,
    Companion,
    Config,
    Connect,
    Events,
    Limits,
    Log,
    Node,
    Otel,
    Queues,
    Raft,
    Store,
    Tokens,
    User,
    Vault,
    Webhook,
)
from .sources import Found, Sources, nearest, read
from .webhooks import EVENT_KINDS, FAMILIES, means, no_kinds, read_companions, read_webhooks

__all__ = [
    "EVENT_KINDS",
    "NAME",
    "NAME_ALLOWED",
    "Audit",
    "Beanstalkd",
    "Cluster",
    "Companion",
    "Config",
    "Connect",
    "Events",
    "Limits",
    "Log",
    "Node",
    "Provider",
    "Queues",
    "Raft",
    "Secret",
    "Store",
    "Tokens",
    "User",
    "Vault",
    "Webhook",
    "check_secret",
    "hash_generated",
    "hash_secret",
    "is_loopback",
    "load",
    "means",
    "no_kinds",
]

Problem = Callable[[str, str], None]
"""Told the setting's name and what is wrong with it."""
# Variables of the command line, which no node reads.
CLIENT_VARIABLES = frozenset({"TIDEWARDEN_URL"})

SECTIONS: dict[str, type[Any]] = {
    "cluster": Cluster,
    "node": Node,
    "raft": Raft,
    "store": Store,
    "limits": Limits,
    "queues": Queues,
    "beanstalkd": Beanstalkd,
    "otel": Otel,
    "tokens": Tokens,
    "connect": Connect,
    "log": Log,
    "vault": Vault,
    "events": Events,
    "audit": Audit,
}


def keys(cls: type) -> frozenset[str]:
    """Return the settings of a section."""
    return frozenset(item.name for item in dataclasses.fields(cls) if item.metadata)


PROVIDER_KEYS = keys(Provider) | set(SECRET_KEYS) | set(NEXT_KEYS) | set(SUBJECT_KEYS)


def load(path: str | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """
    Load the configuration from the file at ``path``, ``environ`` and ``flags``.

    Without a path the defaults apply. A flag is ``{"node.name": …}``.

    Raises: ConfigError: with every problem: where it stands, what was found, what is allowed.
    """
    sources = Sources({name: keys(cls) for name, cls in SECTIONS.items()}, PROVIDER_KEYS, FAMILIES)
    if path is not None:
        sources.read_file(path)
    sources.read_environ(environ, CLIENT_VARIABLES)
    sources.read_flags(flags)
    problems = sources.problems
    tables = sources.tables
    config = Config(
        **{name: read(cls, name, tables[name], problems) for name, cls in SECTIONS.items()},
        users=_users(sources.users, problems),
        webhooks=read_webhooks(tables, environ, problems),
        companions=read_companions(tables, problems),
        providers={
            section.removeprefix("providers."): read_provider(
                section.removeprefix("providers."), table, environ, problems
            )
            for section, table in tables.items()
            if section.startswith("providers.")
        },
        source=path or "defaults",
    )
    _check(config, tables, problems)
    if problems:
        raise ConfigError(sorted(problems, key=_place))
    return config


def _place(problem: str) -> tuple[str, int]:
    """Return the file and line that a problem begins with, to sort problems by their place."""
    found = re.match(r"(.*?):(\d+): ", problem)
    return (found[1], int(found[2])) if found else ("", 0)


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
                f"{origin}: {section}.secret_hash: found a value that is not shown; allowed:"
                f" {HASH_ALLOWED}"
            )
        problems.extend(
            f"{table['rights'].origin}: {section}.rights: found {right[:80]!r}; {fault}"
            for right in user.rights
            if (fault := fault_of(right))
        )
        if user.name and user.name in {other.name for other in users}:
            problems.append(
                f"{table['name'].origin}: {section}.name: found {user.name!r} twice; allowed: one"
                " of a name"
            )
        users.append(user)
    return tuple(users)


def _check(config: Config, tables: Mapping[str, Mapping[str, Found]], problems: list[str]) -> None:
    """Check the rules that join several settings."""

    def problem(name: str, text: str) -> None:
        section, _, key = name.rpartition(".")
        found = tables[section].get(key)
        problems.append(f"{found.origin if found else config.source}: {name}: {text}")

    _check_members(config, problem)
    _check_doors(config.node, problem)
    _check_beanstalkd(config, problem)
    _check_otel(config, problem)
    _check_reach(config, problem)
    _check_connect(config.connect, problem)
    _check_secret(config, problem)
    _check_store(config, problem)
    if config.limits.request_bytes < config.limits.payload_bytes:
        allowed = f"0 or at least limits.payload_bytes ({config.limits.payload_bytes})"
        problem("limits.request_bytes", f"found {config.limits.request_bytes}; allowed: {allowed}")
    for key, text in key_faults(config.vault):
        problem(f"vault.{key}", text)


def _check_doors(node: Node, problem: Problem) -> None:
    """Check where the node listens and is reached, and the certificate of its doors."""
    if node.host.startswith("["):
        problem("node.host", f"found {node.host!r}; allowed: an IPv6 address without brackets")
    if fault := address_fault(node.advertise):
        problem("node.advertise", f"found {node.advertise!r}{fault}")
    cert, key = node.tls_cert, node.tls_key
    if bool(cert) != bool(key):
        there, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        problem(f"node.{missing}", f"found none; allowed with node.{there}: a PEM file")
    elif cert and (fault := tls.fault_of(cert, key)):
        problem(
            "node.tls_cert",
            f"found {cert!r} with node.tls_key {key!r}: {fault}; allowed: two PEM files",
        )
    if node.tls_ca and (fault := tls.fault_of_authorities(node.tls_ca)):
        problem(
            "node.tls_ca",
            f"found {node.tls_ca!r}: {fault}; allowed: a PEM file of certificates",
        )


def _check_beanstalkd(config: Config, problem: Problem) -> None:
    """Check where the beanstalkd door listens."""
    door, node = config.beanstalkd, config.node
    if door.host.startswith("["):
        problem(
            "beanstalkd.host", f"found {door.host!r}; allowed: an IPv6 address without brackets"
        )
    if door.enabled and door.host and not is_loopback(door.host) and not config.users:
        problem(
            "beanstalkd.host",
            f"found {door.host!r}, which others can reach; allowed only with [[users]], so that not"
            " everybody may connect",
        )
    if door.client_ca and not node.tls_cert:
        problem("beanstalkd.client_ca", "found a file; allowed only with node.tls_cert")
    elif door.client_ca and (fault := tls.fault_of_authorities(door.client_ca)):
        problem(
            "beanstalkd.client_ca",
            f"found {door.client_ca!r}: {fault}; allowed: a PEM file of certificates",
        )
    try:
        _ = door.networks
    except ValueError as error:
        problem(
            "beanstalkd.allow", f"found one that is none ({error}); allowed: {NETWORKS_ALLOWED}"
        )
    if door.user and config.users and door.user not in {user.name for user in config.users}:
        problem("beanstalkd.user", f"found {door.user!r}; allowed: the name of one of [[users]]")
    if node.base_port <= door.port < node.base_port + BEANSTALKD_ABOVE:
        problem(
            "beanstalkd.port",
            f"found {door.port}, which is another of this node's ports; allowed: 0, or one outside"
            f" {node.base_port} to {node.base_port + BEANSTALKD_ABOVE - 1}",
        )


def _check_reach(config: Config, problem: Callable[[str, str], None]) -> None:
    try:
        _ = config.tokens.reach
    except ValueError as error:
        problem(
            "tokens.put_networks", f"found one that is none ({error}); allowed: {NETWORKS_ALLOWED}"
        )


def _check_connect(connect: Connect, problem: Problem) -> None:
    """Check where browsers come from, and where they are sent."""
    if connect.url and (fault := _public_url_fault(connect.url)):
        problem("connect.url", fault)
    for address in connect.return_to:
        if fault := return_addresses.fault_of(address):
            allowed = return_addresses.ALLOWED
            found = f"found {address[:80]!r}, which {fault}"
            problem("connect.return_to", f"{found}; allowed: {allowed}")
    if connect.return_to and not connect.url:
        problem("connect.return_to", "found some; allowed only with connect.url")


def _public_url_fault(url: str) -> str:
    """Say what is wrong with the address at which browsers reach the nodes; empty: nothing."""
    if fault := secret_url_fault(url):
        return fault
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return (
            f"found {url!r}, where codes and cookies can be read on the way; allowed: https://, or"
            " http:// on this machine"
        )
    if parts.query or not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", parts.path):
        return f"found {url!r}; allowed: a host and perhaps a path, without a query"
    return ""


def _check_otel(config: Config, problem: Problem) -> None:
    """Check where telemetry goes, and whether the package that sends it is installed."""
    endpoint = config.otel.endpoint
    if not endpoint:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        problem("otel.endpoint", f"found {endpoint!r}; allowed: http://HOST:PORT, or https://")
    elif find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        problem(
            "otel.endpoint",
            "what sends it is not installed; allowed after: pip install 'tidewarden[otel]'",
        )


def _check_secret(config: Config, problem: Problem) -> None:
    """Check the secrets by which nodes know each other, and are known."""
    secret_file = config.cluster.secret_file
    if secret_file and (fault := _secret_file_fault(secret_file)):
        problem(
            "cluster.secret_file",
            f"found {secret_file!r}: {fault}; allowed: a readable file with the secret",
        )
    needs_secret = config.node.role != "worker" or config.store.url == "embedded"
    if config.peers() and not secret_file and needs_secret:
        problem(
            "cluster.secret_file",
            "found none; allowed with peers: a file with the secret that all nodes share",
        )
    if not is_loopback(config.node.host):
        needs = "which others can reach; allowed only with"
        if not config.users:
            problem(
                "node.host",
                f"found {config.node.host!r}, {needs} [[users]], so that not everybody may connect",
            )
        if not secret_file:
            problem(
                "node.host",
                f"found {config.node.host!r}, {needs} cluster.secret_file, so that nodes know each"
                " other",
            )


def _check_store(config: Config, problem: Problem) -> None:
    is_embedded = config.store.url == "embedded"
    if not is_embedded and (fault := _store_fault(config.store.url)):
        problem("store.url", fault)
    if is_embedded and config.node.role == "worker" and not config.cluster.members:
        problem(
            "cluster.members",
            "found none with role 'worker' and an embedded store; allowed: the members, whose"
            " stores it uses",
        )
    if is_embedded and config.store.replicas > 0:
        problem(
            "store.replicas",
            f"found {config.store.replicas} with an embedded store, where the stores that are in"
            " sync are waited for, however many; allowed: -1 or 0",
        )
    if 0 < config.store.maxmemory_bytes < 1_048_576:
        problem(
            "store.maxmemory_bytes",
            f"found {config.store.maxmemory_bytes}; allowed: 0 or at least 1,048,576",
        )


def _check_members(config: Config, problem: Problem) -> None:
    members = config.cluster.members
    for name, address in members.items():
        parsed = parse_address(address)
        if not re.fullmatch(NAME, name):
            problem("cluster.members", f"found the name {name!r}; allowed: {NAME_ALLOWED}")
        if parsed is None:
            problem(
                "cluster.members",
                f"found {name} = {address!r}; allowed: 'host:base_port', the port from 1 to 65,531",
            )
        elif name == config.node.name and parsed[1] != config.node.base_port:
            allowed = f"node.base_port, which is {config.node.base_port}"
            problem(
                "cluster.members",
                f"found {name} = {address!r}, this node; allowed as its port: {allowed}",
            )
    if config.node.role == "worker":
        if config.node.name in members:
            problem(
                "node.name",
                f"found {config.node.name!r} with role 'worker'; allowed: none of cluster.members",
            )
    elif config.node.role == "joining" and not set(members) - {config.node.name}:
        problem(
            "node.role",
            "found 'joining' without others in cluster.members; allowed: with those it is to join",
        )
    if members and config.node.name not in members and config.node.role != "worker":
        problem(
            "node.name",
            f"found {config.node.name!r}; allowed: one of cluster.members:"
            f" {', '.join(sorted(members))}",
        )
    if len(set(members.values())) != len(members):
        problem(
            "cluster.members",
            "found one address twice; allowed: an address of its own for each node",
        )


def _store_fault(url: str) -> str:
    """Say what is wrong with the URL of a store of one's own, or nothing."""
    scheme, _, rest = url.partition("://")
    _, _, kind = scheme.partition("+")
    if not rest or scheme not in [
        f"{tls}+{which}"
        for tls in ("redis", "rediss")
        for which in ("sentinel", "cluster", "replicated")
    ]:
        return _server_fault(url, ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"))
    place, _, query = rest.partition("?")
    hosts, _, service = place.rpartition("@")[2].partition("/")
    if kind == "replicated":  # where a Unix socket may be named, too
        found = place.rpartition("@")[2].split(",")
        hosts, service = ",".join(one for one in found if not one.startswith("/")), ""
    allowed = f"allowed: redis+{kind}://host:port,host:port" + (
        "/service" if kind == "sentinel" else ""
    )
    if kind == "sentinel" and (not service or "/" in service):
        return f"found no service in it; {allowed}, the service named as in `sentinel monitor`"
    if kind == "cluster" and (service or dict(parse_qsl(query)).get("db", "0") != "0"):
        return f"found a database in it, and a Redis Cluster has but the one, 0; {allowed}"
    faults = (_server_fault(f"redis://{one}", ("redis",)) for one in hosts.split(","))
    wrong = any(faults) or any(character.isspace() for character in url)
    return f"found a host or a port that is none; {allowed}" if wrong else ""


def _server_fault(url: str, schemes: tuple[str, ...]) -> str:
    """
    Say what is wrong with the URL of a server, which may hold a password and is not shown; empty:
    nothing.
    """
    if (fault := url_fault(url, schemes)) or urlsplit(url).scheme == "unix":
        return fault
    if re.fullmatch(r"/?|/[0-9]{1,5}", urlsplit(url).path):
        return ""
    forms = " or ".join(f"{scheme}://" for scheme in schemes)
    return (
        f"found {NOT_SHOWN}; allowed: an address that begins {forms}, then a host, and after it"
        " nothing but /N, the number of a database"
    )


def _secret_file_fault(path: str) -> str:
    try:
        return "" if Path(path).read_text("utf-8").strip() else "it is empty"
    except (OSError, UnicodeDecodeError) as error:
        return tls.reason(error)
