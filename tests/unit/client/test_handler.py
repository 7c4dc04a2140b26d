"""What becomes of a handler's exceptions: decided without a worker."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.client.handler import Handler
from tidewarden.errors import BadArg


class Callable_:
    async def __call__(self, task: Any) -> None:
        """An object that is called, and waits."""


async def function(task: Any) -> None:
    """A handler."""


def test_the_nearest_class_decides() -> None:
    handler = Handler(
        "q", print, None, {Exception: 1, OSError: 2, ConnectionError: 3}, (ValueError,)
    )
    assert handler.verdict(ConnectionResetError(), 1) == ("fail", 3)
    assert handler.verdict(TimeoutError(), 1) == ("fail", 2)
    assert handler.verdict(KeyError(), 1) == ("fail", 1)
    assert handler.verdict(UnicodeError(), 1) == ("bury", None)


def test_without_an_entry_the_tasks_own_backoff_holds() -> None:
    assert Handler("q", print).verdict(KeyError(), 1) == ("fail", None)
    assert Handler("q", print, None, {OSError: 2}).verdict(KeyError(), 1) == ("fail", None)


def test_a_function_is_asked_with_the_attempt() -> None:
    handler = Handler("q", print, None, lambda error, attempt: attempt * 100)
    assert handler.verdict(KeyError(), 3) == ("fail", 300)


@pytest.mark.parametrize("wrong", ["soon", -1, 0.5])
def test_a_pause_is_a_number_of_milliseconds(wrong: Any) -> None:
    with pytest.raises(BadArg, match="the backoff of q for KeyError is"):
        Handler("q", print, None, lambda error, attempt: wrong).verdict(KeyError(), 1)


def test_where_it_runs() -> None:
    assert Handler("q", function).is_async
    assert Handler("q", Callable_()).is_async
    assert not Handler("q", print).is_async
