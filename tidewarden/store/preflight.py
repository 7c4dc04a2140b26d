"""Checks whether a server may be our store: its version, its role, its policy for a full memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidewarden.errors import ConfigError, Error, StoreDown

from .client import StoreClient
from .connect import redact
from .full_store_writes import full_store_write

log = logging.getLogger("tidewarden.store")

FORMATS = ("1", "2")
"""
The numbers of the key layouts that this version reads; it writes the last. It refuses to start on
data of a greater one.
"""

EMBEDDED = "embedded.tidewarden"
"""
The address that an embedded store which runs alone announces. It says of the server, and not of its
data, which somebody may copy elsewhere, that its starts are counted.
"""

LEASES_OF_VIEW = 2**36
"""The number of lease numbers of one view: see queue/lua/shared/leases.lua."""

FSYNC_KEY = ":fsync"
"""
The key, behind the cluster's prefix, of how an embedded store was started to sync its log. Nodes
may have it sync each write meanwhile.
"""

OLDEST = (6, 2)
WAITAOF_FROM = (7, 2)

# What a server needs to keep small hashes and pieces of indexes as packed strings: see
# queue/lua/shared/layout.lua.
LISTPACKS = {
    "hash-max-listpack-entries": 256,
    "hash-max-listpack-value": 1024,
    "zset-max-listpack-entries": 320,
}


@dataclass(frozen=True, slots=True)
class StoreServer:
    """
    Holds the facts that a store tells of itself.

    ``views``: an embedded one, which numbers its starts. ``waitaof``: it has a log on disk and
    knows WAITAOF; ``appendfsync``: how that log is synced, of an embedded one how it was started to
    be, "" where it does not tell. ``replicas``: that were connected. ``empty``: it had nothing of
    the cluster. ``replicated``: an embedded one, of which each voting node has one.
    """

    name: str
    version: str
    views: bool
    maxmemory_bytes: int
    waitaof: bool = False
    appendfsync: str = ""
    replicas: int = 0
    empty: bool = False
    replicated: bool = False


def parse_info(raw: bytes) -> dict[str, str]:
    """Parse the ``name:value`` lines of INFO."""
    pairs = (
        line.partition(":")
        for line in raw.decode("utf-8", "replace").splitlines()
        if not line.startswith("#")
    )
    return {name: value for name, mark, value in pairs if mark}


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def policy_fault(policy: str) -> str:
    """Return why a server with this maxmemory-policy cannot be the store, or ""."""
    if policy == "noeviction":
        return ""
    return (
        f"its maxmemory-policy is {policy}, which would drop tasks in silence; set it to noeviction"
    )


def problems_of(info: dict[str, str], *, clustered: bool = False) -> list[str]:
    """
    Return why a server with this INFO cannot be the store; empty when it can.

    ``clustered``: whether it can be a part of it.
    """
    problems = []
    version = info.get("redis_version", "0")
    if numbers_of(version) < OLDEST:
        problems.append(f"it is version {version}; at least {'.'.join(map(str, OLDEST))} is needed")
    if fault := policy_fault(info.get("maxmemory_policy", "noeviction")):
        problems.append(fault)
    role = info.get("role", "master")
    if role != "master":
        problems.append(
            f"it is a {role} of {info.get('master_host', '?')}:{info.get('master_port', '?')}; name"
            " the primary"
        )
    if info.get("cluster_enabled") == "1" and not clustered:
        problems.append(
            "it is a node of a Redis Cluster; name it with redis+cluster://host:port,host:port"
        )
    if info.get("cluster_enabled") == "0" and clustered:
        problems.append("it is no node of a Redis Cluster; name it with redis://host:port")
    return problems


async def warn_of_settings(link: StoreClient) -> None:
    """Log once how much memory the server's settings cost, if it tells them. Raises: StoreDown."""
    try:
        found = await link.call(
            "CONFIG", "GET", "*-max-*p*"
        )  # ziplist before Redis 7; of a cluster one answers for all
    except StoreDown:
        raise
    except Error as error:  # a managed service that hides its settings
        log.info(
            "the store does not tell its settings (%s); docs/operations.md says which ones save"
            " memory",
            error,
        )
        return
    told = {
        name.decode().replace("ziplist", "listpack"): int(value)
        for name, value in zip(found[::2], found[1::2], strict=True)
        if name.startswith((b"hash-max", b"zset-max"))
    }
    small = [
        f"{name} {value} (now {told.get(name, '?')})"
        for name, value in LISTPACKS.items()
        if told.get(name, 0) < value
    ]
    if small:
        log.warning(
            "the store's settings cost memory: a task of some hundred bytes takes about 285 bytes"
            " instead of 200; set %s",
            ", ".join(small),
        )


async def check_store(link: StoreClient, cluster: str, *, replicated: bool = False) -> StoreServer:
    """
    Ask the store who it is: of a cluster, each primary that is there.

    ``replicated``: it is embedded, and each voting node has one; another takes over when need be.

    Raises: ConfigError: it cannot be our store; every reason. StoreDown: also while a replicated
    one hands over.
    """
    infos, problems = list[dict[str, str]](), list[str]()
    for one in link.each():
        if link.clustered and not one.up:
            continue  # asked when it is there
        infos.append(info := parse_info(await one.call("INFO")))
        if replicated and info.get("role") != "master":
            raise StoreDown(
                f"the store at {redact(one.url)} is no primary any more: a failover is under way"
            )
        found = problems_of(info, clustered=link.clustered)
        problems += [
            f"store.url: the server at {redact(one.url)} cannot be the store: {text}"
            for text in found
        ]
    if problems:
        raise ConfigError(problems)
    if not infos:
        raise StoreDown(link.why)
    stored = await link.call("GET", f"{{{cluster}}}:format")
    if stored is None:
        await link.call(*full_store_write("SET", f"{{{cluster}}}:format", FORMATS[-1], "NX"))
    elif stored.decode() not in FORMATS:
        raise ConfigError(
            [
                f"store.url: the data of cluster {cluster} has format {stored.decode()};"
                f" this version reads {' and '.join(FORMATS)}: upgrade tidewarden"
            ]
        )
    elif stored.decode() != FORMATS[-1]:
        await link.call(*full_store_write("SET", f"{{{cluster}}}:format", FORMATS[-1]))
    views = replicated or await _counts_views(link, cluster)
    oldest = min(infos, key=lambda info: numbers_of(info.get("redis_version", "0")))
    return StoreServer(
        "valkey" if "valkey_version" in oldest else "redis",
        oldest.get("valkey_version", oldest.get("redis_version", "?")),
        views,
        min(int(info.get("maxmemory", "0") or 0) for info in infos),
        all(map(_knows_waitaof, infos)),
        await (fsync_told(link, cluster, replicated=replicated) if views else _appendfsync(link)),
        min(int(info.get("connected_slaves", "0")) for info in infos),
        stored is None,
        replicated,
    )


async def _counts_views(link: StoreClient, cluster: str) -> bool:
    """
    Return whether each start of the store gets a view of its own, as an embedded store's does.

    Data that were copied from one to a store of the user's own keep the number, which is not raised
    there. It is dropped: leases are numbered by the clock then, above all that were given. Raises:
    ConfigError: they would not be above them. StoreDown.
    """
    key = f"{{{cluster}}}:view"
    view = await link.call("GET", key)
    if view is None:
        return False
    try:
        told = await link.call("CONFIG", "GET", "replica-announce-ip")
    except StoreDown:
        raise
    except Error:  # an embedded one hides nothing from its nodes
        told = []
    if told and told[1].decode() == EMBEDDED:
        return True
    seconds, microseconds = await link.call("TIME")
    if (int(view) + 1) * LEASES_OF_VIEW > int(seconds) * 1_000_000 + int(microseconds):
        raise ConfigError(
            [
                f"store.url: the data of cluster {cluster} came from an embedded store, whose lease"
                f" numbers (view {int(view)}) are above those of this store's clock: lease numbers"
                " would go back; allowed: a store that is embedded, by `tidewarden cluster restore`"
            ]
        )
    log.warning(
        "the data of cluster %s came from an embedded store, and this one is none: its view (%d) is"
        " dropped, and leases are numbered by the store's clock from now on",
        cluster,
        int(view),
    )
    await link.call("DEL", key, f"{{{cluster}}}{FSYNC_KEY}")
    return False


async def log_of(link: StoreClient) -> tuple[bool, str]:
    """
    Return whether each server that answers has a log on disk and knows WAITAOF.

    It also returns how it syncs the log, as of :class:`StoreServer`.

    Raises: StoreDown; Error: one does not tell.
    """
    infos = [
        parse_info(await one.call("INFO")) for one in link.each() if one.up or not link.clustered
    ]
    return bool(infos) and all(map(_knows_waitaof, infos)), await _appendfsync(link)


def _knows_waitaof(info: dict[str, str]) -> bool:
    return (
        numbers_of(info.get("redis_version", "0")) >= WAITAOF_FROM
        and info.get("aof_enabled") == "1"
    )


async def fsync_told(link: StoreClient, cluster: str, *, replicated: bool) -> str:
    """
    Return how an embedded store was started to sync its log.

    "": it was started by a version that did not say. A replicated one syncs as it was started, and
    what stands in its data may be of another. Raises: StoreDown.
    """
    if replicated:
        return await _appendfsync(link)
    return (await link.call("GET", f"{{{cluster}}}{FSYNC_KEY}") or b"").decode()


async def _appendfsync(link: StoreClient) -> str:
    """
    Ask how the log is synced, where the server tells; of several servers, the weakest counts.

    Raises: StoreDown.
    """
    told = set[str]()
    for one in link.each():
        if link.clustered and not one.up:
            continue
        try:
            found = await one.call("CONFIG", "GET", "appendfsync")
        except StoreDown:
            raise
        except Error as error:
            log.debug("the store does not tell how it syncs its log: %s", error)
            return ""
        told.add(found[1].decode() if found else "")
    return told.pop() if len(told) == 1 else "everysec"
