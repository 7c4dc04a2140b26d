"""
Gives jobs their numbers, by which alone most commands name them.

A job that was put here has the number ``count * TUBES + tube``: ``count`` grows by one with every
job put at any node, so that jobs of one priority stand in the order of their puts; ``tube`` is the
number of its tube, so that every node finds the job by its number. The id of its task is that
number, in :data:`DIGITS` digits, so that ids sort as numbers do. A task that was put elsewhere has
an id of its own; if it is reserved or peeked at it gets a number that this node alone knows, while
it is among the last :data:`FOREIGN_MAX`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from tidewarden.errors import Error, Full
from tidewarden.queue.catalog import Catalog

TUBES = 1 << 16
FOREIGN_TUBE = TUBES - 1
"""The tube's part in the numbers of jobs that were not put here."""
DIGITS = 19
NUMBER_MAX = 2**63 - 1
FOREIGN_MAX = 100_000
ASKED_MAX = 1000  # numbers in one call


class Job(NamedTuple):
    """Says where a job lies: the queue and the id of its task."""

    queue: str
    task_id: str


class JobNumbers:
    """Gives out numbers, and finds the jobs of numbers."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._tubes: dict[str, int] = {}  # by queue
        self._queues: dict[int, str] = {}
        self._known_by = catalog.reconnects
        self._foreign: OrderedDict[int, Job] = OrderedDict()
        self._numbers: dict[Job, int] = {}
        self._asking: list[tuple[str, asyncio.Future[int]]] = []
        self._asks: set[asyncio.Task[None]] = set()

    # --- of jobs that are put

    def next(self, queue: str) -> asyncio.Future[int]:
        """
        Draw a number for a job that is about to be put; those of one turn come in one call.

        Raises (in the future): Full: there are as many tubes as may be; StoreDown.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        self._asking.append((queue, future))
        if len(self._asking) == 1:
            self._loop.call_soon(self._ask)
        return future

    def _ask(self) -> None:
        asking, self._asking = self._asking, []
        for first in range(0, len(asking), ASKED_MAX):
            task = self._loop.create_task(self._give(asking[first : first + ASKED_MAX]))
            self._asks.add(task)
            task.add_done_callback(self._asks.discard)

    async def _give(self, asking: list[tuple[str, asyncio.Future[int]]]) -> None:
        try:
            last = await self._numbers_for([queue for queue, _ in asking])
        except Error as error:
            for _, future in asking:
                if not future.done():
                    future.set_exception(error)
            return
        for count, (queue, future) in enumerate(asking, last - len(asking) + 1):
            tube = self._tubes.get(queue)
            if future.done():
                continue
            if tube is None:
                future.set_exception(Full(f"{FOREIGN_TUBE} tubes have had jobs, which is most"))
            else:
                future.set_result(count * TUBES + tube)

    async def _numbers_for(self, queues: list[str]) -> int:
        """
        Draw so many numbers and return the last; their tubes are known then, if they have numbers.
        """
        while True:
            self._forget_old()
            new = list(dict.fromkeys(queue for queue in queues if queue not in self._tubes))
            last, *numbers = await self._catalog.run_on_names(
                "queue.job_numbers", len(queues), FOREIGN_TUBE, *new
            )
            if self._known_by == self._catalog.reconnects:
                break
        for queue, number in zip(new, numbers, strict=True):
            if number >= 0:
                self._know(queue, number)
        return int(last)

    def _know(self, queue: str, tube: int) -> None:
        self._tubes[queue], self._queues[tube] = tube, queue

    def _forget_old(self) -> None:
        """
        Forget numbers that another store may have given.

        A failover that lost a tube's number lets another tube have it.
        """
        if self._known_by != self._catalog.reconnects:
            self._known_by = self._catalog.reconnects
            self._tubes.clear()
            self._queues.clear()

    async def by_age(self, queues: Iterable[str]) -> list[str]:
        """
        Return the queues of tubes in the order in which they got their first jobs at this door.

        Those that have had none come last, by their names. Raises: StoreDown.
        """
        names, numbers = sorted(queues), list[int]()
        for first in range(0, len(names), ASKED_MAX):
            some = names[first : first + ASKED_MAX]
            numbers += await self._catalog.run_on_names("queue.tube_numbers", *some)
        places = [FOREIGN_TUBE if number < 0 else number for number in numbers]
        return [name for _, name in sorted(zip(places, names, strict=True))]

    # --- between numbers and tasks

    @staticmethod
    def id_of(number: int) -> str:
        """Return the task's id of a job that was put here under this number."""
        return f"{number:0{DIGITS}d}"

    async def find(self, number: int) -> Job | None:
        """Find where the job of a number lies; None: there is no such job. Raises: StoreDown."""
        tube = number % TUBES
        if tube == FOREIGN_TUBE:
            return self._foreign.get(number)
        if number > NUMBER_MAX:
            return None
        self._forget_old()
        queue = self._queues.get(tube)
        if queue is None:
            raw = await self._catalog.run_on_names("queue.tube_of_number", tube)
            if not raw:
                return None
            queue = raw.decode()
            self._know(queue, tube)
        return Job(queue, self.id_of(number))

    async def number_of(self, job: Job) -> int:
        """Return the number of a task, whichever door put it. Raises: StoreDown."""
        if len(job.task_id) == DIGITS and job.task_id.isascii() and job.task_id.isdigit():
            number = int(job.task_id)
            ours = number <= NUMBER_MAX and number % TUBES != FOREIGN_TUBE
            if ours and await self.find(number) == job:
                return number
        return self._foreign_number(job)

    def _foreign_number(self, job: Job) -> int:
        number = self._numbers.get(job)
        if number is None:
            # drawn at random: another node that is asked for it must not take it for its own
            number = secrets.randbits(47) * TUBES + FOREIGN_TUBE
            self._numbers[job], self._foreign[number] = number, job
            if len(self._foreign) > FOREIGN_MAX:
                _, oldest = self._foreign.popitem(last=False)
                del self._numbers[oldest]
        self._foreign.move_to_end(number)
        return number
