"""Names of tubes and of queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.rights import Rights
from tidewarden.queue.task import check_name
from tidewarden.server.beanstalkd.tube_names import is_tube, queue_of, tube_of

TUBES = st.text("aZ9-+/;.$_()", min_size=1, max_size=60).filter(is_tube)
QUEUES = st.text("aZ9_.:/-pdlrsuo", min_size=1, max_size=60)


@given(TUBES)
def test_every_tube_has_a_queue_of_its_own(tube: str) -> None:
    queue = queue_of(tube)
    assert queue is not None
    assert check_name(queue) == queue
    assert not queue.startswith("_")
    assert tube_of(queue) == tube


@given(QUEUES)
def test_a_queue_has_one_tube_or_none(queue: str) -> None:
    tube = tube_of(queue)
    assert tube is None or (is_tube(tube) and queue_of(tube) == queue)


@pytest.mark.parametrize(
    ("tube", "queue"),
    [
        ("default", "default"),
        ("mail;out", "mail:out"),
        ("a/b.c_d-e", "a/b.c_d-e"),
        ("_locks", ":-ulocks"),
        (".", ":-o"),
        ("..", ":-o:-o"),
        (".x", ".x"),
        ("a+b$(c)", "a:-pb:-d:-lc:-r"),
        (";-", ":-s-"),
        (";;a", "::a"),
    ],
)
def test_how_names_are_written(tube: str, queue: str) -> None:
    assert (queue_of(tube), tube_of(queue)) == (queue, tube)


@pytest.mark.parametrize("queue", ["_locks", "-a", "a:-x", "a:-", "a:-p" + "b" * 197])
def test_queues_without_a_tube(queue: str) -> None:
    found = tube_of(queue)
    assert found is None or len(queue) > 200


def test_a_tube_may_be_too_long_for_a_queue() -> None:
    assert queue_of("a" * 200) == "a" * 200
    assert queue_of("+" * 67) is None
    assert not is_tube("a" * 201)
    assert not is_tube("-a")
    assert not is_tube("")


def test_rights_are_those_of_the_queue() -> None:
    assert Rights(("take:mail:*",)).allow("take", queue_of("mail;out") or "")
