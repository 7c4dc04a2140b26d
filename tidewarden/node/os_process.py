"""Sets limits, signals and memory of the daemon's own process, and talks to systemd."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple

from tidewarden.clock import sleep

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Mapping

    from tidewarden.clock import Clock
    from tidewarden.config.load import Limits

log = logging.getLogger("tidewarden.daemon")

END_S = 25.0
"""Longest end of a process that was told to stop; systemd and the like kill after 30."""
FILES_WANTED = 65_536
WATCHDOG_SHARE = 4  # of the time that a supervisor waits: one message that is late does no harm
PR_SET_DUMPABLE = 4
# for everything but the doors' connections: the store's, the nodes', logs and journals
FILES_BESIDE = 512


def calm_collector() -> None:
    """
    Make the cycle collector run rarely.

    Reference counts free what requests allocate, which is a lot.

    With Python's defaults it took a seventh of the processor time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class ConnectionBudget(NamedTuple):
    """Says how many connections each port has files for."""

    resp: int
    http: int


def raise_file_limit(limits: Limits) -> ConnectionBudget:
    """
    Let this process open as many files as it needs, or as the host allows: each connection is one.

    Returns: how many connections it has files for, at most what ``limits`` says, with both doors
    full: half of too few are for RESP, and of the rest half for all that is no connection at a
    door.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    beside = FILES_BESIDE + limits.http_connections_max
    wanted = max(FILES_WANTED, limits.connections_max + beside)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    resp = min(max(wanted - beside, wanted // 2), limits.connections_max)
    rest = wanted - resp
    http = min(rest - min(FILES_BESIDE, rest // 2), limits.http_connections_max)
    few = [
        f"{many} connections instead of limits.{name} ({getattr(limits, name)})"
        for name, many in (("connections_max", resp), ("http_connections_max", http))
        if many < getattr(limits, name)
    ]
    if few:
        log.warning("the host allows %d open files: at most %s", wanted, ", and ".join(few))
    return ConnectionBudget(resp, http)


def tell_supervisor(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """
    Report our state to systemd (``Type=notify``): ``READY=1``, ``STOPPING=1``.

    Nothing, when nobody has asked to be told.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.sendto(state.encode(), path)
    except OSError as error:
        log.warning("the supervisor could not be told %s: %s", state, error)


async def tell_watchdog(
    clock: Clock, dead: Callable[[], str], environ: Mapping[str, str] = os.environ
) -> None:
    """
    Ping systemd's watchdog (``WatchdogSec=``) as long as ``dead()`` gives no reason to stop.

    It never returns, also where no watchdog is set.
    """
    within_s, said = _watchdog_s(environ), ""
    while within_s:
        if not (why := dead()):
            tell_supervisor("WATCHDOG=1", environ)
        elif why != said:
            log.critical(
                "the supervisor is not told any more that this process lives, and will end it: %s",
                why,
            )
        said = why
        await sleep(clock, within_s / WATCHDOG_SHARE)
    await asyncio.get_running_loop().create_future()


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return how soon systemd wants to hear from this process, seconds; 0: never."""
    within_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    ours = not pid or pid == str(os.getpid())
    return int(within_us) / 1e6 if ours and within_us.isascii() and within_us.isdigit() else 0.0


def hold_hangups() -> None:
    """Let a SIGHUP wait until :func:`heed_signals`, instead of ending the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def heed_signals(
    loop: AbstractEventLoop, stop: Callable[[], None], reload: Callable[[], None]
) -> None:
    """
    Install handlers: SIGTERM and SIGINT call ``stop`` in the loop, SIGHUP calls ``reload``.

    After the first two the process ends in time; a SIGHUP that came before counts.
    """
    loop.add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def end() -> None:
        end_within(END_S, loop)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


def end_within(limit_s: float, loop: AbstractEventLoop) -> None:
    """
    End the process at once if it has not ended by itself after ``limit_s`` seconds.

    It logs what the process was waiting for (a silent store, say).

    Nothing is lost by it that a kill would not lose: what must last is on disk before it counts.
    """

    def give_up() -> None:
        waiting = sorted(
            {
                getattr(task.get_coro(), "__qualname__", task.get_name())
                for task in asyncio.all_tasks(loop)
            }
        )
        log.error(
            "not ended within %g s of being told to; ending at once. Still under way: %s",
            limit_s,
            ", ".join(waiting),
        )
        os._exit(1)

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()


def keep_files_private() -> None:
    """Let no other user of the host read the files that this process and its children make."""
    os.umask(0o077)


def keep_memory_private() -> None:
    """
    Forbid core dumps, and other processes of this user to read its memory.

    Keys and tokens are in there.

    What it starts is not hindered: a program that is executed begins anew, but for the limit of its
    core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Linux's; a handler of cores that is a pipe ignores the limit
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
