"""States and links of consents are used up once, for all nodes, and remembered for a while."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg

KEEP_MS, MOST = 60_000, 3


@pytest.fixture(autouse=True)
def empty(desk: Any) -> None:
    desk.client.flushdb()
    if desk.views:
        desk.set_view(1)


def claim(desk: Any, state: str, link: str = "l:1", keep_ms: int = KEEP_MS) -> list[bytes]:
    *found, age_ms = desk.run("tokens.connect_claim", state, link, keep_ms, MOST)
    assert age_ms == 0 or found[0] == b"USED"
    return list(found)


def end(desk: Any, state: str, said: str, link: str = "l:1") -> int:
    return int(desk.run("tokens.connect_end", state, link, said))


def kept(desk: Any) -> set[bytes]:
    names = desk.client.hkeys(f"{desk.prefix}:connect_said")
    assert set(names) == set(desk.client.zrange(f"{desk.prefix}:connect_claims", 0, -1))
    return set(names)


def test_a_state_is_used_up_once_and_tells_how_it_ended(desk: Any) -> None:
    assert claim(desk, "s:1") == [b"NEW", b""]
    assert claim(desk, "s:1") == [b"USED", b""]
    assert end(desk, "s:1", "denied") == 1
    assert claim(desk, "s:1") == [b"USED", b"denied"]
    assert claim(desk, "s:2") == [b"NEW", b""]


def test_it_is_known_how_long_ago_a_state_was_used_up(desk: Any) -> None:
    claim(desk, "s:1")
    desk.now += 1234
    assert desk.run("tokens.connect_claim", "s:1", "l:1", KEEP_MS, MOST) == [b"USED", b"", 1234]
    end(desk, "s:1", "denied")
    desk.now += 1
    found = desk.run("tokens.connect_claim", "s:1", "l:1", KEEP_MS, MOST)
    assert found == [b"USED", b"denied", 1235]


def test_a_link_serves_until_one_of_its_states_is_done(desk: Any) -> None:
    for state in ("s:1", "s:2"):
        assert claim(desk, state) == [b"NEW", b""]
    assert end(desk, "s:1", "refused") == 1
    assert end(desk, "s:2", "done") == 1
    assert claim(desk, "s:3") == [b"DONE", b""]
    assert claim(desk, "s:2") == [b"USED", b"done"]
    assert claim(desk, "s:3", "l:2") == [b"NEW", b""]


def test_a_link_uses_up_so_many_states(desk: Any) -> None:
    for number in range(MOST):
        assert claim(desk, f"s:{number}") == [b"NEW", b""]
    assert claim(desk, "s:more") == [b"SPENT", b""]
    assert len(kept(desk)) == MOST + 1


def test_what_is_over_is_forgotten(desk: Any) -> None:
    for number in range(300):
        claim(desk, f"s:{number}", f"l:{number}")
    desk.now += KEEP_MS - 1
    assert claim(desk, "s:0", "l:0") == [b"USED", b""]
    desk.now += 1
    before = len(kept(desk))
    for number in range(10):
        assert claim(desk, f"n:{number}", "l:new", KEEP_MS)[0] in (b"NEW", b"SPENT")
    assert len(kept(desk)) <= before - 600 + MOST + 1
    assert end(desk, "s:0", "done", "l:0") == 0
    assert not {b"s:0", b"l:0"} & kept(desk)


def test_a_link_that_is_used_on_is_remembered_on(desk: Any) -> None:
    claim(desk, "s:1")
    desk.now += KEEP_MS - 1
    claim(desk, "s:2")
    desk.now += 1
    assert claim(desk, "s:3") == [b"NEW", b""]
    assert kept(desk) == {b"s:2", b"s:3", b"l:1"}
    assert claim(desk, "s:4") == [b"SPENT", b""], "what was used up before still counts"


def test_arguments_that_make_no_sense_change_nothing(desk: Any) -> None:
    for args in (("s", "l", 0, 1), ("s", "l", "x", 1), ("s", "l", 1, 0)):
        with pytest.raises(BadArg):
            desk.run("tokens.connect_claim", *args)
    assert not kept(desk)
