"""
The test face of the product: the one place that names private attributes of it.

Tests look at what an object keeps for itself, and break what it stands on, by these functions
alone; ``tests/meta/test_private_names.py`` counts the exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

# Queues of a node
settings_of = attrgetter("_settings")  # by name, as the node knows them
topics_of = attrgetter("_topics")  # the queues of each topic, as the node knows them
background_tasks_of = attrgetter("_tasks")  # asyncio tasks of the queues' own
looks_of = attrgetter("_looks")  # looks for takes whose answer was lost

# What stands on the store
link_of = attrgetter("_link")
transport_of = attrgetter("_transport")
scripts_of = attrgetter("_scripts")
clock_of = attrgetter("_clock")


def shards_of(queues: Any, name: str) -> Sequence[Any]:
    """The shards of a queue that the node knows; none where it does not know the queue."""
    return queues._shards.get(name, ())


def parked_in(queues: Any, name: str, shard: int = 0) -> Any:
    """The takes that wait at a shard of a queue."""
    shards = shards_of(queues, name)
    return shards[shard].parked if shards else ()


async def run_session_script(queues: Any, verb: str, *args: Any) -> Any:
    """Run a script of shared sessions, as the node would; returns its reply."""
    return await queues._session_script(verb, *args)
