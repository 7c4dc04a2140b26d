"""Keeps topics, which are names to which queues subscribe."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidewarden.errors import BadArg, Full, NotFound, Stale

from .catalog import Catalog
from .task import check_name

LINKS_MAX = 1000  # queues of one topic


class Topics:
    """
    Links queues to topics.

    Links lie in the store; the catalog remembers them until a message says that they changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        topics_max: int,
        configure: Callable[[str, dict[str, Any]], Awaitable[object]],
    ) -> None:
        """Change a queue's settings by ``configure(queue, settings)``."""
        self._catalog = catalog
        self._topics_max = topics_max
        self._configure = configure

    async def link(self, topic: str, queue: str, settings: Mapping[str, Any] | None = None) -> int:
        """
        Subscribe a queue, which is made when it is new, to a topic, likewise; 1, or 0 when it was.

        ``settings``: those that the queue gets before.

        Raises: BadArg: the topic's name is a queue's, or the queue's a topic's; or the topic has
        1,000 queues. Full: it is new, and there are ``limits.queues_max`` topics, or the user who
        acts has made its share of them. NotFound: the queue was dropped.
        """
        if check_name(topic, "topic") == check_name(queue):
            raise BadArg(
                f"a topic is linked to a queue, which has another name: found {topic} twice"
            )
        nested = f"{queue} is a topic; only queues can be linked to one"
        if await self._catalog.links_of(queue) is not None:
            raise BadArg(nested)
        if settings:
            await self._configure(queue, dict(settings))
        most = self._topics_max
        word, links = await self._catalog.run_on_names(
            "queue.link", topic, queue, 1, LINKS_MAX, most, *self._catalog.maker
        )
        if word == b"GONE":  # it ended, and this node had not heard of that, or just now
            with contextlib.suppress(NotFound, Stale):
                await self._catalog.stored(queue)
            return await self.link(topic, queue, settings)
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
        self._catalog.topics[topic] = tuple(links.decode().split())
        return int(word)

    async def unlink(self, topic: str, queue: str) -> int:
        """
        Take a queue from a topic; return 1, or 0 when it was not in it.

        The queue's tasks stay, and so does a topic without queues. Raises: NotFound: there is no
        such topic.
        """
        word, links = await self._catalog.run_on_names(
            "queue.link", check_name(topic, "topic"), check_name(queue), 0, LINKS_MAX, 0, "", 1
        )
        if word == b"NONE":
            raise NotFound(f"there is no topic {topic}")
        self._catalog.topics[topic] = tuple(links.decode().split())
        return int(word)

    async def all(self) -> dict[str, list[str]]:
        """Return every topic and its queues, sorted."""
        return await self._catalog.all_links()
