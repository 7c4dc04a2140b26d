"""One process that is started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tidewarden.cli.options import CONFIG
from tidewarden.clock import Clock, sleep
from tidewarden.errors import ConfigError
from tidewarden.store.child_process import how_ended, kill_group, start_child, stop_child

from .data_folder import node_environ

RESTART_S = 5.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024

Tell = Callable[[str, str], None]
"""Told of an event: whose, and what."""


class Child:
    """
    Runs one process, again five seconds after it ended, until :meth:`run` is cancelled.

    Args:
        name: what events call it.
        argv: program and arguments.
        output: file that takes what it prints; emptied when it grows beyond 4 MiB.
        ready_url: an address that answers 200 once it serves.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        output: Path,
        tell: Tell,
        clock: Clock,
        *,
        ready_url: str,
        keep_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.argv = argv
        self.output = output
        self.restarts = 0
        self.served = asyncio.Event()
        """Set once it has served for the first time."""
        self.serves = False
        self._tell = tell
        self._clock = clock
        self._ready_url = ready_url
        self._keep_fds = keep_fds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """
        Start it, watch it, start it again.

        Raises: ConfigError: it could not be started, or refused its configuration, at its first
        start; another would not
            change that.
        """
        while True:
            try:
                process = await self._start()
            except OSError as error:  # a full disk, no more processes: later there may be room
                fault = f"could not be started: {error.strerror or error}"
                if not self.served.is_set():
                    raise ConfigError([f"{self.name} {fault}"]) from None
                self._tell(self.name, f"{fault}; it is tried again in {RESTART_S:.0f} s")
                await sleep(self._clock, RESTART_S)
                continue
            self._tell(self.name, f"started, pid {process.pid}")
            returncode = await self._watch(process)
            if returncode == CONFIG and not self.served.is_set():
                raise ConfigError([f"{self.name} {how_ended(returncode)}: {self.last_words()}"])
            said = f": {self.last_words()}" if returncode > 0 else ""
            self._tell(
                self.name, f"{how_ended(returncode)}{said}; it starts again in {RESTART_S:.0f} s"
            )
            await sleep(self._clock, RESTART_S)
            self.restarts += 1

    async def _start(self) -> asyncio.subprocess.Process:
        self.output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.output.open("ab") as file:
            file.truncate(0)
            self._process = await start_child(
                self.argv, output=file, keep_fds=self._keep_fds, environ=node_environ(os.environ)
            )
        return self._process

    async def stop(self, grace_s: float) -> None:
        """End it; cancel :meth:`run` first."""
        if self._process is not None and not await stop_child(self._process, self._clock, grace_s):
            self._tell(self.name, f"did not stop within {grace_s:.0f} s and was killed")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            kill_group(self._process)

    def last_words(self) -> str:
        """Return the end of what the process printed: why it ended, usually."""
        with contextlib.suppress(OSError):
            lines = self.output.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
            return " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"
        return "it said nothing"

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        """Look whether it serves until it ends; returns its exit status."""
        ended = asyncio.ensure_future(process.wait())
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
                while not ended.done():
                    serves, reason = await _answers(http, self._ready_url)
                    if serves != self.serves:
                        self.serves = serves
                        self._tell(
                            self.name,
                            "serves" if serves else f"is not ready{reason and ': '}{reason}",
                        )
                    if serves:
                        self.served.set()
                    self._trim()
                    await either(ended, sleep(self._clock, 1.0 if self.serves else 0.1))
            return ended.result()
        finally:
            self.serves = False
            ended.cancel()

    def _trim(self) -> None:
        with contextlib.suppress(OSError):
            if self.output.stat().st_size > OUTPUT_BYTES_MAX:
                # it was opened for appending: the next line lands at the new end
                os.truncate(self.output, 0)


async def _answers(http: aiohttp.ClientSession, url: str) -> tuple[bool, str]:
    """Return whether the node serves, and why not, if it says so."""
    try:
        async with http.get(url) as answer:
            if answer.status == 200:
                return True, ""
            found = await answer.json()
            return False, str(found.get("reason", "")) if isinstance(found, dict) else ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False, ""


async def either(first: asyncio.Future[Any], second: Coroutine[Any, Any, None]) -> None:
    """Wait until one of the two is over; the second is then dropped, the first is not."""
    other = asyncio.ensure_future(second)
    try:
        await asyncio.wait({first, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()
