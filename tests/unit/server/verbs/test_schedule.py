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
        (("S.GET", "n", "5"), b"-BADARG"),
        (("S.GET", "n", "COUNT", "many"), b"-BADARG"),
        (("S.NEXT", "5"), b"-BADARG"),
        (("S.RUN", "n", "ID", ""), b"-BADARG"),
        (("S.RUN", "n", "ID", b"\xff"), b"-BADARG"),
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
            ("pause", "nightly"), ("resume", "nightly"), ("run", "nightly", ""),
        ]  # fmt: skip


async def test_one_schedule_and_what_all_will_put() -> None:
    async with Door() as door:
        line = await door.dial()
        assert await line.call("S.GET", "nightly", "count", "1") == [
            b"name", b"nightly", b"next_ms", 5, b"next", [5],
        ]  # fmt: skip
        assert (await line.call("S.GET", "nightly"))[-1] == [5, 10]
        assert str(await line.call("S.GET", "other")).startswith("NOTFOUND")
        found = await line.call("S.NEXT", "MS", "60000")
        told = dict(zip(found[::2], found[1::2], strict=True))
        assert [one[1] for one in told[b"ticks"]] == [b"daily", b"nightly"]
        assert [one[1] for one in told[b"rates"]] == [b"pulse"]
        assert (told[b"from_ms"], told[b"until_ms"], told[b"resting"]) == (1, 60_001, 0)
        assert await line.call("S.RUN", "nightly", "ID", "r1") == b"nightly:run:r1"
        assert door.schedules.calls == [
            ("get", "nightly", 1), ("get", "nightly", 5), ("get", "other", 5),
            ("outlook", 60_000), ("run", "nightly", "r1"),
        ]  # fmt: skip


async def test_list_delete_and_status() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("S.LIST", "S.DELETE nightly", "S.DELETE other", "R.STATUS", "QUIT")
        found = await line.rest()
        assert found.startswith(
            b"*1\r\n*4\r\n$4\r\nname\r\n$7\r\nnightly\r\n$7\r\nnext_ms\r\n:5\r\n:1\r\n:0\r\n*18\r\n"
        )
