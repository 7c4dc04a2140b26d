"""
Connections that drive a queue server.

A peer's file says how it puts, takes and acknowledges, a role which request follows which.

A connection has one request under way. ``joined(role, peer)`` makes the class that plays a role at
a peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.targets import Target, cpu_s

PAYLOAD = b"x" * 100
CONNECTIONS = 50
WARM_S = 0.25
END_S = 20.0


class Broken(Exception):
    """A server answered what it should not have, or hung up."""


@dataclass
class Board:
    """What the connections of one round have in common."""

    payload: bytes = PAYLOAD
    rounds: int = 0
    rounds_max: int = 0
    """0: no limit; the round ends when it is told to."""
    open: int = 0
    all: list[Connection] = field(default_factory=list)
    stopping: bool = False
    problem: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(asyncio.Protocol):
    """A peer's subclass has ``put take ack data_received``, a role's the rest."""

    ends_by_itself = True
    """Whether a round of this role always comes to its end; a consumer's may wait for ever."""
    transport: asyncio.Transport

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        self.board = board
        self.auth = auth

    # --- what a peer says

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        """Send a put; of the board's payload when none is given. ``was_put`` follows."""
        raise NotImplementedError

    def put_due(self, payload: bytes, delay_ms: int) -> float:
        """
        Send a put of a delayed task.

        The answer is when it is due, in unix seconds, at the latest, because the delay counts from
        the arrival.
        """
        due_s = time.time() + delay_ms / 1000
        self.put(payload, delay_ms)
        return due_s

    def take(self) -> None:
        """Ask for a task and wait for it; ``was_taken`` follows."""
        raise NotImplementedError

    def ack(self, task: Any) -> None:
        """The task is done; ``was_acked`` follows."""
        raise NotImplementedError

    # --- what a role says

    def begin(self) -> None:
        """The connection may send its first request."""

    def was_put(self) -> None:
        """The server has the task."""

    def was_taken(self, task: Any, payload: bytes) -> None:
        """A task came: what ``ack`` wants to know of it, and its payload."""

    def was_acked(self) -> None:
        """The task is gone."""

    # --- what is the same for all

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.board.open += 1
        self.board.all.append(self)
        self.opened()

    def opened(self) -> None:
        """A peer that greets, or wants to know who comes, begins later."""
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        board = self.board
        if not board.stopping:
            board.problem = board.problem or f"a connection was lost: {exc}"
            board.reached.set()
        board.open -= 1
        if board.open == 0:
            board.closed.set()

    def went_round(self) -> None:
        board = self.board
        board.rounds += 1
        if board.rounds == board.rounds_max:
            board.reached.set()
        if board.stopping or (board.rounds_max and board.rounds >= board.rounds_max):
            self.finish()
        else:
            self.begin()

    def finish(self) -> None:
        """No further request. Short of the round's end the connection stays, silent."""
        if self.board.stopping:
            self.transport.close()

    def fail(self, found: object) -> None:
        self.board.problem = self.board.problem or f"unexpected answer {found!r}"
        self.board.reached.set()
        self.transport.close()


class Cycle(Connection):
    """put → take → ack, each after the answer to the one before."""

    def begin(self) -> None:
        self.put()

    def was_put(self) -> None:
        self.take()

    def was_taken(self, task: Any, payload: bytes) -> None:
        self.ack(task)

    def was_acked(self) -> None:
        self.went_round()


class Fill(Connection):
    """A producer that only puts."""

    def begin(self) -> None:
        self.put()

    def was_put(self) -> None:
        self.went_round()


class Drain(Connection):
    """take → ack."""

    ends_by_itself = False

    def begin(self) -> None:
        self.take()

    def was_taken(self, task: Any, payload: bytes) -> None:
        self.ack(task)

    def was_acked(self) -> None:
        self.went_round()


@functools.cache
def joined(role: type[Connection], peer: type[Connection]) -> type[Connection]:
    """The class that plays ``role`` at ``peer``."""
    return type(role.__name__ + peer.__name__, (role, peer), {})


@dataclass
class Round:
    """One round's figures: rounds a second, and processor µs each by part."""

    rate: float
    count: int
    cpu_us: dict[str, float]


async def connect(target: Target, role: type[Connection], board: Board) -> Connection:
    """One connection that plays ``role``; it begins at once."""
    made = joined(role, target.connection)
    _, protocol = await asyncio.get_running_loop().create_connection(
        lambda: made(board, target.auth), target.host, target.port
    )
    return protocol


@contextlib.asynccontextmanager
async def connected(
    target: Target, role: type[Connection], board: Board, count: int = 1
) -> AsyncIterator[list[Connection]]:
    """
    Open ``count`` connections that play ``role``.

    At the block's end they finish their round and are closed.

    Raises: Broken: what a connection met.
    """
    try:
        for _ in range(count):
            await connect(target, role, board)
        yield board.all
    finally:
        board.stopping = True
        if role.ends_by_itself and not board.problem:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await board.closed.wait()
        for connection in board.all:
            connection.transport.close()
        if board.open:
            async with asyncio.timeout(END_S):
                await board.closed.wait()
    if board.problem:
        raise Broken(f"{target.name}: {board.problem}")


async def rate_of(
    target: Target,
    role: type[Connection],
    connections: int,
    seconds: float,
    *,
    rounds_max: int = 0,
    warm_s: float = WARM_S,
) -> Round:
    """
    Play ``role`` on that many connections for ``seconds``, or until ``rounds_max`` rounds.

    Returns the figures of that time.

    Raises: Broken.
    """
    board = Board(rounds_max=rounds_max)

    def now() -> tuple[float, int, dict[str, float]]:
        used = {part: cpu_s(pid) for part, pid in target.pids.items()} | {
            "client": time.process_time()
        }
        return time.perf_counter(), board.rounds, used

    began, before, used_before = now()
    async with connected(target, role, board, connections):
        if warm_s:
            await asyncio.sleep(warm_s)
            began, before, used_before = now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await board.reached.wait()
        ended, after, used_after = now()
    count = max(1, after - before)
    cpu_us = {part: (used_after[part] - used_before[part]) / count * 1e6 for part in used_after}
    return Round((after - before) / (ended - began), after - before, cpu_us)
