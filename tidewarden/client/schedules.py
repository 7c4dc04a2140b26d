"""The schedules of a cluster: what is put at each tick; and those that a worker declares."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from tidewarden.clock import sleep
from tidewarden.errors import BadArg, Denied, Error, Exists, NoAuth, WrongPass

from .connection import Arg
from .failover import only
from .options import TickOptions, checked, payload_of, put_words, words
from .replies import mapped

if TYPE_CHECKING:
    from .client import AsyncClient

log = logging.getLogger("tidewarden.worker")

Catchup = Literal["none", "one", "all"]
AGAIN_FIRST_S, AGAIN_LAST_S = 0.5, 10.0
HOPELESS = (NoAuth, WrongPass, Denied, BadArg, Exists)  # no pause makes these better


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

    async def get(self, name: str, *, count: int = 5) -> dict[str, Any]:
        """
        Return one schedule, by the names of S.GET.

        Among them are its ``last`` run and at most ``count`` ``next`` ticks (unix ms).

        Raises: NotFound.
        """
        command = ("S.GET", name, *words(count=count))
        found, _ = only(await self.client.line.run([command], again=True))
        return mapped(found)

    async def outlook(self, *, within_ms: int = 86_400_000) -> dict[str, Any]:
        """
        Return what the schedules will put within that time, by the names of S.NEXT.

        ``ticks`` are in their order; schedules that tick more often than each half hour are
        ``rates``. Where there is ``more``, it ends at ``until_ms``.
        """
        told = mapped(await self.client.execute("S.NEXT", *words(ms=within_ms), again=True))
        return told | {name: [mapped(one) for one in told[name]] for name in ("ticks", "rates")}

    async def delete(self, name: str) -> bool:
        """Delete a schedule, and return whether there was one; tasks that it has put stay."""
        return bool(await self.client.execute("S.DELETE", name, again=True))

    async def pause(self, name: str) -> None:
        """Pause a schedule: it puts nothing. Raises: NotFound."""
        await self.client.execute("S.PAUSE", name, again=True)

    async def resume(self, name: str) -> int:
        """Resume a schedule; return its next tick, unix ms. Raises: NotFound."""
        return int(await self.client.execute("S.RESUME", name, again=True))

    async def run(self, name: str, *, id: str | None = None) -> str:
        """
        Put the schedule's task now, once, and return its id; its ticks stay as they are.

        ``id``: of this run, at most 60 bytes: asked for again with it, there is no second task.
        Without one each call is a run of its own, also where a broken connection makes the client
        repeat it. Raises: NotFound; Full: the queue is at its capacity.
        """
        key = id or self.client.ids.make()
        return str(await self.client.execute("S.RUN", name, "ID", key, again=True))


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """
    Says what a schedule is to be.

    ``trigger`` and ``options`` are what :meth:`AsyncSchedules.put` takes by name.
    """

    name: str
    queue: str
    payload: bytes | str
    trigger: Mapping[str, Any]
    options: TickOptions


class DeclaredSchedules:
    """
    Keeps what a worker declares, and puts it.

    Every worker that declares a schedule puts the same one, so it does not matter how many start,
    in which order, or how often.
    """

    def __init__(self) -> None:
        self._declared: dict[str, DeclaredSchedule] = {}

    def add(self, declared: DeclaredSchedule) -> None:
        """Add one. Raises: BadArg: its name is declared already, or it has not one trigger."""
        if declared.name in self._declared:
            raise BadArg(f"the schedule {declared.name} is declared twice")
        if (declared.trigger["cron"] is None) == (declared.trigger["every_ms"] is None):
            raise BadArg(f"the schedule {declared.name} needs one of cron and every_ms")
        self._declared[declared.name] = declared

    async def declare(self, client: AsyncClient) -> None:
        """
        Put each schedule; those that cannot be put now are tried again until all are there.

        Raises: Error: the cluster refuses one for good. It names the schedule.
        """
        left, pause_s = list(self._declared.values()), AGAIN_FIRST_S
        said: set[str] = set()
        while left:
            one = left[0]
            try:
                next_ms = await self._put(client, one)
            except HOPELESS as error:
                raise type(error)(f"the schedule {one.name} cannot be put: {error}") from error
            except Error as error:
                if one.name not in said:
                    said.add(one.name)
                    log.warning(
                        "the schedule %s cannot be put: %s %s; it is tried again",
                        one.name,
                        error.code,
                        error,
                    )
                await sleep(client.clock, pause_s)
                pause_s = min(2 * pause_s, AGAIN_LAST_S)
                left.append(left.pop(0))  # one that finds no room holds up no other
                continue
            log.info("the schedule %s is there; its next tick is %d", one.name, next_ms)
            pause_s = AGAIN_FIRST_S
            del left[0]

    @staticmethod
    async def _put(client: AsyncClient, one: DeclaredSchedule) -> int:
        return await client.schedules.put(
            one.name, one.queue, one.payload, **one.trigger, **one.options
        )
