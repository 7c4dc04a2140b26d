"""Clients of a cluster on which faults come, and the record of what they were told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import redis
import redis.asyncio
from support.cluster.harness import TROUBLE, Node
from support.faults.history import History, Operation

ANSWER_S = 8.0
HONEST_REFUSALS = (
    "NOTHELD",
    "STOREDOWN",
    "STALE",
    "NOQUORUM",
    "NOLEADER",
    "FULL",
    "TIMEOUT",
    "NOTFOUND",
    "DRAINING",
)


class Clients:
    """
    Connections to ``nodes``, made anew after each trouble; what was asked is in ``history``.

    ``troubles``: what clients met with, by first word. ``producing``: until when producers put.
    """

    def __init__(self, nodes: list[Node], seed: int = 1) -> None:
        self.nodes = nodes
        self.history = History()
        self.dice = random.Random(seed)
        self.troubles: Counter[str] = Counter()
        self.producing = True

    async def ask(
        self,
        operation: Operation,
        client: redis.asyncio.Redis,
        *words: Any,
        answer_s: float = ANSWER_S,
    ) -> Any:
        """
        Its answer, which is OK; None when it was refused as NOTHELD or not found.

        Raises: what ``TROUBLE`` names: it is unknown what became of it, or the node says that it
        cannot; AssertionError: it was refused for a reason that no fault explains.
        """
        wait_ms = (
            words[-1]
            if words[0] == "Q.WAIT"
            else words[words.index("WAIT") + 1]
            if "WAIT" in words
            else 0
        )
        try:
            async with asyncio.timeout(answer_s + wait_ms / 1000):
                answer = await client.execute_command(*words)
        except redis.ResponseError as error:
            word = honest(words[0], error)
            if word in ("NOTHELD", "NOTFOUND"):
                operation.refused(word)
                return None
            raise  # STOREDOWN and its like: done or not
        operation.ok()
        return answer

    async def connected(self, node: Node, *, alone: bool = False) -> redis.asyncio.Redis:
        """
        A connection to ``node``, or, unless it is to be that one ``alone``, to the next one that
        takes it.
        """
        first = self.nodes.index(node)
        while True:
            for candidate in (node,) if alone else self.nodes[first:] + self.nodes[:first]:
                client = candidate.aclient()
                try:
                    async with asyncio.timeout(3):
                        await client.initialize()
                except TROUBLE as error:
                    self.note(error)
                    await client.aclose()
                else:
                    return client
            await asyncio.sleep(0.1)

    def note(self, error: BaseException) -> None:
        """Count a trouble."""
        words = str(error).split()
        self.troubles[words[0] if words and words[0].isupper() else type(error).__name__] += 1

    async def forever(self, node: Node, turn: Any, *, alone: bool = False) -> None:
        """
        ``turn(client, node)`` again and again, on a connection made anew after each trouble, to any
        node or that one ``alone``.
        """
        order = [node] if alone else self.nodes
        client = await self.connected(node, alone=alone)
        try:
            while True:
                try:
                    if await turn(client, node) is False:
                        return
                except TROUBLE as error:
                    self.note(error)
                    await client.aclose()
                    await asyncio.sleep(0.05)
                    client = await self.connected(self.dice.choice(order), alone=alone)
        finally:
            await client.aclose()


def honest(verb: str, error: redis.ResponseError) -> str:
    """Its word. Raises: AssertionError: no fault explains such an answer."""
    word = str(error).partition(" ")[0]
    if word not in HONEST_REFUSALS:
        raise AssertionError(f"{verb}: {error}") from error
    return word
