"""How late tasks are taken and how long they are held, as the node's histograms count it."""

from __future__ import annotations

from typing import Any

from tidewarden.histograms import Family
from tidewarden.queue import TaskSpec


def counted(family: Family) -> dict[str, float]:
    """How many durations each series of a family has."""
    (told,) = family.stats().values()
    return {
        labels: sum(count for le, count in one.items() if le != "sum")
        for labels, one in told.items()
    }


async def test_a_first_take_is_late_by_the_stores_clock_and_each_end_is_counted(node: Any) -> None:
    n = await node()
    queues, session = n.queues, n.queues.open_session()
    for name in ("ack", "fail", "bury", "release"):
        await queues.put("q", TaskSpec(b"", id=name))
    tasks = {task.id: task for task in await queues.take(session, ["q"], count=4)}
    times = queues.consumer.times
    assert counted(times.lateness) == {"user": 4}
    assert all(task.due_ms > 0 for task in tasks.values())
    await queues.ack(session, "q", [("ack", tasks["ack"].lease)])
    await queues.fail(session, "q", "fail", tasks["fail"].lease, delay_ms=0)
    await queues.bury(session, "q", "bury", tasks["bury"].lease)
    await queues.release(session, "q", "release", tasks["release"].lease)
    assert counted(times.held) == {"ack": 1, "fail": 1, "bury": 1, "release": 1}
    again = {task.id: task for task in await queues.take(session, ["q"], count=4)}
    assert again["fail"].due_ms == 0, "when it was to be tried again is not known"
    assert again["release"].due_ms == tasks["release"].due_ms, "it never was"
    assert counted(times.lateness) == {"user": 5}
    await queues.close_session(session)
    assert sum(counted(times.held).values()) == 4, "what its holder did not end is not counted"
