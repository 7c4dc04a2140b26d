"""``tidewarden lock …``: look at locks, break one, and run a command while holding one."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .connection import (
    Broken,
    NodeError,
    NodeLine,
    Refused,
    addresses,
    connected,
    dial,
    said,
)
from .options import DATA_DIR, NOTHING, REFUSED, AsJson, DataDir, Url, stop
from .output import moment, print_answer, print_json, print_map, print_table

app = typer.Typer(help="Look at locks, and run a command while holding one.", no_args_is_help=True)
COLUMNS = ("name", "fence", "node", "lease ends (UTC)")
PAGE = 1000
KILL_AFTER_S = 10.0
RENEW_S = 1.0  # at most, so that a broken connection is noticed within the grace
SILENCE_S = 2.0  # a node that answers a renewal no sooner is left for another
GRACE_MS = 5000
LOOK_S = 0.2
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it
Name = Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.")]


class HeldLock:
    """Holds a lock under a session; a thread renews it."""

    def __init__(self, join: Callable[[], NodeLine], name: str, fence: int, lease_ms: int) -> None:
        from tidewarden.clock import SystemClock  # asyncio comes with it

        self._join = join
        self._node: NodeLine | None = join()
        self._words = (name, fence, lease_ms)
        self._lease_s = lease_ms / 1000
        self._clock = SystemClock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew_on, daemon=True)
        self._trouble = "it could not be renewed in time"
        self.fence = fence
        self.until = 0.0
        self.lost = ""
        self._renew()  # it was granted at some moment of a long wait; this one is known

    def _renew(self) -> None:
        if self._node is None:
            self._node = self._join()
        sent = self._clock.monotonic()
        try:
            self._node.call("L.RENEW", *self._words)
        except Broken:
            self._node.close()
            self._node = None
            raise
        self.until = sent + self._lease_s

    def _renew_on(self) -> None:
        pause_s = usual_s = min(self._lease_s / 3, RENEW_S)
        while not self.lost and not self._done.wait(pause_s):
            try:
                self._renew()
                pause_s = usual_s
            except Refused as error:
                if str(error).startswith(("NOTHELD", "NOTFOUND")):
                    self.lost = str(error)  # the hold has ended, or the session
                # another error: the store is away, say, and time is left
                self._trouble = str(error)
            except NodeError as error:
                self._trouble = f"the connection broke: {error}"
                pause_s = 0.0 if pause_s else RENEW_S / 4  # once at once

    def check(self) -> bool:
        """
        Tell whether the lock is surely held for another sixth of the lease.

        So there is time to stop.
        """
        if not self.lost and self.until - self._lease_s / 6 <= self._clock.monotonic():
            self.lost = self._trouble
        return not self.lost

    def start(self) -> None:
        """Renew from now on."""
        self._thread.start()

    def end(self) -> None:
        """Release it, if it is held."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)
        if self._node is not None and not self._thread.is_alive():
            try:
                if not self.lost:
                    self._node.call("L.RELEASE", *self._words[:2])
            except NodeError as error:
                self.lost = said(error)
            self._node.close()


@app.command("run")
def run(
    name: Name,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="What to run, with its arguments.")
    ],
    lease_ms: Annotated[
        int,
        typer.Option(
            "--lease-ms", min=100, help="Hold it so long at a time; it is renewed in time."
        ),
    ] = 30_000,
    wait_ms: Annotated[
        int,
        typer.Option(
            "--wait-ms", min=0, help="Wait so long for it; 0: not at all.", show_default="an hour"
        ),
    ] = 3_600_000,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: Annotated[
        bool, typer.Option("--json", help="Tell of the lock with JSON on standard error.")
    ] = False,
) -> None:
    """
    Run a command while holding a lock, as flock does on one machine.

    Exit code: the command's own; 5 when the lock was not free in time.

    The command finds the fence number in TIDEWARDEN_FENCE: hand it to what it writes to. A broken
    connection is made again, to another node where there are several. When the lock is lost all the
    same, the command gets SIGTERM, SIGKILL ten seconds later, and the exit code is 1.

    Example: tidewarden lock run nightly-report --wait-ms 0 -- make report
    """
    with connected(url, data_dir) as node:
        wait = ("WAIT", wait_ms) if wait_ms else ()
        session = node.call("SESSION", "GRACE", GRACE_MS)
        fence = node.call("L.ACQUIRE", name, lease_ms, *wait, "KEY", secrets.token_hex(8))
        if fence is None:
            raise stop(f"the lock {name!r} was not free in time", NOTHING)
        join = functools.partial(
            _joined, addresses(url, data_dir), session, min(lease_ms / 3000, SILENCE_S)
        )
        hold = HeldLock(join, name, int(fence), lease_ms)
        try:
            _told(as_json, "acquired", name, hold)
            code = _run(command, hold, name)
        finally:
            hold.end()
        if hold.lost:
            _told(as_json, "lost", name, hold)
            raise stop(f"the lock {name!r} was lost while the command ran: {hold.lost}", REFUSED)
        _told(as_json, "released", name, hold)
        raise typer.Exit(code)


@app.command("list")
def list_(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    List the locks that are held.

    Example: tidewarden lock list --json
    """
    locks: list[dict[str, Any]] = []
    with connected(url, data_dir) as node:
        cursor = ""
        while True:
            page, cursor = node.call(
                "L.LIST", "COUNT", PAGE, *(("AFTER", cursor) if cursor else ())
            )
            locks += page
            if not cursor:
                break
    if as_json:
        print_json(locks)
    elif not locks:
        raise stop("no lock is held", NOTHING)
    else:
        print_table(
            COLUMNS,
            [
                [lock.get(field) for field in ("name", "fence", "node")]
                + [moment(lock.get("lease_end_ms"))]
                for lock in locks
            ],
        )


@app.command("show")
def show(
    name: Name, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Show who holds a lock, and its fence number.

    Example: tidewarden lock show nightly-report
    """
    with connected(url, data_dir) as node:
        lock = node.call("L.PEEK", name)
    if as_json:
        print_json(lock)
    else:
        print_map(lock)


@app.command("release")
def release(
    name: Name,
    fence: Annotated[
        int, typer.Argument(metavar="FENCE", min=0, help="The fence number it is held under.")
    ],
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Release a lock under its fence number, whoever holds it; the next waiter gets it.

    Its holder hears of that when it renews or releases, so make sure that it has stopped.

    Example: tidewarden lock release nightly-report 137438953473
    """
    with connected(url, data_dir) as node:
        node.call("L.RELEASE", name, fence)
    print_answer(as_json, {"ok": True}, "OK")


def _joined(nodes: Sequence[str], session: str, silence_s: float) -> NodeLine:
    """
    Return a connection that has joined the session, to the first node that lets it.

    Raises: NodeError: the last one's.
    """
    trouble: NodeError = Broken("there is no node")
    for address in nodes:
        try:
            line = dial(address, silence_s)
        except NodeError as error:
            trouble = error
            continue
        try:
            line.call("SESSION", session)
            return line
        except NodeError as error:
            trouble = error
            line.close()
    raise trouble


def _run(command: list[str], hold: HeldLock, name: str) -> int:
    """Run ``command`` under ``hold``; its exit code."""
    environ = {**os.environ, "TIDEWARDEN_LOCK": name, "TIDEWARDEN_FENCE": str(hold.fence)}
    try:
        child = subprocess.Popen(command, env=environ)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        raise stop(f"{command[0]!r} cannot be run: {error.strerror}", code) from None
    with _signals_to(child):
        hold.start()
        while True:
            try:
                code = child.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if not hold.check():
                    return _end(child)
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        return child.wait(KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


@contextmanager
def _signals_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """
    Pass signals that would end us to the command, whose end ends us.

    A terminal's Ctrl-C reaches the command by itself.
    """
    former = {
        number: signal.signal(number, lambda number, _: child.send_signal(number))
        for number in FORWARDED
    }
    former[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _told(as_json: bool, event: str, name: str, hold: HeldLock) -> None:
    if as_json:
        print_json({"lock": name, "event": event, "fence": hold.fence}, err=True)
