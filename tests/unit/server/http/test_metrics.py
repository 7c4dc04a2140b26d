"""Prometheus text from stats."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence

import pytest
from support.manual_clock import ManualClock

from tidewarden.histograms import QUICK_S
from tidewarden.server.answered_requests import AnsweredRequests
from tidewarden.server.http import metrics
from tidewarden.server.http.metrics import HELP, Sample
from tidewarden.server.stats_merge import add_up


async def rendered(samples: Sequence[Sample]) -> str:
    return b"".join(await metrics.render(list(samples), ManualClock())).decode()


async def test_numbers_become_series_and_the_rest_is_left_out() -> None:
    text = await rendered(
        [
            (
                "queue",
                {"queue": 'a"\n'},
                {"ready": 1, "puts_total": 2, "order": "bands", "by-state": {"x": 1, "y": "z"}},
            ),
            ("queue", {"queue": "b"}, {"ready": 3, "paused": True, "count_acked": 5}),
        ]
    )
    assert "# TYPE tidewarden_queue_ready gauge" in text
    assert "# TYPE tidewarden_queue_puts_total counter" in text
    assert 'tidewarden_queue_ready{queue="a\\"\\n"} 1.0' in text
    assert 'tidewarden_queue_ready{queue="b"} 3.0' in text
    assert 'tidewarden_queue_paused{queue="b"} 1.0' in text
    assert 'tidewarden_queue_by_state{kind="x",queue="a\\"\\n"} 1.0' in text
    assert 'tidewarden_queue_acked_total{queue="b"} 5.0' in text
    assert "bands" not in text
    assert text.count("# TYPE tidewarden_queue_ready") == 1


async def test_one_name_with_and_without_kinds() -> None:
    text = await rendered([("a", {}, {"x": 1}), ("a", {}, {"x": {"k": 2}})])
    assert "tidewarden_a_x 1.0" in text


async def test_milliseconds_are_seconds_and_none_is_no_sample() -> None:
    stats = {"next_ms": 1_795_299_013_777, "oldest_ready_deadline_ms": -1, "paused_until_ms": 0}
    text = await rendered([("queue", {"queue": "q"}, stats)])
    assert 'tidewarden_queue_next_seconds{queue="q"} 1.795299013777e+09' in text
    assert 'tidewarden_queue_paused_until_seconds{queue="q"} 0.0' in text
    assert "oldest_ready_deadline" not in text
    assert "_ms" not in text


async def test_help_says_what_a_figure_is() -> None:
    assert "# HELP tidewarden_queue_ready Tasks that can be taken" in await rendered(
        [("queue", {}, {"ready": 1})]
    )
    assert all(name.startswith("tidewarden_") and not name.endswith("_ms") for name in HELP)


async def test_every_figure_of_tokens_is_described() -> None:
    """One without a line in HELP would be described by its own name."""
    kinds, done = ("refreshes", "revocations", "events", "webhooks"), {("p", "ok"): 1}
    counts = {name: {"p": 1} for name in metrics.TOKEN_NUMBERS} | dict.fromkeys(kinds, done)
    stats = {"p": {"state": "answers", "intents": 1, "spares": 1, "fresh": 1}}
    text = await rendered(metrics.of_tokens(stats, counts))
    told = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert len(told) == 27
    assert told <= HELP.keys()


async def test_a_thousand_queues_are_written_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Each turn adds so many samples, or writes so many series; together they are what one turn would
    have written.
    """
    turns = 0

    class Turns(ManualClock):
        async def sleep_until(self, until: float) -> None:
            nonlocal turns
            turns += 1

    kinds = {"a": 1, "b": 2}
    samples: list[Sample] = [
        ("queue", {"queue": f"q{n}"}, {"ready": n, "puts_total": 2 * n, "kinds": kinds})
        for n in range(1000)
    ]
    found = b"".join(await metrics.render(list(samples), Turns())).decode()
    assert turns >= 1000 // metrics.SAMPLES_A_TURN + 4 * 1000 // metrics.LINES_A_TURN
    assert found.count("# TYPE") == 3
    assert found.count("# HELP") == 3
    monkeypatch.setattr(metrics, "LINES_A_TURN", 1_000_000)
    monkeypatch.setattr(metrics, "SAMPLES_A_TURN", 1_000_000)
    assert found == await rendered(samples)
    assert found.count("\n") == 4 * 1000 + 6


@pytest.mark.thorough
async def test_a_scrape_makes_little_that_the_cycle_collector_looks_through() -> None:
    """It runs after so many objects, in one turn: of each series of 10,000 queues it took 100 ms."""
    names = [f"figure{n}" for n in range(20)]
    samples: list[Sample] = [
        ("queue", {"queue": f"q{n}"}, dict.fromkeys(names, n)) for n in range(150)
    ]
    most = 0

    class Looks(ManualClock):
        async def sleep_until(self, until: float) -> None:
            nonlocal most
            most = max(most, len(gc.get_objects(generation=0)))

    gc.collect()
    gc.disable()  # All that is made meanwhile stays in the youngest generation.
    try:
        assert sum(map(len, await metrics.render(samples, Looks()))) > 100_000
    finally:
        gc.enable()
    assert 0 < most < 1000


async def test_a_long_text_is_handed_out_in_parts_a_turn_each() -> None:
    turns: list[float] = []

    class Turns(ManualClock):
        async def sleep_until(self, until: float) -> None:
            turns.append(until)

    pieces = [bytes([65 + n % 26]) * (n * 7919 % 20_000) for n in range(300)]
    parts = [one async for one in metrics.in_parts(list(pieces), Turns())]
    assert b"".join(parts) == b"".join(pieces)
    assert len(turns) == len(parts) > sum(map(len, pieces)) // (2 * metrics.PART_BYTES)
    assert max(map(len, parts)) < metrics.PART_BYTES + max(map(len, pieces))


async def test_histograms_are_prometheus_own_and_added_up() -> None:
    doors = [AnsweredRequests("resp"), AnsweredRequests("resp"), AnsweredRequests("http")]
    for door, seconds in zip(doors, (0.0004, 0.25, 99.0), strict=True):
        door.note(None, "Q.PUT", b"q", "127.0.0.1", 0, 1, "", seconds)
    text = await rendered([("resp", {}, add_up(*(door.stats() for door in doors[:2])))])
    name = "tidewarden_request_duration_seconds"
    assert text.count(f"# TYPE {name} histogram") == 1
    assert f"# HELP {name} Time from a request's turn" in text
    buckets = re.findall(r'_bucket\{door="resp",le="([^"]+)",verb="Q.PUT"\} (\S+)', text)
    assert [le for le, _ in buckets] == [*map(str, QUICK_S), "+Inf"]
    counts = dict(buckets)
    assert [counts[le] for le in ("0.00025", "0.0005", "0.1", "0.25", "+Inf")] == [
        "0.0",
        "1.0",
        "1.0",
        "2.0",
        "2.0",
    ]
    assert f'{name}_count{{door="resp",verb="Q.PUT"}} 2.0' in text
    assert f'{name}_sum{{door="resp",verb="Q.PUT"}} 0.2504' in text
    both = await rendered([("resp", {}, doors[0].stats()), ("http", {}, doors[2].stats())])
    assert both.count(f"# TYPE {name} histogram") == 1
    assert f'{name}_bucket{{door="http",le="30.0",verb="Q.PUT"}} 0.0' in both
    assert f'{name}_bucket{{door="http",le="+Inf",verb="Q.PUT"}} 1.0' in both
