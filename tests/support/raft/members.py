"""The members of a simulation: ours and the library's own, on a wire in memory."""

from __future__ import annotations

import pickle
from typing import Any

from pysyncobj import SyncObj, replicated
from pysyncobj.node import TCPNode
from pysyncobj.transport import Transport

from tidewarden.raft.state import Times
from tidewarden.raft.voter import Voter


class Wire(Transport):
    """The library's side of the simulated network."""

    world: Any
    """The world that is running."""

    def __init__(self, voter: Any, own: Any, others: set[Any]) -> None:
        super().__init__(voter, own, others)
        self.voter, self.own = voter, own.id
        self.others = sorted(others, key=lambda node: node.id)
        self.lives: dict[str, int] = {}  # whom we are connected to, in which of its lives
        self.guests: dict[str, Any] = {}  # who speaks to us and is no member here
        voter.addOnTickCallback(self.look)

    def addNode(self, node: Any) -> None:
        self.others = sorted({*self.others, node}, key=lambda node: node.id)
        self.guests.pop(node.id, None)

    def dropNode(self, node: Any) -> None:
        self.others.remove(node)
        self.lives.pop(node.id, None)

    def look(self) -> None:
        """Notice links that came and went."""
        for node in (*self.others, *self.guests.values()):
            life = self.world.life_seen(self.own, node.id)
            if node.id in self.lives and self.lives[node.id] != life:
                del self.lives[node.id]
                self.guests.pop(node.id, None)
                self._onNodeDisconnected(node)
                if isinstance(self.voter, Voter) and self.world.refuses(self.own, node.id):
                    self.voter.on_port_refused(node)
            if life is not None and node.id not in self.lives:
                self.lives[node.id] = life
                self._onNodeConnected(node)

    def reset(self, address: str, noticed: bool = True) -> None:
        """End the link to a member; the next look makes another, or it is there already."""
        node = next(node for node in self.others if node.id == address)
        if noticed:
            del self.lives[address]
            self._onNodeDisconnected(node)
        else:
            self._onNodeConnected(node)

    def send(self, node: Any, message: Any) -> bool:
        if node.id not in self.lives:
            return False
        if isinstance(self.voter, Voter):
            message = self.voter.outgoing(message) | self.voter.carried(node, message)
            if self.voter._SyncObj__raftLog.unsaid:
                self.world.broken(f"{self.own} speaks before its log is on its disk")
        self.world.send(self.own, node.id, message)
        return True

    def receive(self, sender: str, data: bytes) -> None:
        node = next((node for node in self.others if node.id == sender), self.guests.get(sender))
        if node is None:
            node = self.guests[sender] = TCPNode(sender)
            self.lives[sender] = self.world.members[sender].life
            self._onNodeConnected(node)
        self._onMessageReceived(node, pickle.loads(data))

    def destroy(self) -> None:
        pass


class Ours(Voter):
    """A member as we run it, but for its wire."""

    transport = Wire


class Stock(SyncObj):  # type: ignore[misc]  # the library has no types
    """The library's own object with our settings."""

    def __init__(
        self,
        own: str,
        addresses: dict[str, str],
        conf: Any,
        times: Times,
        clock: Any,
        joining: bool = False,
    ) -> None:
        self.clock = clock
        others = [address for name, address in addresses.items() if name != own]
        super().__init__(addresses[own], others, conf, transportClass=Wire)
        self.epoch = 0

    @replicated  # type: ignore[untyped-decorator]  # the library has no types
    def claim(self, node: object, boot: object, seen: object) -> int:
        self.epoch += 1
        return self.epoch

    close = Voter.close
