"""The verbs on many tasks at once, in bounded pieces: purge, release all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .catalog import Catalog
from .sessions.sessions import hex_of
from .shards.shard import Shard
from .task import STATES, check_name, check_state

PIECE = 500  # tasks that one script removes or releases
# Against the way that tasks take, so that none slips past; those of lanes before what would bring
# them up.
PURGE_ORDER = ("buried", "waiting", "leased", "ready", "delayed")


class Bulk:
    """
    Removes or releases all tasks of a queue.

    What was there when a verb began is dealt with; what comes meanwhile may be.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def purge(self, queue: str, state: str = "") -> int:
        """
        Remove every task in that state, or in any, the leased ones too; how many. Raises: BadArg.
        """
        if state:
            check_state(state)
        shards = await self._catalog.open(check_name(queue))
        return await self.purge_shards(shards, (state,) if state else STATES)

    async def purge_shards(
        self, shards: Sequence[Shard], states: Sequence[str], *, final: bool = False
    ) -> int:
        """
        Remove the tasks of these states from shards; returns how many.

        ``final``: see :meth:`Shard.run`.
        """
        total = 0
        for name in (name for name in PURGE_ORDER if name in states):
            pieces = (
                self._pieces(shard, name, "queue.purge", (name,), final=final) for shard in shards
            )
            total += sum(await asyncio.gather(*pieces))
        return total

    async def release_all(self, queue: str, *, holder: str = "", session: str = "") -> int:
        """
        End every lease as a release, whoever holds it, and return how many.

        ``holder``: those alone that this ``node.boot`` took for connections without a session;
        ``session``: those of the session alone. Raises: BadArg.
        """
        uuid = hex_of(session) if session else ""
        shards = await self._catalog.open(check_name(queue))
        if uuid:
            pieces = [self._of_session(shard, uuid) for shard in shards]
        else:
            args = (holder,) if holder else ()
            pieces = [
                self._pieces(shard, "leased", "queue.release_all", (), behind=args)
                for shard in shards
            ]
        return sum(await asyncio.gather(*pieces))

    async def _of_session(self, shard: Shard, uuid: str) -> int:
        total, more = 0, 1
        while more:
            ended, more = await shard.run("queue.session_release", (uuid, PIECE, "release"))
            total += ended
        return total

    async def _pieces(
        self,
        shard: Shard,
        state: str,
        name: str,
        args: tuple[str, ...],
        *,
        behind: tuple[str, ...] = (),
        final: bool = False,
    ) -> int:
        """
        Run a script until it has dealt with as many tasks as are in ``state`` now, or finds none.
        """
        row = await shard.run("queue.stats", (), final=final)
        left = int(row[11 if state == "waiting" else STATES.index(state)])
        total = 0
        while left > 0:
            done = int(await shard.run(name, (*args, min(left, PIECE), *behind), final=final))
            if done == 0:
                break
            total += done
            left -= done
        return total
