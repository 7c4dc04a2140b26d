"""Takes this node's connections around a cut link to the primary's host, and carries others'."""

from __future__ import annotations

import logging

from tidewarden.clock import Clock
from tidewarden.config.settings import Node
from tidewarden.errors import StoreDown
from tidewarden.peer_line import Mac
from tidewarden.raft.state import base_address
from tidewarden.store.embedded.detour import Carrier, Detour

from .chooser import Chooser
from .raft_stores import RaftStores
from .way_around import WayAround, WayShown, WayTimes

log = logging.getLogger("tidewarden.cluster")


class Detours:
    """
    Joins the decisions of :mod:`.way_around` with the connections that carry bytes.

    Without ``mac`` no other node is asked, and none is served.
    """

    def __init__(
        self,
        member: RaftStores,
        chooser: Chooser,
        clock: Clock,
        pace: float,
        node: Node,
        mac: Mac | None,
    ) -> None:
        self._member, self._chooser, self._clock = member, chooser, clock
        self._way = WayAround(member.name, WayTimes.at(pace))
        self._detour: Detour | None = None
        self.carrier: Carrier | None = None
        """The part that serves other nodes, at a door of this one; None: this node serves none."""
        if mac is not None:
            self._detour = Detour(
                mac, clock, self._carriers, self._address, tls=bool(node.tls_cert)
            )
            self.carrier = Carrier(member.name, mac, self._reach)

    async def start(self) -> None:
        """Open the port of loopback that leads around. Raises: OSError."""
        if self._detour is not None:
            await self._detour.start()

    async def stop(self) -> None:
        """Close every connection that takes a detour, or is carried."""
        if self._detour is not None:
            await self._detour.stop()
        if self.carrier is not None:
            await self.carrier.close()

    def port_to(self, node: str) -> int:
        """Return the port of loopback that leads to that node's store; 0: it is reached itself."""
        taken = self._detour is not None and self._way.is_taken and node == self._way.primary
        return self._detour.port if taken and self._detour is not None else 0

    @property
    def serves(self) -> bool:
        """Return whether the primary is reached by way of another node, as was proved last."""
        detour = self._detour
        return detour is not None and self._way.is_taken and bool(detour.carrier) and not detour.why

    def hears(self, node: str) -> bool:
        """Return whether the node was heard a moment ago."""
        silent_s = self._silence().get(node, float("inf"))
        return node == self._member.name or silent_s <= self._way.times.near_s

    def look(self, primary: str) -> bool:
        """
        Decide how to reach the store of the node ``primary``; return whether the way has changed.
        """
        if self._detour is None:
            return False
        before, silence = self.port_to(primary), self._silence()
        self._way.look(self._clock.monotonic(), primary, silence, leads=self._member.is_leader())
        now = self.port_to(primary)
        self._detour.node = primary if now else ""
        if now and not before:
            self._detour.carrier = self._detour.why = ""
            names = ", ".join(sorted(self._way.carriers(silence)))
            log.warning(
                "%s is not heard: calls to its store go by way of another node (%s) until it is"
                " heard again; mend the link between the hosts",
                primary,
                names,
            )
        elif before and not now:
            log.info("calls to %s's store take no detour any more", primary)
        return now != before

    def shown(self) -> WayShown:
        """Return the state of the detour, for people."""
        if self._detour is None or self.carrier is None:
            return WayShown()
        return WayShown(
            self._way.is_taken,
            self._detour.carrier if self.serves else "",
            self._detour.why if self._way.is_taken else "",
            self._detour.connections,
            self.carrier.connections,
        )

    def _silence(self) -> dict[str, float]:
        return self._chooser.silence(float("-inf"))

    def _carriers(self) -> dict[str, str]:
        """Return the nodes that may be asked to carry, and where they listen."""
        names = self._way.carriers(self._silence())
        return {
            name: base_address(seat.address)
            for name, seat in self._member.seats().items()
            if name in names
        }

    def _address(self, node: str) -> str:
        """Return the address of that node's store, as the node reports it. Raises: StoreDown."""
        report = self._chooser.reports().get(node)
        if node not in self._member.seats() or report is None or not report.address:
            raise StoreDown(f"it knows no store of {node}")
        return report.address

    def _reach(self, node: str) -> str:
        """Return that address for another node, which asks to be carried. Raises: StoreDown."""
        address = self._address(node)
        if not self.hears(node):
            raise StoreDown(f"it does not hear {node} either")
        return address
