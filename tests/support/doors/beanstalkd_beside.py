"""
The same commands at our door and at a beanstalkd, side by side; nothing of pytest.

Numbers of jobs are compared by which put they came from, and times not at all.
"""

from __future__ import annotations

import asyncio
import difflib
import random
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from support.doors.beanstalkd_site import BeanstalkdSite, Talk

BINARY = shutil.which("beanstalkd")
TUBES = ("default", "a", "b;c", "d+(e)$")
PRIORITIES = (0, 1, 1023, 1024, 65_536, 4_294_967_295)
# which are of the process, of its time, or of jobs' files
UNLIKE = frozenset(
    (
        *("id", "age", "time-left", "file", "pid", "version", "uptime", "hostname", "os"),
        *("rusage-utime", "rusage-stime", "binlog-max-size", "platform", "pause-time-left"),
        "total-connections",
    )
)
BURIED_APART_S = 0.003  # ours tells burials apart by their millisecond


@asynccontextmanager
async def beanstalkd() -> AsyncIterator[int]:
    """A beanstalkd of its own; its port."""
    assert BINARY is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([BINARY, "-l", "127.0.0.1", "-p", str(port)])
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.01)
        writer.close()
        yield port
    finally:
        process.terminate()
        process.wait()


def whoever_left(site: BeanstalkdSite | None) -> Callable[[], Awaitable[None]]:
    """
    A wait until the jobs of whoever hung up are ready again; of a beanstalkd (None) for nothing: it
    reads what has come in its order, so who hung up is gone before who comes then.
    """

    async def settled() -> None:
        context = None if site is None else site.server.context
        while context and (
            context.peers.closing or any(one.half_closed for one in context.peers.connections)
        ):
            await asyncio.sleep(0.001)

    return settled


class Side:
    """One of the two servers: connections to it, and the numbers of its jobs."""

    def __init__(self, port: int, settled: Callable[[], Awaitable[None]]) -> None:
        self.port = port
        self.settled = settled
        self.talks: list[Talk] = []
        self.numbers: list[int] = []

    async def dial(self, place: int) -> None:
        if place < len(self.talks):
            await self.talks[place].close()
            await self.settled()
        talk = Talk(*await asyncio.open_connection("127.0.0.1", self.port))
        self.talks[place : place + 1] = [talk]
        for tube in TUBES:
            await talk.ask(f"watch {tube}")

    async def close(self) -> None:
        for talk in self.talks:
            await talk.close()

    async def do(self, place: int, command: str) -> str:
        """The answer to a command in which ``#n`` is the n-th job; as comparable text."""
        line = re.sub(r"#(\d+)", lambda found: str(self.numbers[int(found[1])]), command)
        words, body = await self.talks[place].body(line)
        text = words.decode()
        if text.startswith("INSERTED "):
            text, _, number = text.partition(" ")
            self.numbers.append(int(number))
        return f"{self._plain(text)}\n{self._plain_body(command, body)}"

    def _plain(self, text: str) -> str:
        found = re.fullmatch(r"(RESERVED|FOUND) (\d+)", text)
        return f"{found[1]} #{self.numbers.index(int(found[2]))}" if found else text

    @staticmethod
    def _plain_body(command: str, body: bytes) -> str:
        text = body.decode()
        if command.startswith("list-tubes"):
            return "\n".join(sorted(text.splitlines()))
        if not command.startswith("stats"):
            return text
        rows = []
        for row in text.splitlines():
            name, _, value = row.partition(":")
            rows.append(name if name in UNLIKE else f"{name}:{value.replace(chr(34), '')}")
        return "\n".join(rows)


OFTEN = {
    24: ("put", "reserve"),
    10: ("release",),
    8: ("delete", "bury", "use", "stats-job"),
    6: ("reserve-job", "stats-tube"),
    5: ("kick", "kick-job"),
    4: ("ignore", "peek", "peek-ready", "peek-delayed", "peek-buried", "unpause"),
    3: ("touch", "watch", "odd"),
    2: ("stats", "pause-tube", "redial"),
    1: ("list-tubes", "list-tubes-watched", "list-tube-used"),
}
KINDS = [kind for kinds in OFTEN.values() for kind in kinds]
WEIGHTS = [weight for weight, kinds in OFTEN.items() for _ in kinds]


class Commands:
    """Draws commands by a seed."""

    def __init__(self, seed: int, places: int) -> None:
        self._random = random.Random(seed)
        self._places = places
        self.put = 0

    def next(self) -> tuple[int, str]:
        """A connection, and what it says; ``redial``: it hangs up and comes again."""
        draw = self._random
        place = draw.randrange(self._places)
        (kind,) = draw.choices(KINDS, WEIGHTS)
        return place, self._said(kind)

    def _said(self, kind: str) -> str:
        draw = self._random
        job = f"#{draw.randrange(self.put)}" if self.put else "4096"
        priority, tube = draw.choice(PRIORITIES), draw.choice(TUBES)
        delay_s = draw.choice((0, 0, 0, 1000, 5000))
        if kind == "put":
            body = "x" * draw.randrange(5)
            self.put += 1
            return f"put {priority} {delay_s} {draw.choice((60, 100, 1000))} {len(body)}\r\n{body}"
        if kind == "reserve":
            return "reserve-with-timeout 0"
        if kind == "release":
            return f"release {job} {priority} {delay_s}"
        if kind == "bury":
            return f"bury {job} {priority}"
        if kind in ("use", "watch", "ignore", "stats-tube"):
            return f"{kind} {tube}"
        if kind == "kick":
            return f"kick {draw.randrange(4)}"
        if kind == "pause-tube":
            return f"pause-tube {tube} {draw.choice((500, 1000))}"
        if kind == "unpause":
            return f"pause-tube {tube} 0"
        if kind == "odd":
            return draw.choice(ODD)
        if kind in ("delete", "touch", "peek", "kick-job", "reserve-job", "stats-job"):
            return f"{kind} {job}"
        return kind


ODD = (
    *("", "nonsense", "put", "put 1 2 3", "put 1 2 3 x", "put -1 0 0 0", "put 0 0 0 70000000000"),
    *("reserve ", "reserve-job", "reserve-job x", "delete", "delete x", "delete 1 ", "touch"),
    *("release 1", "release 1 2", "release 1 2 3 4", "bury 1", "bury 1 2 3", "kick", "kick x"),
    *("kick-job", "peek", "peek x", "peek-readyx", "use", "use -x", "use a b", "watch", "ignore"),
    *("use " + "t" * 201, "stats x", "stats-tube", "stats-tube gone", "stats-job x", "list-tube"),
    *("list-tubes x", "pause-tube", "pause-tube a", "pause-tube gone 0", "pause-tube a x", "Put"),
    *("delete 18446744073709551615", "delete 18446744073709551616", "peek 0", "x" * 300),
    *("reserve-with-timeout 0x", "reserve-with-timeout 99999999999999999999", "kick 0x", "a\0b"),
    *("put 0 0 0 3x", "stats-tube x/y", "ignore nobody", "delete 4095"),
)
"""Lines that are no command, or one that finds nothing."""


async def compare(sides: tuple[Side, Side], seed: int, steps: int, places: int = 3) -> None:
    """Run the commands of a seed at both; they answer the same."""
    commands = Commands(seed, places)
    for side in sides:
        for place in range(places + 1):  # the last one keeps the tubes, and says nothing more
            await side.dial(place)
    said: list[str] = []
    for _ in range(steps):
        place, command = commands.next()
        said.append(f"{place}: {command!r}")
        if command == "redial":
            for side in sides:
                await side.dial(place)
            continue
        answers = [await side.do(place, command) for side in sides]
        unlike = difflib.unified_diff(*(one.splitlines() for one in answers), "ours", "theirs")
        assert answers[0] == answers[1], "\n".join([f"seed {seed}", *said[-40:], *unlike])
        if command.startswith(("bury", "put", "release")):
            await asyncio.sleep(BURIED_APART_S)
