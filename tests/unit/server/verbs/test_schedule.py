"""S.* and R.STATUS."""

from __future__ import annotations

import pytest
from support.doors import doubles

from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.trigger import Spec

Door = doubles.Door


@pytest.mark.parametrize(
    ("request_", "spec", "task"),
    [
        (("S.PUT", "n", "EVERY", "5000", "mail", "x"), Spec.every(5000), TaskSpec(b"x")),
        (
            (
                "S.PUT",
                "n",
                "cron",
                "0 3 * * *",
                "tz",
                "Europe/Berlin",
                "catchup",
                "all",
                "mail",
                b"\xff",
                "PRIORITY",
                "7",
            ),
            Spec.cron("0 3 * * *", "Europe/Berlin", "all"),
            TaskSpec(b"\xff", priority=7),
        ),
        (
            ("S.PUT", "n", "AT", "1800000000000", "mail", "TZ"),
            Spec.at(1_800_000_000_000),
            TaskSpec(b"TZ"),
        ),
    ],
)
async def test_what_reaches_the_schedules(
    request_: tuple[str | bytes, ...], spec: Spec, task: TaskSpec
) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert await line.line() == b":%d" % 2**41
        assert door.schedules.calls == [("put", "n", spec, "mail", task)]


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (("S.PUT", "n", "EVERY", "5000", "mail"), b"-BADARG"),
        (("S.PUT", "n", "NEVER", "5000", "mail", "x"), b"-BADARG"),
        (("S.PUT", "n", "EVERY", b"\xff", "mail", "x"), b"-BADARG"),
        (("S.PUT", "n", "CRON", "0 3 * * *", "TZ", "Nowhere/At", "mail", "x"), b"-BADARG"),
        (("S.PUT", "n", "EVERY", "5000", "_mail", "x"), b"-DENIED"),
        (("S.PUT", "n", "EVERY", "5000", "mail", "x", "WAIT", "5"), b"-BADARG"),
        (("S.PAUSE",), b"-BADARG"),
        (("S.RESUME", "n", "n"), b"-BADARG"),
    ],
)
async def test_what_does_not(request_: tuple[str | bytes, ...], word: bytes) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert (await line.line()).startswith(word)
        assert not door.schedules.calls


async def test_pause_and_resume() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("S.PAUSE nightly", "S.RESUME nightly", "S.RUN nightly", "QUIT")
        assert await line.rest() == b"+OK\r\n:7\r\n$13\r\nnightly:run:1\r\n+OK\r\n"
        assert door.schedules.calls == [
            ("pause", "nightly"), ("resume", "nightly"), ("run", "nightly"),
        ]  # fmt: skip


async def test_list_delete_and_status() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("S.LIST", "S.DELETE nightly", "S.DELETE other", "R.STATUS", "QUIT")
        found = await line.rest()
        assert found.startswith(
            b"*1\r\n*4\r\n$4\r\nname\r\n$7\r\nnightly\r\n$7\r\nnext_ms\r\n:5\r\n:1\r\n:0\r\n*18\r\n"
        )
