"""A queue of a cluster: the verbs of the protocol as methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tidewarden.errors import Error, NotFound
from tidewarden.tracing import put_span

from .connection import Arg
from .failover import only
from .options import (
    TRACE,
    NewTask,
    Place,
    PutOptions,
    State,
    as_json,
    checked,
    encoded,
    payload_of,
    put_words,
    words,
)
from .replies import Ending, Page, TaskInfo, mapped, task_info
from .task import AsyncTask

if TYPE_CHECKING:
    from .client import AsyncClient

BATCH = 500  # requests, or tasks of one request, that go out at a time
BATCH_BYTES = 4 << 20
FOREVER_MS = 20_000  # one turn of a wait without an end


def pieces(commands: list[tuple[Arg, ...]]) -> Iterator[list[tuple[Arg, ...]]]:
    """Split puts into pieces of at most 500 and a few MiB, so that each is answered soon."""
    start = size = 0
    for place, command in enumerate(commands):
        length = len(command[2])  # type: ignore[arg-type]  # a payload
        if place - start == BATCH or (size + length > BATCH_BYTES and place > start):
            yield commands[start:place]
            start, size = place, 0
        size += length
    if start < len(commands):
        yield commands[start:]


def some(count: int | None) -> tuple[Arg, ...]:
    """Encode a count; ``None`` is all."""
    return ("ALL",) if count is None else ("COUNT", checked("count", count))


class BatchError(Error):
    """
    Some of a batch were refused; the others are done.

    ``answers``: for each task in its order its id, or the Error. ``str()`` is the first error's.
    """

    def __init__(self, answers: Sequence[str | Error]) -> None:
        errors = [answer for answer in answers if isinstance(answer, Error)]
        super().__init__(
            f"{len(errors)} of {len(answers)} were refused; the first: {errors[0].code} {errors[0]}"
        )
        self.answers = list(answers)


class AsyncQueue:
    """
    A queue of a cluster.

    Every method may raise the errors of the protocol: BadArg, Denied, StoreDown, and Unreachable.

    Times are integer milliseconds. What may be repeated after a broken connection is repeated; a
    put is, for it carries an id.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # Putting.

    async def put(
        self,
        payload: bytes | str,
        *,
        id: str | None = None,
        wait_ms: int = 0,
        **options: Unpack[PutOptions],
    ) -> str:
        """
        Put a task and return its id.

        A put of an id that is there, or was done in the last minute, changes nothing and answers
        the same.

        Args: ``wait_ms``: for room, when the queue is at its capacity. The others: see
        :class:`PutOptions`. Raises: Exists, NotHeld (by ``if_exists``), Full, TooBig, Unreachable.
        """
        again = options.get("if_exists", "keep") == "keep"
        command: tuple[Arg, ...] = (
            "Q.PUT",
            self.name,
            payload_of(payload),
            "ID",
            id or self.client.ids.make(),
            *put_words(options),
        )
        if wait_ms:
            command = (*command, "WAIT", checked("wait_ms", wait_ms))
        with put_span(self.name) as trace:
            if trace:
                command = (*command, TRACE, trace)
            answer, _ = only(await self.client.wait([command], wait_ms, again=again))
        task_id: str = answer.decode()
        return task_id

    async def put_json(
        self,
        value: Any,
        *,
        id: str | None = None,
        wait_ms: int = 0,
        **options: Unpack[PutOptions],
    ) -> str:
        """Put ``value`` as JSON, otherwise as :meth:`put`."""
        return await self.put(as_json(value), id=id, wait_ms=wait_ms, **options)

    async def put_many(
        self, tasks: Iterable[bytes | str | NewTask], **options: Unpack[PutOptions]
    ) -> list[str]:
        """
        Put many tasks in few pieces and return their ids in order.

        Each stands for itself: this is no transaction.

        Args: ``tasks``: payloads, or :class:`NewTask` for those with an id or options of their own;
        ``options``: of all. Raises: BatchError: some were refused; Unreachable: what was sent so
        far may or may not have happened.
        """
        name, make = self.name, self.client.ids.make
        fixed = put_words(options)
        again = options.get("if_exists", "keep") == "keep"
        commands: list[tuple[Arg, ...]] = []
        for task in tasks:
            if isinstance(task, NewTask):
                own = fixed if task.options is None else put_words({**options, **task.options})
                again = again and (task.options or {}).get("if_exists", "keep") == "keep"
                commands.append(
                    ("Q.PUT", name, payload_of(task.payload), "ID", task.id or make(), *own)
                )
            else:
                commands.append(("Q.PUT", name, payload_of(task), "ID", make(), *fixed))
        answers: list[Any] = []
        with put_span(name, len(commands)) as trace:
            if trace:
                commands = [(*command, TRACE, trace) for command in commands]
            for piece in pieces(commands):
                answers += (await self.client.line.run(piece, again=again))[0]
        ids: list[str] = [answer.decode() for answer in answers if not isinstance(answer, Error)]
        if len(ids) < len(answers):
            raise BatchError(
                [answer if isinstance(answer, Error) else answer.decode() for answer in answers]
            )
        return ids

    # Taking.

    async def take(
        self,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        id: str | None = None,
    ) -> AsyncTask | None:
        """
        Take a task, waiting at most ``wait_ms`` for one; ``None`` when none came.

        ``id``: this one alone.

        ``lease_ms``: how long it is ours, else the put's or the queue's; a block (``async with
        task:``) renews it.
        """
        tasks = await self.client.take_words(
            words(lease=lease_ms, id=id), (self.name,), wait_ms=wait_ms, lease_ms=lease_ms
        )
        return tasks[0] if tasks else None

    async def take_many(
        self, count: int, *, wait_ms: int = 0, lease_ms: int | None = None
    ) -> list[AsyncTask]:
        """Take at most ``count`` tasks (1,000), as many as are there once there is one."""
        return await self.client.take(self.name, count=count, wait_ms=wait_ms, lease_ms=lease_ms)

    async def tasks(self, *, lease_ms: int | None = None) -> AsyncIterator[AsyncTask]:
        """
        Yield tasks one after another, without an end.

        Use it as ``async for task in queue.tasks(): async with task: …``.
        """
        while True:
            task = await self.take(wait_ms=FOREVER_MS, lease_ms=lease_ms)
            if task is not None:
                yield task

    async def ack_many(self, tasks: Iterable[AsyncTask | tuple[str, int]]) -> list[bool]:
        """
        Acknowledge many tasks (or ``(id, lease)`` pairs) of this queue in few pieces.

        Returns: for each whether it was ours; another client has one that was not.
        """
        given = list(tasks)
        answers: list[bool] = []
        for start in range(0, len(given), BATCH):
            piece = given[start : start + BATCH]
            pairs = [
                item
                for task in piece
                for item in ((task.id, task.lease) if isinstance(task, AsyncTask) else task)
            ]
            answer, _ = only(await self._run("Q.ACK", self.name, *pairs))
            answers += [True] if isinstance(answer, bytes) else map(bool, answer)
        for task, done in zip(given, answers, strict=True):
            if isinstance(task, AsyncTask):
                self.client.leases.drop(task)
                task.settled = done or task.settled
        return answers

    # By id and lease, for those who have no task in hand.

    async def ack(self, id: str, lease: int, result: Any = None) -> None:
        """Acknowledge as :meth:`AsyncTask.ack` does. Raises: NotHeld."""
        only(
            await self._run(
                "Q.ACK",
                self.name,
                id,
                lease,
                *words(result=None if result is None else encoded(result)),
            )
        )

    async def release(
        self, id: str, lease: int, delay_ms: int | None = None, reason: str | None = None
    ) -> None:
        """Release as :meth:`AsyncTask.release` does. Raises: NotHeld."""
        only(
            await self._run(
                "Q.RELEASE", self.name, id, lease, *words(delay=delay_ms, reason=reason)
            )
        )

    async def fail(
        self, id: str, lease: int, delay_ms: int | None = None, reason: str | None = None
    ) -> None:
        """Fail as :meth:`AsyncTask.fail` does. Raises: NotHeld."""
        only(await self._run("Q.FAIL", self.name, id, lease, *words(delay=delay_ms, reason=reason)))

    async def bury(self, id: str, lease: int, reason: str | None = None) -> None:
        """Bury as :meth:`AsyncTask.bury` does. Raises: NotHeld."""
        only(await self._run("Q.BURY", self.name, id, lease, *words(reason=reason)))

    async def touch(self, id: str, lease: int, lease_ms: int | None = None) -> int:
        """Extend the lease from now and return its new end, unix ms. Raises: NotHeld."""
        return int(
            only(await self._run("Q.TOUCH", self.name, id, lease, *words(lease=lease_ms)))[0]
        )

    # Looking, and steering.

    async def peek(self, id: str) -> TaskInfo:
        """Return the task without taking it. Raises: NotFound."""
        answer, _ = only(await self._run("Q.PEEK", self.name, id))
        if not answer:
            raise NotFound(f"there is no task {id} in {self.name}")
        return task_info(answer)

    async def page(
        self,
        state: State,
        *,
        count: int = 100,
        after: str = "",
        match: str | None = None,
        match_in: Place | None = None,
        where: str | None = None,
    ) -> Page:
        """
        Return at most ``count`` tasks in this state.

        ``after=page.cursor`` continues until the cursor is empty. ``match``: only those whose
        payload, or what ``match_in`` names, fits a glob (``*`` stands for anything); ``where``:
        only those with a value in their JSON (``$.user.id=42``). Then it looks at a thousand tasks
        at most, and may find none before the end.
        """
        options = words(count=count, after=after or None, match=match, where=where)
        place = words(**{"in": match_in})
        (rows, cursor, *told), _ = only(
            await self._run("Q.PEEK", self.name, "STATE", state, *options, *place)
        )
        looked = mapped(told[0]) if told else {}
        tasks = [task_info(row) for row in rows]
        return Page(tasks, cursor.decode(), looked.get("looked", 0), looked.get("unread", 0))

    async def search(
        self,
        state: State,
        *,
        match: str | None = None,
        match_in: Place | None = None,
        where: str | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """Yield all tasks in this state that fit, as :meth:`page` finds them."""
        cursor: str | None = None
        while cursor != "":
            page = await self.page(
                state, after=cursor or "", match=match, match_in=match_in, where=where
            )
            for task in page.tasks:
                yield task
            cursor = page.cursor

    async def reasons(self) -> dict[str, Any]:
        """
        Return why tasks were buried: ``reasons``, the most frequent first, by names of Q.REASONS.
        """
        return mapped(only(await self._run("Q.REASONS", self.name))[0])

    async def wait(self, id: str, *, timeout_ms: int | None = None) -> Ending:
        """
        Wait for a task's end and return its result.

        It waits at most ``timeout_ms`` (``None``: without an end).

        A task that ended within the queue's ``dedup_ms`` (a minute) answers at once; ``unknown``:
        there is none.
        """
        clock = self.client.clock
        until = None if timeout_ms is None else clock.monotonic() + timeout_ms / 1000
        while True:
            left_ms = (
                FOREVER_MS if until is None else max(0, int((until - clock.monotonic()) * 1000))
            )
            turn_ms = min(left_ms, FOREVER_MS)
            (word, result), _ = only(
                await self.client.wait([("Q.WAIT", self.name, id, turn_ms)], turn_ms)
            )
            if word != b"timeout" or (until is not None and left_ms <= turn_ms):
                return Ending(word.decode(), result or b"")

    async def kick(
        self,
        count: int | None = 1,
        *,
        reason: str | None = None,
        reason_is: str | None = None,
        age_ms: int | None = None,
        id: str | None = None,
    ) -> int:
        """
        Make buried tasks ready and return how many.

        It takes at most ``count`` (``None``: all) of those whose reason begins with ``reason``, or
        is ``reason_is``, and that were buried ``age_ms`` ago or earlier, or the one of ``id``. Not
        repeated after a broken connection, unless it is by ``id``.
        """
        options = (
            words(id=id)
            if id is not None
            else (*some(count), *words(reason=reason, reasonis=reason_is, age=age_ms))
        )
        return int(only(await self._run("Q.KICK", self.name, *options, again=id is not None))[0])

    async def put_again(
        self, id: str, payload: bytes | str, *, buried_ms: int | None = None
    ) -> bool:
        """
        Make a buried task ready with another payload, in one step.

        ``buried_ms``: only if it has been buried since then, as :meth:`peek` said. Returns:
        ``False``: it has this payload and is not buried any more, as when the request came twice.
        Raises: NotFound: it was done or deleted; NotHeld: somebody else has kicked it, and it may
        be leased; TooBig; Full.
        """
        options = words(id=id, payload=payload_of(payload), buried=buried_ms)
        return bool(only(await self._run("Q.KICK", self.name, *options))[0])

    async def update(
        self,
        id: str,
        *,
        payload: bytes | str | None = None,
        delay_ms: int | None = None,
        at_ms: int | None = None,
        deadline_ms: int | None = None,
        within_ms: int | None = None,
        priority: int | None = None,
        lease: int | None = None,
    ) -> None:
        """
        Change a task where it lies; a leased one needs its lease number. Raises: NotFound, NotHeld.
        """
        changes = words(
            payload=payload,
            delay=delay_ms,
            at=at_ms,
            deadline=deadline_ms,
            within=within_ms,
            priority=priority,
            lease=lease,
        )
        only(await self._run("Q.UPDATE", self.name, id, *changes))

    async def delete(self, id: str, *, lease: int | None = None, force: bool = False) -> bool:
        """
        Remove a task and return whether there was one.

        A leased one needs its lease number or ``force``, else NotHeld.

        When a connection broke in between it is asked again, and ``False`` may mean that the first
        time did it.
        """
        options = (*words(lease=lease), *(("FORCE",) if force else ()))
        return bool(only(await self._run("Q.DELETE", self.name, id, *options))[0])

    async def stats(self, *, by_shard: bool = False) -> dict[str, Any]:
        """
        Return the tasks by state and the counters, by the names of Q.STATS.

        Raises: NotFound: nobody has used this queue yet.
        """
        return mapped(
            only(await self._run("Q.STATS", self.name, *(("SHARDS",) if by_shard else ())))[0]
        )

    async def pause(self, ms: int | None = None) -> None:
        """Pause takes for ``ms`` or until :meth:`resume`; puts and acks go on."""
        only(await self._run("Q.PAUSE", self.name, *words(ms=ms)))

    async def resume(self) -> None:
        """End a pause."""
        only(await self._run("Q.RESUME", self.name))

    async def settings(self) -> dict[str, Any]:
        """Return the queue's settings by name."""
        return mapped(only(await self._run("Q.CONFIG", self.name))[0])

    async def configure(self, /, **settings: str | int) -> None:
        """Change settings, all or none: ``configure(lease_ms=60_000, capacity=100_000)``."""
        pairs = [item for name, value in settings.items() for item in (name, checked(name, value))]
        only(await self._run("Q.CONFIG", self.name, "SET", *pairs))

    async def purge(
        self,
        state: State | None = None,
        *,
        count: int | None = None,
        reason: str | None = None,
        reason_is: str | None = None,
        age_ms: int | None = None,
    ) -> int:
        """
        Remove every task, or those in one state, and return how many.

        Of buried tasks some may be chosen as by :meth:`kick`. With ``count`` it is not repeated
        after a broken connection.
        """
        options = words(state=state, count=count, reason=reason, reasonis=reason_is, age=age_ms)
        return int(only(await self._run("Q.PURGE", self.name, *options, again=count is None))[0])

    async def drop(self, *, force: bool = False) -> int:
        """
        Drop the queue and return how many tasks went with it; ``force``: it need not be empty.

        Not repeated after a broken connection. Raises: NotFound: there is no such queue, or it was
        dropped already; BadArg: it holds tasks, is linked to a topic, or has schedules.
        """
        options = ("FORCE",) if force else ()
        return int(only(await self._run("Q.DROP", self.name, *options, again=False))[0])

    async def release_all(self, *, holder: str | None = None, session: str | None = None) -> int:
        """
        Release every leased task, whichever client holds it, and return how many.

        ``holder`` or ``session``: those alone that this one has, as :meth:`holders` names them.
        """
        whose = words(holder=holder, session=session)
        return int(only(await self._run("Q.RELEASEALL", self.name, *whose))[0])

    async def holders(
        self, *, id: str | None = None, count: int | None = None, after: str | None = None
    ) -> dict[str, Any]:
        """
        Return who holds which tasks, by the names of Q.HOLDERS: ``holders``, ``after`` and more.

        ``id``: of this task alone; ``after``: where the page before ended. ``unreachable`` names
        the nodes that did not say who holds what was taken there.
        """
        options = words(id=id, count=count, after=after)
        return mapped(only(await self._run("Q.HOLDERS", self.name, *options))[0])

    async def move(
        self,
        count: int | None,
        to: str,
        *,
        reason: str | None = None,
        reason_is: str | None = None,
        age_ms: int | None = None,
    ) -> int:
        """
        Move buried tasks to another queue, chosen as by :meth:`kick`, and return how many.

        Not repeated after a broken connection, but the same call again finishes what one began.
        """
        chosen = words(reason=reason, reasonis=reason_is, age=age_ms)
        options = (*some(count), "TO", to, *chosen)
        return int(only(await self._run("Q.MOVE", self.name, *options, again=False))[0])

    async def check(self, *, repair: bool = False) -> dict[str, Any]:
        """Return tasks and index entries that do not belong together, by the names of Q.CHECK."""
        return mapped(
            only(await self._run("Q.CHECK", self.name, *(("REPAIR",) if repair else ())))[0]
        )

    async def _run(self, *command: Arg, again: bool = True) -> tuple[list[Any], bool]:
        return await self.client.line.run([command], again=again)
