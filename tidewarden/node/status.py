"""Shows a node to the outside: its status, whether it lives, whether it is ready, its figures."""

from __future__ import annotations

import logging
import os
from typing import Any

from tidewarden import __version__
from tidewarden.clock import Clock
from tidewarden.cluster.replication.store_status import StoreStatus
from tidewarden.config.cluster_secret import key_names
from tidewarden.config.load import Config
from tidewarden.config.tls import expiry_of, expiry_warning, fault_of
from tidewarden.duties import Duties
from tidewarden.histograms import told_of
from tidewarden.raft.state import base_address
from tidewarden.server.stats_merge import add_up
from tidewarden.tokens import Tokens

from .connected_store import ConnectedStore
from .leader_parts import LeaderParts
from .process_parts import ProcessParts
from .secondaries import Secondaries

log = logging.getLogger("tidewarden.daemon")

# a loop that has not come round for so long is stuck: a store that is away, or refuses, is answered
# for within ten
SILENT_S_MAX = 30.0


class Status:
    """
    Asks the rooms of one node for what is shown of it.

    ``stores``: of replicated embedded stores; None: the cluster has one, or they are your own.

    ``ready`` and ``stopping`` are set by the daemon; ``certificate_expires_s`` is in Unix seconds,
    0: the doors have none.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        leader: LeaderParts,
        parts: ProcessParts,
        store: ConnectedStore,
        processes: Secondaries,
        stores: StoreStatus | None = None,
        duties: Duties,
        tokens: Tokens,
    ) -> None:
        self.config = config
        self.clock = clock
        self.raft, self.leadership = leader.raft, leader.leadership
        self.member = leader.member
        self.sweep, self.reaper, self.tasks = leader.sweep, leader.reaper, leader.tasks
        self.parts = parts
        self.nodes, self.queues = parts.nodes, parts.queues
        self.data, self.store_clock = parts.data, parts.store_clock
        self.store = store
        self.processes = processes
        self.stores = stores
        self.duties = duties
        self._tokens = tokens
        self.ready = False
        self.stopping = False
        self.certificate_expires_s = 0.0

    def status(self) -> dict[str, Any]:
        """Return who leads and how this node stands, as R.STATUS and /v1/status show it."""
        return {
            "node": self.config.node.name,
            "pid": os.getpid(),
            "version": __version__,
            "role": self.raft.role(),
            "leader": self.raft.leader() or "",
            "epoch": self.leadership.epoch or int(self.raft.committed().get("epoch", 0)),
            "sweeping": self.sweep.running,
            "term": self.raft.term,
            "view": self.store.view,
            "primary": "embedded" if self.store.server.views else "external",
            "quorum": self.raft.has_quorum(),
            "holder": self.nodes.holder,
            "store": {
                "name": self.store.server.name,
                "version": self.store.server.version,
                "at": self.data.at,
                "up": self.data.up,
                **self.store_clock.shown(),
            },
            "sessions": self._sessions(),
            "processes": self.processes.shown(),
            "members": self._members(),
            "raft": self.raft.status(),
            **(self.stores.shown() if self.stores else {}),
        }

    def backed_up(self) -> dict[str, Any]:
        """Return what a backup says of its cluster. It names keys, and holds none."""
        return {
            "cluster": self.config.cluster.name,
            "node": self.config.node.name,
            "version": __version__,
            "view": self.store.view,
            "epoch": int(self.raft.committed()["epoch"]),
            "members": {name: seat.address for name, seat in self.raft.seats().items()},
            "keys": key_names(self.config, os.environ),
        }

    def _sessions(self) -> dict[str, Any]:
        others = self.processes.stats("node")
        return {
            name: number + sum(int(one.get(f"sessions_{name}", 0)) for one in others)
            for name, number in self.queues.sessions.counts().items()
        }

    def addresses(self) -> dict[str, str]:
        """Return where the cluster's nodes listen, members and workers: ``host:base_port``."""
        return {name: str(member["address"]) for name, member in self._members().items()}

    def _members(self) -> dict[str, dict[str, Any]]:
        node, told = self.config.node, self.nodes.addresses
        seen = {registration.node: registration for registration in self.nodes.seen}
        seats = self.raft.seats()
        copies = self.stores.copies() if self.stores else {}
        others = {one.owner for one in self.nodes.seen} - seats.keys()
        workers = {
            name: {
                "address": told.get(name, ""),
                "votes": False,
                "met": True,
                "boot": seen[name].boot,
                "store_age_ms": seen[name].age_ms,
                "raft_heard_s": None,
            }
            for name in sorted(others & seen.keys())
        }
        return workers | {
            name: {
                "address": told.get(name) or base_address(seat.address),
                "votes": seat.votes,
                "met": seat.met,
                "boot": seen[name].boot if name in seen else 0,
                "store_age_ms": seen[name].age_ms if name in seen else -1,
                "raft_heard_s": (
                    None if name == node.name else _seconds(self.raft.peer_heard_s(name))
                ),
                **({"store": copies[name]} if name in copies else {}),
            }
            for name, seat in sorted(seats.items())
        }

    def dead(self) -> str:
        """
        Say why this process should be killed; empty: it lives.

        Its event loop answers, so what is left are the loops beside it.
        """
        silent_s = self.clock.monotonic() - self.nodes.turned_at
        if silent_s > SILENT_S_MAX:
            return (
                "the loop that tells the store that this node lives has not come round for"
                f" {silent_s:.0f} s"
            )
        ticked_s = self.raft.status().get("tick_age_s") or 0.0
        if ticked_s > SILENT_S_MAX:
            return f"Raft's thread has not run for {ticked_s:.0f} s"
        return ""

    def complaint(self) -> str:
        """Say why this node should get no traffic now; empty: it should."""
        if self.stopping:
            return "the node is going down"
        if not self.ready:
            return "the node is starting"
        if stranger := self.raft.not_member_because():
            return (
                f"the node is {stranger}" if stranger.startswith("no ") else f"the node {stranger}"
            )
        if self.stores and (fault := self.stores.fault()):
            return fault
        if not self.data.up:
            return f"the store is away: {self.data.why}" if self.data.why else "the store is away"
        return self.nodes.refusal or self.store.fault or self.queues.catalog.store_memory.fault

    def warnings(self) -> dict[str, str]:
        """Say what an operator should look at although this node serves, by what it is about."""
        catalog = self.queues.catalog
        expiry = expiry_warning(self.certificate_expires_s, self.clock.unix_ms() / 1000)
        found = {
            "members": self._alone(),
            "store": self.store.warning(),
            **(self.stores.warnings() if self.stores else {}),
            "certificate": expiry,
            "store link": self.data.warning(),
            "leader": self.tasks.warning(),
            "store clock": self.store_clock.warning(),
            "store memory": catalog.store_memory.warning(),
            "durability": catalog.durability.warning(),
            "duties": self.duties.warning(),
            "accounts": self._tokens.warning(),
        }
        return {about: warning for about, warning in found.items() if warning}

    def warning(self) -> str:
        """Say likewise in one text; empty: nothing."""
        return "; ".join(self.warnings().values())

    def look_at_certificate(self) -> None:
        """Note when the certificate ends that the doors have begun to use."""
        node = self.config.node
        if not fault_of(node.tls_cert, node.tls_key):
            self.certificate_expires_s = expiry_of(node.tls_cert)
        if warning := expiry_warning(self.certificate_expires_s, self.clock.unix_ms() / 1000):
            log.warning("%s", warning)

    def _alone(self) -> str:
        """Say that no leader is heard of, or what else is wrong among the members; empty: no."""
        trouble = str(self.raft.status().get("trouble", ""))
        if not self.ready or self.raft.role() != "orphan":
            return trouble
        alone = (
            "no leader is heard of: everything is served, but nothing is swept, and schedules wait"
        )
        return f"{alone} ({trouble})" if trouble else alone

    def stats(self) -> dict[str, Any]:
        """Return the numbers for /metrics, of all the node's processes."""
        own = {
            "leader": int(self.leadership.epoch > 0),
            "epoch": self.leadership.last_epoch,
            "terms_total": self.leadership.terms,
            "sweep_rounds_total": self.sweep.rounds,
            "sweep_moved_total": self.sweep.moved,
            "leases_reaped_total": self.reaper.reaped,
            **self.tasks.stats(),
            **self.duties.stats(),
            **self.parts.stats(),
            "raft_strangers_refused_total": self.raft.status()["strangers_refused"],
            **(
                {"certificate_expires_ms": int(self.certificate_expires_s * 1000)}
                if self.certificate_expires_s
                else {}
            ),
            "store_up": int(self.data.up),
            "store_refuses": int(bool(self.nodes.refusal)),
            **self.store_clock.stats(),
            **self.queues.catalog.store_memory.stats(),
            **(self.stores.stats() if self.stores else {}),
            **told_of(
                *self.parts.times(),
                *((self.member.elections,) if self.member else ()),
                *((self.stores.times,) if self.stores else ()),
            ),
        }
        return add_up(
            own, {"front_restarts_total": self.processes.restarts}, *self.processes.stats("node")
        )


def _seconds(seconds: float) -> float | None:
    return round(seconds, 3) if seconds < 1e9 else None
