"""
Asks other nodes for what they know of an account.

A node tells whether its journal has an answer, whether a request is under way, and which answers it
could not read. Messages are :mod:`tidewarden.peer_line`'s, their bodies msgpack. Tokens in them are
sealed as they are in the store.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from tidewarden import errors
from tidewarden.config.load import Config
from tidewarden.peer_line import Mac, PeerAway, PeerLine, mac_for
from tidewarden.tokens.vault.vault import Vault

from .journal import Journal
from .journal_records import JournalAnswer, RawAnswer

log = logging.getLogger("tidewarden.tokens")

PATH = "/internal/tokens"
SHOWN_MAX = 8
"""
The most answers of one account that a node shows, the newest first: at 64 KiB each they fill half
of a reply.
"""

State = Literal["answer", "busy", "unsent", "none", "away"]
"""
``answer``: in its journal. ``busy``: its request is under way. ``unsent``: it never sent one.
``none``: it knows of nothing. ``away``: it did not say.
"""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """Asks about a request with the refresh token of one generation."""

    nonce: bytes
    queue: str
    account: str
    grant: int
    generation: int
    node: str = ""
    """The node that is asked; another node at its address would answer that it knows of nothing."""
    kept: bool = False
    """The question asks for all unreadable answers of the account."""


class KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Holds an unreadable answer, and the wrapped data key that it is sealed under."""

    raw: RawAnswer
    key_id: int
    key: bytes


class PeerReply(msgspec.Struct, frozen=True, array_like=True):
    """Says what the node knows; an answer brings the wrapped data key of its tokens."""

    state: State
    answer: JournalAnswer | None = None
    key_id: int = 0
    key: bytes = b""
    kept: list[KeptAnswer] | None = None
    """The unreadable answers; None: they were not asked for, or the node knows no such question."""


def mac_of(cluster_secret: str) -> Mac:
    """Return what makes and checks the MACs of nodes that share this secret."""
    return mac_for(cluster_secret, b"tidewarden tokens between nodes 1")


class Peers:
    """Asks the other nodes; :func:`reply_to` answers them."""

    def __init__(
        self,
        config: Config,
        mac: Mac | None,
        addresses: Callable[[], Mapping[str, str]] | None = None,
        look_up: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """
        Sign questions with ``mac``; without it, ask no node.

        ``addresses`` gives the members' ``host:base_port``, which change; None: the configured
        ones. ``look_up`` finds where another node listens, such as a worker; empty: not known.
        """
        self._addresses = addresses or config.peers
        self._look_up = look_up
        tls = bool(config.node.tls_cert)
        self._line = None if mac is None else PeerLine(PATH, mac, tls=tls)

    async def ask(
        self, holder: str, queue: str, account: str, grant: int, generation: int
    ) -> PeerReply:
        """
        Ask the node of ``holder`` (``node.boot``, as an intent has it) what it knows.

        Never raises.
        """
        node = holder.rpartition(".")[0]
        return await self._ask(
            Question(secrets.token_bytes(16), queue, account, grant, generation, node)
        )

    async def ask_kept(self, node: str, queue: str, account: str) -> PeerReply:
        """Ask a node which unreadable answers of an account it keeps. Never raises."""
        return await self._ask(
            Question(secrets.token_bytes(16), queue, account, 0, 0, node, kept=True)
        )

    def members(self) -> Mapping[str, str]:
        """Return the nodes that are known without asking the store, and their addresses."""
        return self._addresses()

    async def _ask(self, question: Question) -> PeerReply:
        address = await self._address_of(question.node)
        if not address or self._line is None:
            return PeerReply("away")
        body = msgspec.msgpack.encode(question)
        try:
            return msgspec.msgpack.decode(
                await self._line.ask(question.node, address, body), type=PeerReply
            )
        except PeerAway as error:
            log.debug(
                "%s does not say what it knows of %s: %s", question.node, question.account, error
            )
        except msgspec.DecodeError:
            log.debug("%s answers as another version does", question.node)
        return PeerReply("away")

    async def close(self) -> None:
        """Close every connection."""
        if self._line is not None:
            await self._line.close()

    async def _address_of(self, node: str) -> str:
        address = self._addresses().get(node, "")
        if not address and self._look_up is not None:
            try:
                address = await self._look_up(node)
            except errors.Error as error:
                log.debug("where %s listens is not known: %s", node, error)
        return address


def kept_of(journal: Journal, vault: Vault, queue: str, account: str) -> list[KeptAnswer]:
    """Return the last unreadable answers of an account that this node keeps and can open."""
    found: list[RawAnswer] = [
        raw for raw in journal.raws() if (raw.queue, raw.account) == (queue, account)
    ]
    return [
        KeptAnswer(raw, *vault.wrapped_key(raw.body))
        for raw in found[-SHOWN_MAX:]
        if vault.holds(raw.body)
    ]


def reply_to(raw: bytes, reply: PeerReply, mac: Mac) -> bytes:
    """Make the message that answers the question in ``raw``."""
    return mac.reply_to(raw, msgspec.msgpack.encode(reply))
