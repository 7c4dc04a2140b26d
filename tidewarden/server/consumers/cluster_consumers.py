"""Shows and ends the consumers of a cluster: its nodes are asked for theirs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec

from tidewarden.clock import in_turns
from tidewarden.config.rights import Rights
from tidewarden.peer_line import (
    EVERY_NODE,
    Mac,
    PeerAway,
    PeerLine,
    UnreachableNode,
    mac_for,
    nodes_named,
)
from tidewarden.queue import Queues
from tidewarden.queue.sessions.sessions import hex_of
from tidewarden.queue.settings import LOCKS_QUEUE
from tidewarden.queue.task import check_range

from .node_consumers import NodeConsumers
from .questions import (
    LEASES_MAX,
    PAGE_MAX,
    Ask,
    Consumer,
    ConsumersTold,
    EndAsk,
    Holder,
    KillAsk,
    ListAsk,
    WhoAsk,
    asker_of,
    mark_of,
    merged,
)

PATH = "/internal/consumers"
WORDS_MAX = 1_000
"""The most words that were given and not used: one for each act that is asked for at a time."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """
    Asks a node; it is for nobody else, who might be at its address now.

    ``word``: of the node's last answer, where the question is to act.
    """

    nonce: bytes
    node: str
    word: bytes
    ask: Ask


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """
    Answers a node's question.

    Without ``told`` nothing was done: it may be the copy of an earlier one, and is to be asked with
    this ``word``, which is good once.
    """

    word: bytes
    told: ConsumersTold | None


class ConsumerPage(msgspec.Struct, frozen=True):
    """Some of the cluster's consumers; ``after`` is empty at the end."""

    consumers: list[Consumer]
    after: str
    unreachable: list[UnreachableNode]


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of a queue, and who has it; what is empty is not known."""

    id: str
    lease: int
    lease_end_ms: int
    since_ms: int
    """0: that is not known."""
    holder: str
    """The process whose connection has it, as ``node.boot``; empty: a session has it."""
    session: str
    node: str
    user: str
    client: int
    address: str
    name: str
    library: str
    version: str
    host: str
    pid: str


class HolderPage(msgspec.Struct, frozen=True):
    """Some of a queue's leases; ``after`` is empty at the end."""

    queue: str
    holders: list[HeldLease]
    after: str
    unreachable: list[UnreachableNode]


class Closed(msgspec.Struct, frozen=True):
    """How many connections were closed, and which nodes did not say."""

    closed: int
    unreachable: list[UnreachableNode]


class SessionEnded(msgspec.Struct, frozen=True):
    """How many leases of a session were released, and which nodes do not know yet."""

    session: str
    released: int
    unreachable: list[UnreachableNode]


def mac_of(cluster_secret: str) -> Mac:
    """Return what makes and checks the MACs of nodes that share this secret."""
    return mac_for(cluster_secret, b"tidewarden consumers between nodes 1")


class ClusterConsumers:
    """
    Asks every node, this one included, and answers the others.

    Args:
        name: this node's.
        own: what it knows of its consumers.
        queues: know the leases, and end sessions.
        mac: proves who asks, and who answers.
        addresses: the other nodes' ``host:base_port`` by their names.
        tls: whether their ports speak TLS.
    """

    def __init__(
        self,
        name: str,
        own: NodeConsumers,
        queues: Queues,
        mac: Mac,
        addresses: Callable[[], Mapping[str, str]],
        *,
        tls: bool = False,
    ) -> None:
        self.name = name
        self.own = own
        self._queues = queues
        self._mac = mac
        self._addresses = addresses
        self._line = PeerLine(PATH, mac, tls=tls)
        self._words: dict[bytes, bool] = {}

    async def page(
        self,
        user: str,
        rights: Rights,
        *,
        of_user: str = "",
        queue: str = "",
        node: str = EVERY_NODE,
        count: int = 100,
        after: str = "",
    ) -> ConsumerPage:
        """
        Return consumers, those alone that a user of these rights may see.

        Raises: NotFound: there is no such node; BadArg.
        """
        check_range(count, "count", 1, PAGE_MAX)
        named = self._named(node)
        if not rights.allow_every("admin") and not (
            rights.allow("admin", queue) if queue else rights.allow_some("admin")
        ):  # it sees its own alone: where a page goes on would tell of others'
            if of_user not in ("", user):
                return ConsumerPage([], "", [])
            of_user = user
        told = await self._ask(ListAsk(count, after, of_user, queue), named)
        cursor = told.consumers[-1].id if told.more and told.consumers else ""
        seen = [seen_by(user, rights, one) async for one in in_turns(told.consumers, 4)]
        return ConsumerPage([one for one in seen if one is not None], cursor, list(told.silent))

    async def holders(
        self, queue: str, *, task_id: str = "", count: int = 100, after: str = ""
    ) -> HolderPage:
        """
        Return leases of a queue as the store has them, and who holds each as the nodes know it.

        Raises: BadArg; StoreDown.
        """
        check_range(count, "count", 1, LEASES_MAX)
        leases, cursor = await self._queues.admin.leases(queue, count, after, task_id)
        told = await self.who(queue, leases)
        rows = [_held(lease, _who(told, lease)) for lease in leases]
        return HolderPage(queue, rows, cursor, list(told.silent))

    async def lock(self, name: str) -> dict[str, Any]:
        """
        Describe a lock, and who holds it as far as the nodes know.

        ``unreachable`` is there only where a node that may know did not answer. Raises: BadArg;
        NotFound: it is not held; StoreDown.
        """
        found = await self._queues.locks.peek(name)
        leases, _ = await self._queues.admin.leases(LOCKS_QUEUE, 1, "", name)
        told = await self.who(LOCKS_QUEUE, leases)
        for one in leases:
            same = one["lease_end_ms"] == found["lease_end_ms"]  # else others may have it by now
            if same and (who := _who(told, one)) is not None:
                named = ("node", "user", "address", "host", "pid", "since_ms")
                found |= {field: getattr(who, field) for field in named} | {"client": who.name}
        if told.silent:
            found["unreachable"] = msgspec.to_builtins(told.silent)
        return found

    async def who(self, queue: str, leases: list[dict[str, Any]]) -> ConsumersTold:
        """
        Ask the nodes who has these leases: the nodes that took them, or all if a session has them.
        """
        if not leases:
            return ConsumersTold()
        sessions = sorted({one["session"] for one in leases} - {""})
        wanted = [(one["lease"], mark_of(_task_of(one))) for one in leases]
        nodes = {_node_of(one["holder"]) for one in leases if one["holder"]}
        if sessions:
            nodes |= {self.name, *self._addresses()}
        asked = WhoAsk(queue, wanted, [UUID(uuid).bytes for uuid in sessions])
        return await self._ask(asked, nodes)

    async def kill(self, ask: KillAsk, node: str = EVERY_NODE) -> Closed:
        """
        Close connections, on all nodes or one; what they held is ready again.

        Raises: NotFound: there is no such node; BadArg: the session is none.
        """
        if ask.session:
            ask = msgspec.structs.replace(ask, session=hex_of(ask.session))
        told = await self._ask(ask, self._named(node))
        return Closed(told.closed, list(told.silent))

    async def end_session(self, uuid: str, user: str = "", asker: str = "") -> SessionEnded:
        """
        End a session and close its connections: what it held is ready again.

        ``user``: whose it has to be; empty: anybody's. ``asker``: the address of a connection to
        this node, which is left. Raises: NotFound, BadArg, StoreDown.
        """
        silent: list[UnreachableNode] = []
        spared = asker_of(self.name, asker)

        async def tell(digits: str) -> None:
            told = await self._ask(EndAsk(digits, spared), self._named(EVERY_NODE))
            silent.extend(told.silent)

        released = await self._queues.session_expiry.stop(hex_of(uuid), user, tell)
        return SessionEnded(uuid, released, silent)

    def _named(self, node: str) -> Collection[str]:
        """Return the nodes that are meant. Raises: NotFound: there is no such node."""
        return nodes_named(node, {self.name, *self._addresses()})

    async def _ask(self, ask: Ask, nodes: Collection[str]) -> ConsumersTold:
        addresses = self._addresses()
        names = sorted(nodes)
        told = await asyncio.gather(
            *(self._of(name, addresses.get(name, ""), ask) for name in names)
        )
        if isinstance(ask, ListAsk):
            return merged(told, ask.count, ask.queue)
        return merged(told)

    async def _of(self, name: str, address: str, ask: Ask) -> ConsumersTold:
        """Ask one node; the answer names it where it does not answer."""
        if name == self.name:
            return await self.own.answer(ask)
        why, word = "it takes no question for a new one", b""
        try:
            if not address:
                raise PeerAway("no address of it is known")
            for _ in range(2):
                question = Question(secrets.token_bytes(16), name, word, ask)
                raw = await self._line.ask(name, address, msgspec.msgpack.encode(question))
                answer = msgspec.msgpack.decode(raw, type=Answer)
                if answer.told is not None:
                    return answer.told
                word = answer.word
        except PeerAway as error:
            why = str(error)
        except msgspec.DecodeError:
            why = "it answers as another version does"
        return ConsumersTold(silent=(UnreachableNode(name, why),))

    async def answer_peer(self, raw: bytes) -> bytes | None:
        """Answer another node's message; None: it is of no node, or for another one."""
        question = self._mac.question(raw, Question)
        if question is None or question.node != self.name:
            return None
        acts = isinstance(question.ask, KillAsk | EndAsk)
        if acts and not self._words.pop(question.word, False):
            answer = Answer(self._new_word(), None)
        else:
            answer = Answer(b"", await self.own.answer(question.ask))
        return self._mac.reply_to(raw, msgspec.msgpack.encode(answer))

    def _new_word(self) -> bytes:
        if len(self._words) >= WORDS_MAX:
            del self._words[next(iter(self._words))]
        word = secrets.token_bytes(16)
        self._words[word] = True
        return word

    async def close(self) -> None:
        """Close every connection to other nodes."""
        await self._line.close()


def seen_by(user: str, rights: Rights, consumer: Consumer) -> Consumer | None:
    """
    Return what a user may see of a consumer: all of its own, else what is in queues it administers.
    """
    if consumer.user == user or rights.allow_every("admin"):
        return consumer
    holds = [hold for hold in consumer.holds if rights.allow("admin", hold.queue)]
    waits = [queue for queue in consumer.waits if rights.allow("admin", queue)]
    if not (holds or waits):
        return None
    tasks = sum(hold.tasks for hold in holds)
    return msgspec.structs.replace(consumer, holds=holds, waits=waits, tasks=tasks, settled=0)


def _node_of(holder: str) -> str:
    """Return the node of ``node.boot``, also where a further process of it (``node/1``) is."""
    return holder.rpartition(".")[0].partition("/")[0]


def _task_of(lease: Mapping[str, Any]) -> bytes:
    return bytes(lease["id"].encode("utf-8", "surrogateescape"))


def _who(told: ConsumersTold, lease: Mapping[str, Any]) -> Holder | None:
    """Choose who took a lease; else somebody who is in its session; None: nobody is known."""
    task = _task_of(lease)
    for one in told.holders:
        if one.task == task and one.lease == lease["lease"]:
            return one
    of_session = (one for one in told.holders if one.session and one.session == lease["session"])
    return next(of_session, None)


def _held(lease: Mapping[str, Any], who: Holder | None) -> HeldLease:
    return HeldLease(
        **lease,
        node=_node_of(lease["holder"]) if who is None else who.node,
        since_ms=0 if who is None else who.since_ms,
        user="" if who is None else who.user,
        client=0 if who is None else who.client,
        address="" if who is None else who.address,
        name="" if who is None else who.name,
        library="" if who is None else who.library,
        version="" if who is None else who.version,
        host="" if who is None else who.host,
        pid="" if who is None else who.pid,
    )
