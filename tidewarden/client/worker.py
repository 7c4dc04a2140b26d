"""A worker: takes the tasks of several queues, runs a function for each, and settles them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import Any, TypeVar, Unpack

from tidewarden.clock import sleep
from tidewarden.errors import BadArg, Error, Full, NotFound, NotHeld, Unreachable
from tidewarden.tracing import handler_span

from .acks_with_takes import AcksWithTakes, Command
from .blocking import Client, Task
from .client import AsyncClient
from .handler import Backoff, Function, Handler
from .loop_thread import Bridge
from .options import TickOptions, encoded, payload_of, words
from .schedules import HOPELESS, Catchup, DeclaredSchedule, DeclaredSchedules
from .task import AsyncTask, reason_of
from .threads import Threads

log = logging.getLogger("tidewarden.worker")

F = TypeVar("F", bound=Function)
WAIT_S = 20.0
"""How long a take waits for a task at most."""
AGAIN_S = 10.0
"""How often a queue that was dropped is tried again."""
GRACE_S = 20.0  # Kubernetes kills after 30 s, systemd after 90
PROGRESS_S = 10.0
"""Between two lines about what was done."""
RELEASE_S = 5.0  # how long giving back may take at the end
BACKOFF_MS, BACKOFF_MS_MAX = 1_000, 300_000
ATTEMPTS = 25  # with the pauses of BACKOFF_MS about an hour and a half
TROUBLE_FIRST_S, TROUBLE_LAST_S = 0.5, 10.0
OF_SESSION = "the session "
"""What a refusal begins with where the session was ended: the next connection makes another."""


class QueueChoice:
    """
    Chooses the queues from which a worker takes next, so that a dropped one stops no other.

    A take from several queues is refused when one of them was dropped. Then each is tried alone,
    without waiting. One that is refused is left out, and tried again now and then: somebody may
    make it again.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = list(queues)
        self._alone: list[str] = []  # to be tried alone, the next one first
        self._again_at: dict[str, float] = {}  # those that were dropped (the clock's time)

    def next(self, now_s: float) -> tuple[list[str], float]:
        """
        Return the queues to take from, and for how many seconds to wait.

        There are none where all were dropped, and are not to be tried again before that time.
        """
        if not self._alone:
            self._alone = [queue for queue, at in self._again_at.items() if at <= now_s]
        if self._alone:
            return self._alone[:1], 0.0
        wait_s = min((at - now_s for at in self._again_at.values()), default=WAIT_S)
        return [queue for queue in self._queues if queue not in self._again_at], min(wait_s, WAIT_S)

    def taken(self, queues: Sequence[str]) -> None:
        """Note that a take from these queues was answered."""
        if self._alone:
            del self._alone[0]
            if self._again_at.pop(queues[0], None) is not None:
                log.info("the queue %s is there again", queues[0])
        self._queues.append(self._queues.pop(0))  # no queue starves another one

    def refused(self, queues: Sequence[str], error: NotFound, now_s: float) -> None:
        """Note that a take from these queues was refused, for one of them was dropped."""
        if len(queues) > 1:
            self._alone = list(queues)
            return
        queue = queues[0]
        self._alone = self._alone[1:]
        if queue not in self._again_at:
            log.warning(
                "nothing is taken from %s: %s %s; it is tried again every %g s",
                queue,
                error.code,
                error,
                AGAIN_S,
            )
        self._again_at[queue] = now_s + AGAIN_S


class BlockingSide(Client):
    """
    Serves handlers that run in threads, by the worker's client.

    Closing it closes nothing: it is the worker's.
    """

    def __init__(self, inner: AsyncClient, bridge: Bridge) -> None:
        self.inner, self.bridge = inner, bridge

    def close(self) -> None:
        """Do nothing: the worker closes its client."""


class Worker:
    """
    Runs handlers for the tasks of several queues.

    Args:
        urls: nodes, as for :class:`AsyncClient`.
        concurrency: tasks at a time, of all queues together.
        backoff_ms: the pause after a task's first failure where neither its handler nor its put
            names one, so that what fails at once does not run again and again; it doubles up to
            five minutes. 0: no pause.
        attempts: after so many a task that fails is buried, where neither its put nor its queue
            names a number. 0: never.
        grace_s: how long tasks under way may go on after SIGTERM or SIGINT; then they are released.
            A second signal ends this.
        name: shown in logs and in the node's CLIENT LIST.
        each_task: log each task that is done, at INFO, instead of how many every ten seconds; None:
            where standard error is a terminal.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        *,
        concurrency: int = 10,
        grace_s: float = GRACE_S,
        name: str = "",
        backoff_ms: int = BACKOFF_MS,
        attempts: int = ATTEMPTS,
        each_task: bool | None = None,
    ) -> None:
        if concurrency < 1:
            raise BadArg(f"concurrency is {concurrency}; allowed is 1 or more")
        if backoff_ms < 0:
            raise BadArg(f"backoff_ms is {backoff_ms}; allowed is 0 or more")
        if attempts < 0:
            raise BadArg(f"attempts is {attempts}; allowed is 0 or more")
        self.urls = urls
        self.attempts = attempts
        self.backoff_ms = backoff_ms
        self.concurrency = concurrency
        self.grace_s = grace_s
        self.name = name
        self.each_task = each_task
        self.handlers: dict[str, Handler] = {}
        self.schedules = DeclaredSchedules()
        self._client: AsyncClient | None = None
        self._running: dict[asyncio.Task[None], AsyncTask] = {}
        self._busy: set[asyncio.Task[None]] = set()  # of these, whose handler is not through
        self._acks: AcksWithTakes | None = None
        self._freed = asyncio.Event()
        self._signals = 0
        self._told = asyncio.Event()  # to stop
        self._hurried = asyncio.Event()  # to stop at once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tells_each = False
        self._done_lately = 0  # tasks that no line has counted
        self._progress: asyncio.TimerHandle | None = None  # when the next line may be

    @property
    def client(self) -> AsyncClient:
        """
        Return the client for handlers that run in the loop; the others have ``task.client``.

        Only while the worker runs.
        """
        if self._client is None:
            raise RuntimeError("the worker does not run")
        return self._client

    def task(
        self,
        queue: str,
        *,
        lease_ms: int | None = None,
        backoff: Backoff | None = None,
        bury_on: tuple[type[BaseException], ...] = (),
    ) -> Callable[[F], F]:
        """
        Register the decorated function for the tasks of ``queue``.

        An ``async def`` runs in the loop, a ``def`` in a thread.

        What it returns is the task's result (bytes, text, what JSON can say); an exception fails
        the task, or buries it; what it settles itself (``task.release()``) stays so. Args: see
        :class:`Handler`.

        Raises: BadArg: the queue has a handler already.
        """

        def add(function: F) -> F:
            if queue in self.handlers:
                raise BadArg(
                    f"the queue {queue} has a handler already: {self.handlers[queue].function}"
                )
            self.handlers[queue] = Handler(queue, function, lease_ms, backoff, bury_on)
            return function

        return add

    def schedule(
        self,
        name: str = "",
        *,
        cron: str | None = None,
        zone: str | None = None,
        every_ms: int | None = None,
        catchup: Catchup | None = None,
        queue: str = "",
        payload: bytes | str = b"",
        **options: Unpack[TickOptions],
    ) -> Callable[[F], F]:
        """
        Have the decorated function run at times: by ``cron``, in ``zone``, or each ``every_ms``.

        The worker puts the schedule as it starts, see :meth:`AsyncSchedules.put`, and its tasks run
        as those of :meth:`task` do, each once for all workers. Put again it stays as it is, and one
        that says something else replaces it. It stays when the worker ends, or is started without
        the decorator: delete it by its name.

        Args: ``name``: of the schedule, else the function's; ``queue``: where its tasks go, else
        the name. That may have a handler already if it is the same function.

        Raises: BadArg: neither or both of cron and every_ms; the name is declared twice; the queue
        has another handler.
        """

        def add(function: F) -> F:
            named = name or getattr(function, "__name__", "")
            into = queue or named
            trigger = {"cron": cron, "zone": zone, "every_ms": every_ms, "catchup": catchup}
            body = payload_of(payload)
            self.schedules.add(DeclaredSchedule(named, into, body, trigger, options))
            if into not in self.handlers or self.handlers[into].function is not function:
                self.task(into)(function)
            return function

        return add

    def run(self) -> int:
        """
        Work until SIGTERM or SIGINT and return the exit code: 0, or 1 when the cluster refuses us.
        For a program's main thread.
        """
        return asyncio.run(self.serve())

    def stop(self) -> None:
        """
        Take nothing more, finish within ``grace_s``, end; called again: release at once.

        From any thread.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        (self._hurried if self._told.is_set() else self._told).set()

    async def serve(self) -> int:
        """
        Work as :meth:`run` does, inside a loop that runs already.

        Raises: BadArg: there is no handler.
        """
        if not self.handlers:
            raise BadArg("the worker has no handler: decorate a function with @worker.task(queue)")
        self._tells_each = _is_watched() if self.each_task is None else self.each_task
        self._loop = asyncio.get_running_loop()
        self._told, self._hurried, self._freed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        threads = Threads(self.concurrency, "tidewarden worker")
        async with AsyncClient(self.urls, name=self.name) as client:
            self._client = client
            acks = self._acks = AcksWithTakes(client)
            log.info(
                "works on %s, %d at a time, at %r",
                ", ".join(self.handlers),
                self.concurrency,
                client,
            )
            with self._signal_handlers(self._loop):
                declaring = asyncio.ensure_future(self.schedules.declare(client))
                taking = asyncio.ensure_future(self._take(client, acks, threads))
                told = asyncio.ensure_future(self._told.wait())
                try:
                    await self._until_over(declaring, taking, told)
                finally:
                    for one in (declaring, taking, told):
                        one.cancel()
                    both = await asyncio.gather(declaring, taking, return_exceptions=True)
                    acks.send_alone()
                    await self._finish()
                    threads.stop()
                    self._client = None
                    self._say_progress()
                    self._rest()
        ended = next((error for error in both if isinstance(error, Exception)), None)
        if isinstance(ended, HOPELESS):
            log.error("the cluster refuses this worker: %s %s", ended.code, ended)
            return 1
        if ended is not None:
            raise ended
        log.info("stopped")
        return 0

    @staticmethod
    async def _until_over(
        declaring: asyncio.Future[None], taking: asyncio.Future[None], told: asyncio.Future[Any]
    ) -> None:
        """Return once one of them has failed, or the worker is told to stop."""
        await asyncio.wait((declaring, taking, told), return_when=asyncio.FIRST_COMPLETED)
        if declaring.done() and declaring.exception() is None:
            await asyncio.wait((taking, told), return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, client: AsyncClient, acks: AcksWithTakes, threads: Threads) -> None:
        choice = QueueChoice(self.handlers)
        blocking = BlockingSide(client, Bridge(asyncio.get_running_loop()))
        pause_s = TROUBLE_FIRST_S
        while True:
            free = self._free_slots()
            if free <= 0:
                self._freed.clear()
                with acks.gathering():
                    await self._freed.wait()
                if self._free_slots() <= 0:
                    acks.send_alone()
                continue
            queues, wait_s = choice.next(client.clock.monotonic())
            if not queues:
                await sleep(client.clock, wait_s)
                continue
            options, wait_ms = words(count=min(free, 1000)), round(wait_s * 1000)
            try:
                tasks = await client.take_words(
                    options, queues, wait_ms=wait_ms, lease_ms=None, first=acks.send_with
                )
            except HOPELESS:
                raise
            except Error as error:
                if isinstance(error, NotFound) and not str(error).startswith(OF_SESSION):
                    choice.refused(queues, error, client.clock.monotonic())
                    continue
                log.warning("no tasks can be had: %s %s; trying again", error.code, error)
                await sleep(client.clock, pause_s)
                pause_s = min(pause_s * 2, TROUBLE_LAST_S)
                continue
            pause_s = TROUBLE_FIRST_S
            choice.taken(queues)
            for task in tasks:
                job = asyncio.ensure_future(self._work(task, blocking, threads))
                self._running[job] = task
                self._busy.add(job)
                job.add_done_callback(self._worked)

    def _free_slots(self) -> int:
        """
        Return how many tasks may be taken.

        There may be as many as handlers, and as many again that wait for the answer to their ack.
        """
        return min(self.concurrency - len(self._busy), 2 * self.concurrency - len(self._running))

    async def _settle(self, job: asyncio.Task[None], command: Command) -> tuple[list[Any], bool]:
        """
        Settle the task of a job whose handler is through.

        What settles it goes out with the take for the slot that is free now.
        """
        assert self._acks is not None
        self._busy.discard(job)
        self._freed.set()
        return await self._acks.send(command)

    def _worked(self, job: asyncio.Task[None]) -> None:
        task = self._running.pop(job)
        self._busy.discard(job)
        self._freed.set()
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error("defect while task %s of %s was settled", task.id, task.queue, exc_info=error)

    async def _work(self, task: AsyncTask, blocking: Client, threads: Threads) -> None:
        handler = self.handlers[task.queue]
        job = asyncio.current_task()
        assert job is not None
        clock = task.client.clock
        began = clock.monotonic()
        log.debug("begins task %s of %s, attempt %d", task.id, task.queue, task.attempt)
        try:
            if handler.lease_ms is not None and handler.lease_ms != task.lease_ms:
                await task.touch(handler.lease_ms)
            if handler.is_async:
                task.on_lost = job.cancel  # its work would collide with somebody else's
            task.client.leases.keep(task)
            try:
                result = await self._call(handler, task, blocking, threads)
            finally:
                task.way = functools.partial(self._settle, job)
            took_s = clock.monotonic() - began
            if task.settled:
                self._tell(task, "settled by its function", took_s)
            else:
                await self._done(task, result)
                self._tell(task, "done", took_s)
        except asyncio.CancelledError:
            if not job.cancelling():
                await self._failed(
                    handler, task, RuntimeError("the handler was cancelled, and not by the worker")
                )
            elif job in self._busy:
                # else what settles it is on its way, and a release could overtake it
                await self._dropped(task)
        except (NotHeld, Unreachable) as error:
            log.warning(
                "task %s of %s is not ours any more, it will run again: %s",
                task.id,
                task.queue,
                error,
            )
        except Exception as error:
            await self._failed(handler, task, error)
        finally:
            task.client.leases.drop(task)

    async def _done(self, task: AsyncTask, result: bytes | None) -> None:
        """
        Acknowledge a task whose work is done.

        A full store that has no room for the result is no reason to do the work again.
        """
        try:
            await task.ack(result)
        except Full:
            log.warning(
                "the result of task %s of %s is dropped: the store is full", task.id, task.queue
            )
            await task.ack()
        self._done_lately += 1
        if self._progress is None and not self._tells_each:
            self._say_progress()

    def _tell(self, task: AsyncTask, what: str, took_s: float) -> None:
        """Say of one task what became of it, where somebody reads that."""
        if self._tells_each:
            again = f", attempt {task.attempt}" if task.attempt > 1 else ""
            log.info("task %s of %s %s in %.3f s%s", task.id, task.queue, what, took_s, again)

    def _say_progress(self) -> None:
        """Say what was done, if anything was, and not again for a while."""
        self._rest()
        if self._done_lately:
            log.info("tasks done: %d; under way: %d", self._done_lately, len(self._busy))
            self._done_lately = 0
            loop = asyncio.get_running_loop()
            self._progress = loop.call_later(PROGRESS_S, self._say_progress)

    def _rest(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None

    async def _call(
        self, handler: Handler, task: AsyncTask, blocking: Client, threads: Threads
    ) -> Any:
        """Return the function's result, as bytes or ``None``."""
        function: Callable[[Any], Any] = handler.function
        with handler_span(task.queue, task.id, task.attempt, task.traceparent):
            if handler.is_async:
                result = await function(task)
            else:  # in a thread, which sees the span as the current one, too
                call = functools.partial(function, Task(blocking, task))
                result = await threads.run(functools.partial(copy_context().run, call))
                if inspect.isawaitable(result):
                    result = await result
        return None if result is None else encoded(result)

    async def _failed(self, handler: Handler, task: AsyncTask, error: Exception) -> None:
        verdict, pause_ms = handler.verdict(error, task.attempt)
        named = await self._named(task) if verdict == "fail" else {}
        if 0 < self.attempts <= task.attempt and named.get("attempts_max") == 0:
            verdict = "bury"
        what = "buried" if verdict == "bury" else "failed"
        log.warning(
            "task %s of %s %s, attempt %d", task.id, task.queue, what, task.attempt, exc_info=error
        )
        if task.settled or task.lost:
            return
        try:
            if verdict == "bury":
                await task.bury(reason_of(error))
            else:
                if pause_ms is None and not named.get("backoff_ms"):
                    pause_ms = self._pause_ms(task.attempt)
                await task.fail(pause_ms, reason=reason_of(error))
        except (NotHeld, Unreachable) as second:
            log.warning("task %s of %s could not be given back: %s", task.id, task.queue, second)

    @staticmethod
    async def _named(task: AsyncTask) -> Mapping[str, Any]:
        """Return what a task's put or queue sets; nothing, where that cannot be read."""
        with contextlib.suppress(Error):  # whether the task is ours still the failing will tell
            return (await task.client.queue(task.queue).peek(task.id)).fields
        return {}

    def _pause_ms(self, attempt: int) -> int:
        """Return the usual pause after a failure."""
        return min(self.backoff_ms << min(attempt - 1, 20), BACKOFF_MS_MAX)

    async def _dropped(self, task: AsyncTask) -> None:
        """
        Release the task of a job that was cancelled, as the worker stops, unless the lease is lost.
        """
        if task.lost or task.settled:
            return
        log.info("releases task %s of %s", task.id, task.queue)
        with contextlib.suppress(NotHeld, Unreachable):
            await task.release()

    async def _finish(self) -> None:
        """Let what is under way finish, then release what is left."""
        if not self._running:
            return
        log.info("stops: %d under way have %g s", len(self._running), self.grace_s)
        hurried = asyncio.ensure_future(self._hurried.wait())
        finished = asyncio.ensure_future(asyncio.wait(list(self._running)))
        await asyncio.wait(
            (hurried, finished), timeout=self.grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        finished.cancel()
        left = list(self._running)
        for job in left:
            job.cancel()
        if left:
            await asyncio.wait(left, timeout=RELEASE_S)

    @contextlib.contextmanager
    def _signal_handlers(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        mine = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(
                ValueError, RuntimeError, NotImplementedError
            ):  # not the main thread: stop() it is
                loop.add_signal_handler(number, self._stop)
                mine.append(number)
        try:
            yield
        finally:
            for number in mine:
                loop.remove_signal_handler(number)


def _is_watched() -> bool:
    """Tell whether standard error, where logs usually go, is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
