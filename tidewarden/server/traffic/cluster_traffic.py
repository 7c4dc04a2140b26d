"""Adds up the traffic of a cluster's nodes, each of which is asked for its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

import msgspec

from tidewarden.peer_line import Mac, PeerAway, PeerLine, UnreachableNode, mac_for, nodes_named

from .node_traffic import NodeTraffic
from .report import TrafficQuery, TrafficReport, report
from .space_saving import SpaceSaving
from .tables import MEASURES, By, Key, Part, parts_of, table_of
from .windows import Over

PATH = "/internal/traffic"


class Question(msgspec.Struct, frozen=True, array_like=True):
    """Asks a node for one table."""

    nonce: bytes
    node: str
    """
    The node that is asked; at an address that is no longer its own, another would answer for it.
    """
    by: By
    over: Over


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Holds a node's table, and the seconds that it covers."""

    seconds: float
    parts: list[Part]


def mac_of(cluster_secret: str) -> Mac:
    """Return what makes and checks the MACs of nodes that share this secret."""
    return mac_for(cluster_secret, b"tidewarden traffic between nodes 1")


class ClusterTraffic:
    """
    Asks every node, this one included, and answers the others.

    Args:
        name: this node's.
        own: what it has counted.
        mac: proves who asks, and who answers.
        addresses: the other nodes' ``host:base_port`` by their names.
        tls: whether their ports speak TLS.
    """

    def __init__(
        self,
        name: str,
        own: NodeTraffic,
        mac: Mac,
        addresses: Callable[[], Mapping[str, str]],
        *,
        tls: bool = False,
    ) -> None:
        self.own = own
        self._name = name
        self._mac = mac
        self._addresses = addresses
        self._line = PeerLine(PATH, mac, tls=tls)

    async def report(self, query: TrafficQuery) -> TrafficReport:
        """
        Return who sends most, over all nodes or one.

        A node that does not answer is named in the answer. Raises: NotFound: there is no such node.
        """
        addresses = {self._name: "", **self._addresses()}
        table: SpaceSaving[Key] = SpaceSaving(len(MEASURES))
        longest_s = 0.0
        nodes, unreachable = [], []
        names = sorted(nodes_named(query.node, addresses.keys()))
        found = await asyncio.gather(*(self._of(name, addresses[name], query) for name in names))
        for name, one in zip(names, found, strict=True):
            if isinstance(one, PeerAway):
                unreachable.append(UnreachableNode(name, str(one)))
                continue
            table.merge(one[0])
            longest_s = max(longest_s, one[1])
            nodes.append(name)
        return report(query, table, longest_s, nodes, unreachable)

    async def _of(
        self, name: str, address: str, query: TrafficQuery
    ) -> tuple[SpaceSaving[Key], float] | PeerAway:
        if name == self._name:
            return self.own.seen(query.by, query.over)
        question = Question(secrets.token_bytes(16), name, query.by, query.over)
        body = msgspec.msgpack.encode(question)
        try:
            raw = await self._line.ask(name, address, body)
            answer = msgspec.msgpack.decode(raw, type=Answer)
            return table_of(answer.parts), answer.seconds
        except PeerAway as error:
            return error
        except (msgspec.DecodeError, ValueError):
            return PeerAway("it answers as another version does")

    def answer_peer(self, raw: bytes) -> bytes | None:
        """Answer another node's message; None: it is of no node, or for another one."""
        question = self._mac.question(raw, Question)
        if question is None or question.node != self._name:
            return None
        table, seconds = self.own.seen(question.by, question.over)
        answer = Answer(seconds, list(parts_of(question.by, table)))
        return self._mac.reply_to(raw, msgspec.msgpack.encode(answer))

    async def close(self) -> None:
        """Close every connection to other nodes."""
        await self._line.close()
