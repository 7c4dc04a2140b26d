"""Prometheus text from stats."""

from __future__ import annotations

from tidewarden.server.metrics import HELP, render


def test_numbers_become_series_and_the_rest_is_left_out() -> None:
    text = render(
        [
            (
                "queue",
                {"queue": 'a"\n'},
                {"ready": 1, "puts_total": 2, "order": "bands", "by-state": {"x": 1, "y": "z"}},
            ),
            ("queue", {"queue": "b"}, {"ready": 3, "paused": True, "count_acked": 5}),
        ]
    ).decode()
    assert "# TYPE tidewarden_queue_ready gauge" in text
    assert "# TYPE tidewarden_queue_puts_total counter" in text
    assert 'tidewarden_queue_ready{queue="a\\"\\n"} 1.0' in text
    assert 'tidewarden_queue_ready{queue="b"} 3.0' in text
    assert 'tidewarden_queue_paused{queue="b"} 1.0' in text
    assert 'tidewarden_queue_by_state{kind="x",queue="a\\"\\n"} 1.0' in text
    assert 'tidewarden_queue_acked_total{queue="b"} 5.0' in text
    assert "bands" not in text
    assert text.count("# TYPE tidewarden_queue_ready") == 1


def test_one_name_with_and_without_kinds() -> None:
    text = render([("a", {}, {"x": 1}), ("a", {}, {"x": {"k": 2}})]).decode()
    assert "tidewarden_a_x 1.0" in text


def test_milliseconds_are_seconds_and_none_is_no_sample() -> None:
    stats = {"next_ms": 1_795_299_013_777, "oldest_ready_deadline_ms": -1, "paused_until_ms": 0}
    text = render([("queue", {"queue": "q"}, stats)]).decode()
    assert 'tidewarden_queue_next_seconds{queue="q"} 1.795299013777e+09' in text
    assert 'tidewarden_queue_paused_until_seconds{queue="q"} 0.0' in text
    assert "oldest_ready_deadline" not in text
    assert "_ms" not in text


def test_help_says_what_a_figure_is() -> None:
    assert "# HELP tidewarden_queue_ready Tasks that can be taken" in render([("queue", {}, {"ready": 1})]).decode()
    assert all(name.startswith("tidewarden_") and not name.endswith("_ms") for name in HELP)
