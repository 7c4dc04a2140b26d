"""Holds the findings of one look at a store, and reads them from its answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidewarden.errors import StoreDown
from tidewarden.raft.store_facts import StoreMember
from tidewarden.store.durability.view_library import Command, primary_key, view_key
from tidewarden.store.embedded.control_link import ReplyError
from tidewarden.store.preflight import parse_info

_REPLICA = re.compile(r"^slave\d+:ip=([^,]*)\.([^,.]*),port=\d+,state=online,offset=(\d+)", re.M)
_ATTACHED = re.compile(r"^slave\d+:(ip=[^,]*),port=\d+,(state=[^,]*),offset=(0?)", re.MULTILINE)
_DATABASE = re.compile(r"db\d+")
NOBODY = ("127.0.0.1", 1)
"""The address that a store follows which shall follow no other, and take no writes either."""


@dataclass(frozen=True, slots=True)
class StoreData:
    """Holds the primaryship that wrote a store's data, as the data name it."""

    view: int = 0
    """The view; 0: the data are empty."""
    stamp: int = 0
    in_sync: str = ""
    seq: int = 0
    founding: str = ""
    """The word of their history; empty although there is a view: the store was alone."""
    author: str = ""
    """The store that opened them last, as ``node.incarnation``."""
    format: str = ""
    has_keys: bool = False
    """Whether there are any keys; without a view, they belong to another cluster's name."""


@dataclass(frozen=True, slots=True)
class StoreLook:
    """Holds the state of a store."""

    node: str
    incarnation: str
    pid: int
    role: str
    """``master`` or ``slave``."""
    loading: bool
    link_up: bool
    """Whether a replica receives the stream."""
    place: tuple[str, int]
    """The address that a replica follows."""
    syncing: bool
    """Whether a replica receives a whole copy."""
    sync_share: float
    disk_fault: bool
    """Whether its log cannot be written: the disk is full, or broken."""
    rewriting: bool
    """Whether its log on disk does not have all of its data yet."""
    offset: int
    replicas: frozenset[tuple[str, ...]]
    """
    The stores that are attached to it: how each is listed, and whether it has received anything.
    """
    data: StoreData | None
    """The data; None while it loads them."""

    @property
    def follows_nobody(self) -> bool:
        """Return whether the store is a replica of no other."""
        return self.role == "slave" and self.place == NOBODY

    @property
    def is_whole(self) -> bool:
        """Return whether the store has all of its data, and they are on their way to its disk."""
        arrives = self.role == "slave" and (self.syncing or not self.link_up)
        return not (self.loading or self.rewriting or arrives)


def look_commands(cluster: str) -> list[Command]:
    """Return the commands of a look; :func:`read_look` reads their answers."""
    fields = ("view", "stamp", "set", "seq", "founding", "node")
    return [
        ("INFO", "replication", "persistence", "server", "keyspace"),
        ("CONFIG", "GET", "replica-announce-ip"),
        ("HMGET", primary_key(cluster), *fields),
        ("MGET", view_key(cluster), f"{{{cluster}}}:format"),
    ]


def read_look(answers: Sequence[Any]) -> StoreLook:
    """Read the answers. Raises: StoreDown: they are not of a store that replicates."""
    text, announced, hashed, others = answers
    if isinstance(text, ReplyError) or isinstance(announced, ReplyError):
        raise StoreDown(f"the store does not say what it is: {text}")
    info = parse_info(text.encode())
    node, _, incarnation = announced[1].rpartition(".")
    loading = info["loading"] != "0" or info.get("async_loading", "0") != "0"
    data = None
    if not loading:
        if isinstance(hashed, ReplyError) or isinstance(others, ReplyError):
            raise StoreDown(f"the store does not say what its data are: {hashed}")
        data = _read_data(hashed, others, has_keys=any(_DATABASE.fullmatch(name) for name in info))
    is_replica = info["role"] == "slave"
    return StoreLook(
        node=node,
        incarnation=incarnation,
        pid=int(info["process_id"]),
        role=info["role"],
        loading=loading,
        link_up=info.get("master_link_status") == "up",
        place=(info.get("master_host", ""), int(info.get("master_port", 0))),
        syncing=info.get("master_sync_in_progress", "0") != "0",
        sync_share=_share(info, loading),
        disk_fault=info.get("aof_last_write_status", "ok") != "ok",
        rewriting=info["aof_rewrite_in_progress"] != "0" or info["aof_rewrite_scheduled"] != "0",
        offset=int(info["slave_repl_offset"] if is_replica else info["master_repl_offset"]),
        replicas=frozenset(_ATTACHED.findall(text)),
        data=data,
    )


def _read_data(
    hashed: Sequence[str | None], others: Sequence[str | None], *, has_keys: bool
) -> StoreData:
    view, stamp, in_sync, seq, founding, author = (one or "" for one in hashed)
    alone, data_format = (one or "" for one in others)
    return StoreData(
        int(view or alone or 0),
        int(stamp or 0),
        in_sync,
        int(seq or 0),
        founding,
        author,
        data_format,
        has_keys,
    )


def _share(info: dict[str, str], loading: bool) -> float:
    """Return how much of a whole copy has come, or, after that, been loaded: 0 to 1."""
    if loading:
        return float(info.get("loading_loaded_perc", 0)) / 100
    whole = int(info.get("master_sync_total_bytes", 0))
    return int(info.get("master_sync_read_bytes", 0)) / whole if whole > 0 else 0.0


def acks_of(text: str) -> dict[StoreMember, int]:
    """Return how far each attached store has acknowledged, by ``INFO replication``."""
    acks: dict[StoreMember, int] = {}
    for node, incarnation, offset in _REPLICA.findall(text):
        member = StoreMember(node, incarnation)
        acks[member] = max(int(offset), acks.get(member, 0))
    return acks
