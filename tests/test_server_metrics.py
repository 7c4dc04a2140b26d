"""Prometheus text from stats."""

from __future__ import annotations

from tidewarden.server.metrics import render


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
