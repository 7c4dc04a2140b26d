"""What the doors ask of the rooms behind them is what those rooms offer."""

from __future__ import annotations

import inspect

import pytest

from tidewarden.queue.queues import Queues
from tidewarden.scheduler.schedules import Schedules
from tidewarden.server import parts
from tidewarden.tokens import Tokens


@pytest.mark.parametrize(
    ("real", "asked"),
    [(Queues, parts.Queues), (Tokens, parts.Tokens), (Schedules, parts.Schedules)],
)
def test_the_real_rooms_take_what_the_doors_hand_in(real: type, asked: type) -> None:
    for name, method in inspect.getmembers(asked, inspect.isfunction):
        if name.startswith("_"):
            continue
        offered = inspect.signature(getattr(real, name)).parameters
        for parameter in inspect.signature(method).parameters.values():
            assert parameter.name in offered, f"{real.__name__}.{name} has no {parameter.name}"
