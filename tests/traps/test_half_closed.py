"""
The trap of half-closed sockets, and of peers whose host is gone: what looks alive and can
acknowledge nothing. See ``traps/test_scripts.py``.
"""

from __future__ import annotations

import socket

import pytest
from support.doors.trap_doors import HOUR_MS, Pair, doors
from support.inspect import transport_of
from support.waiting import eventually

from tidewarden.server.access import peer

__all__ = ["doors"]  # a fixture


async def test_trap_half_closed_socket_that_waits(doors: Pair) -> None:
    """
    beanstalkd learned to see a half-closed socket: one that only reads is handed a task that it can
    never acknowledge.
    """
    waiter, well = await doors[0].dial(), await doors[1].dial()
    waiter.send(f"Q.TAKE WAIT {HOUR_MS} FROM q")
    await eventually(lambda: doors[0].server.context.waiting == 1)
    waiter.writer.write_eof()
    assert await waiter.rest() == b""
    assert (doors[0].server.context.waiting, doors[0].queues.consumer.waiting()) == (0, 0)
    assert await well.call("Q.PUT", "q", "x", "ID", "a", "ATTEMPTS", 1) == b"a"
    ((_, _, _, _, attempt, _, _),) = await well.call("Q.TAKE", "FROM", "q")
    assert attempt == 1


async def test_trap_half_closed_socket_with_a_take_behind(doors: Pair) -> None:
    """The end comes before the waiting take has begun: nobody would see that one go."""
    waiter, well = await doors[0].dial(), await doors[1].dial()
    waiter.send(f"Q.PUT q x ID first DELAY {HOUR_MS}", f"Q.TAKE WAIT {HOUR_MS} FROM q", "PING")
    waiter.writer.write_eof()
    assert await waiter.rest() == b"$5\r\nfirst\r\n"
    await eventually(lambda: not doors[0].server.context.peers.connections)
    assert (doors[0].server.context.waiting, doors[0].queues.consumer.waiting()) == (0, 0)
    await well.call("Q.PUT", "q", "x", "ID", "a", "ATTEMPTS", 1)
    ((_, task_id, _, _, attempt, _, _),) = await well.call("Q.TAKE", "FROM", "q")
    assert (task_id, attempt) == (b"a", 1)
    shown = await doors[0].queues.admin.peek("q", "a")
    assert shown["losses"] == 0


async def test_trap_half_closed_socket_that_holds(doors: Pair) -> None:
    """It will never acknowledge: its task is somebody else's at once."""
    holder, waiter = await doors[0].dial(), await doors[1].dial()
    await holder.call("Q.PUT", "q", "x", "ID", "a")
    assert len(await holder.call("Q.TAKE", "LEASE", HOUR_MS, "FROM", "q")) == 1
    waiter.send(f"Q.TAKE WAIT {HOUR_MS} FROM q")
    await eventually(lambda: doors[1].server.context.waiting == 1)
    holder.writer.write_eof()
    ((_, task_id, *_),) = await waiter.reply()
    assert task_id == b"a"


async def test_trap_a_host_that_is_gone(doors: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A peer whose host lost its power says no goodbye: the kernel asks after it, so that its waiting
    take does not take.
    """
    await doors[0].dial()
    await eventually(lambda: doors[0].server.context.peers.connections)
    (connection,) = doors[0].server.context.peers.connections
    accepted = transport_of(connection).get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle, every, tries, unanswered_ms = (
        accepted.getsockopt(socket.IPPROTO_TCP, name)
        for name in (
            socket.TCP_KEEPIDLE,
            socket.TCP_KEEPINTVL,
            socket.TCP_KEEPCNT,
            socket.TCP_USER_TIMEOUT,
        )
    )
    assert (idle, every, tries) == (
        peer.KEEPALIVE_IDLE_S,
        peer.KEEPALIVE_EVERY_S,
        peer.KEEPALIVE_TRIES,
    )
    assert idle + every * tries <= 60
    assert unanswered_ms == 60_000, (
        "a task was on its way there: the kernel asks after nobody whom it still sends something"
    )
