"""A long piece of work is done in turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden import clock
from tidewarden.clock import in_turns
from tidewarden.server.resp import encoder

values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.booleans() | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=30,
)


async def test_others_have_their_turn_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "TURN_S", -1.0)  # each piece takes longer
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert [item async for item in in_turns(range(320), 32)] == list(range(320))
    assert turns >= 9
    beside.cancel()


@given(values, st.sampled_from([2, 3]))
def test_what_is_encoded_in_turns_is_what_is_encoded_at_once(value: Any, resp: int) -> None:
    encoder.LONG, before = 2, encoder.LONG
    try:
        assert asyncio.run(encoder.encode_in_turns(value, resp)) == encoder.encode(value, resp)
    finally:
        encoder.LONG = before


@pytest.mark.parametrize("resp", [2, 3])
async def test_maps_and_lists_that_come_piece_by_piece(resp: int) -> None:
    rows = {f"q{n}": {"ready": n} for n in range(5)}

    async def items() -> AsyncIterator[tuple[str, object]]:
        for item in rows.items():
            yield item

    async def parts() -> AsyncIterator[object]:
        for row in rows.values():
            yield row

    assert await encoder.encode_map(items(), resp) == encoder.encode(rows, resp)
    assert await encoder.encode_list(parts(), resp) == encoder.encode(list(rows.values()), resp)
