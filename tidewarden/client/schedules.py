"""The schedules of a cluster: what is put at each tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from tidewarden.errors import BadArg

from .connection import Arg
from .failover import only
from .options import TickOptions, checked, payload_of, put_words, words
from .replies import mapped

if TYPE_CHECKING:
    from .client import AsyncClient

Catchup = Literal["none", "one", "all"]


class AsyncSchedules:
    """
    The schedules of a cluster, by name: docs/schedules.md.

    Every method may raise the errors of the protocol and Unreachable.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def put(
        self,
        name: str,
        queue: str,
        payload: bytes | str,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every_ms: int | None = None,
        at_ms: int | None = None,
        catchup: Catchup | None = None,
        **options: Unpack[TickOptions],
    ) -> int:
        """
        Put a schedule, in the place of one of that name; return its next tick, unix ms.

        It ticks by one of ``cron`` (five fields, in the time zone ``zone``, UTC by default),
        ``every_ms`` and ``at_ms`` (once). A program may put its schedules each time it starts: what
        is there already stays as it is.

        Args: ``catchup``: what becomes of ticks at which no node ran, ``one`` task for all by
        default. The others: see :class:`TickOptions`; ``delay_ms`` and ``within_ms`` count from the
        tick. Raises: BadArg; Exists: the name belongs to another queue.
        """
        triggers = {"CRON": cron, "EVERY": every_ms, "AT": at_ms}
        given = [(word, value) for word, value in triggers.items() if value is not None]
        if len(given) != 1:
            raise BadArg("a schedule ticks by one of cron, every_ms and at_ms")
        ((word, value),) = given
        command: tuple[Arg, ...] = (
            "S.PUT",
            name,
            word,
            checked(word, value),
            *words(tz=zone, catchup=catchup),
            queue,
            payload_of(payload),
            *put_words(options),
        )
        return int(await self.client.execute(*command, again=True))

    async def list(self) -> list[dict[str, Any]]:
        """Return every schedule, by the names of S.LIST."""
        found, _ = only(await self.client.line.run([("S.LIST",)], again=True))
        return [mapped(row) for row in found]

    async def delete(self, name: str) -> bool:
        """Delete a schedule, and return whether there was one; tasks that it has put stay."""
        return bool(await self.client.execute("S.DELETE", name, again=True))

    async def pause(self, name: str) -> None:
        """Pause a schedule: it puts nothing. Raises: NotFound."""
        await self.client.execute("S.PAUSE", name, again=True)

    async def resume(self, name: str) -> int:
        """Resume a schedule; return its next tick, unix ms. Raises: NotFound."""
        return int(await self.client.execute("S.RESUME", name, again=True))

    async def run(self, name: str) -> str:
        """
        Put the schedule's task now, once, and return its id; its ticks stay as they are.

        Not repeated after a broken connection. Raises: NotFound.
        """
        return str(await self.client.execute("S.RUN", name))
