"""
Topics: names to which queues subscribe. A put to one reaches each of its queues once, under one id,
queue by queue.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidewarden.errors import BY_CODE, BadArg, Error, Full, NotFound

from .catalog import Catalog
from .task import IdMaker, TaskSpec, check_name

LINKS_MAX = 1000  # queues of one topic


class Topics(Catalog):
    """Links lie in the store, and are remembered here until a message says that they changed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ids = IdMaker()

    async def link(self, topic: str, queue: str) -> int:
        """
        Subscribe a queue, which is made when it is new, to a topic, likewise; 1, or 0 when it was.

        Raises: BadArg: the topic's name is a queue's, or the queue's a topic's; or the topic has
        1,000 queues. Full: it is new, and there are ``limits.queues_max`` topics.
        """
        if check_name(topic, "topic") == check_name(queue):
            raise BadArg(
                f"a topic is linked to a queue, which has another name: found {topic} twice"
            )
        nested = f"{queue} is a topic; only queues can be linked to one"
        if await self._links_of(queue) is not None:
            raise BadArg(nested)
        most = self._config.limits.queues_max
        word, links = await self._by_name("queue.link", topic, queue, 1, LINKS_MAX, most)
        if word == b"QUEUE":
            raise BadArg(f"{topic} is a queue already; a topic has a name of its own")
        if word == b"TOPIC":
            raise BadArg(nested)
        if word == b"MANY":
            raise BadArg(f"the topic {topic} has {LINKS_MAX} queues, the most that are allowed")
        if word == b"FULL":
            raise Full(
                f"there is no topic {topic}, and the cluster has {most:,} already, the most"
                " (limits.queues_max)"
            )
        self._topics[topic] = tuple(links.decode().split())
        return int(word)

    async def unlink(self, topic: str, queue: str) -> int:
        """
        A queue is of a topic no more; 1, or 0 when it was not. What it holds stays, and so does a
        topic without queues.

        Raises: NotFound: there is no such topic.
        """
        word, links = await self._by_name(
            "queue.link", check_name(topic, "topic"), check_name(queue), 0, LINKS_MAX, 0
        )
        if word == b"NONE":
            raise NotFound(f"there is no topic {topic}")
        self._topics[topic] = tuple(links.decode().split())
        return int(word)

    async def topics(self) -> dict[str, list[str]]:
        """Every topic and its queues, sorted."""
        raw = await self._link.call("HGETALL", self._topics_key)
        pairs = zip(raw[::2], raw[1::2], strict=True)
        return {_text(name): sorted(_text(links).split()) for name, links in sorted(pairs)}

    async def _links_of(self, name: str) -> tuple[str, ...] | None:
        """
        The queues of a topic; None: the name is a queue's, which is open now. Raises: what
        :meth:`_open` does.
        """
        if name in self._shards:
            return None
        if name not in self._topics:
            try:
                await self._open(name)
            except BadArg:
                return self._topics[name]
            return None
        return self._topics[name]

    async def _put_to_each(
        self,
        topic: str,
        queues: Sequence[str],
        task: TaskSpec,
        put: Callable[[str, TaskSpec], Awaitable[str]],
    ) -> str:
        """
        Put a task into each of these queues, by ``put``, under one id; the id.

        Raises: what the first queue refused it with; says which have it and that the same put may
        be repeated.
        """
        copy = dataclasses.replace(task, id=task.id or self._ids.make(self._clock.unix_ms()))
        copy.check(self._config.limits.payload_bytes)
        answers = await asyncio.gather(*(_caught(put, queue, copy) for queue in queues))
        refused = [
            (queue, error)
            for queue, error in zip(queues, answers, strict=True)
            if error is not None
        ]
        if refused:
            have = [queue for queue, error in zip(queues, answers, strict=True) if error is None]
            # of its word, for some refusals are told more than a message
            raise BY_CODE[refused[0][1].code](
                f"of the topic {topic},"
                f" {'; '.join(f'{queue} refused: {error}' for queue, error in refused)[:600]}. Its"
                f" queues that have the task: {', '.join(have)[:600] or 'none'}. A put with ID"
                f" {copy.id} may be repeated"
            )
        return copy.id


async def _caught(
    put: Callable[[str, TaskSpec], Awaitable[str]], queue: str, task: TaskSpec
) -> Error | None:
    try:
        await put(queue, task)
    except Error as error:
        return error
    return None


def _text(raw: bytes) -> str:
    """What nobody can read is no name of ours, and hides no other."""
    return raw.decode("utf-8", "replace")
