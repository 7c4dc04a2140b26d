"""
Rubbish in any argument of any script: an error or an answer, and whenever it is refused nothing has
changed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidewarden.errors import BadArg, Error, Stale, TooBig

RUBBISH = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1", "1001", "-", "abc", "1.5", "1e3", "0x10", " 1", "1 ", "+1", "--1", "nan", "inf", "-inf", "4398046511104",
         "9007199254740991", "9007199254740992", "9" * 400, "%d", "a b", "a\nb", "{}", "edf", "keep", "ready", "n0.1", "release"]
    ),
    st.integers(min_value=-(2**70), max_value=2**70).map(str),
    st.binary(max_size=20),
)  # fmt: skip
UUID = "0123456789abcdef" * 2
GOOD: dict[str, list[list[str]]] = {
    "put": [["new", "", "x"], ["new", "1 5 0 0 50 0 0 0 0 keep", "x"], ["ready1", "0 0 0 0 50 0 0 0 0 replace", "y"],
            ["new", "0 0 0 0 50 0 0 0 0 keep 500w", "x"]],
    "take": [["200", "1", "0", "0", ""], ["200", "1", "0", "1", "ready1"], ["1", "5", "100", "0", "", "1", "0", "1", ""],
             ["1", "1", "0", f"1{UUID}", ""]],
    "ack": [["ready1", "5", ""], ["leased1", "LEASE", "fine"]],
    "wait": [["ready1", "1"], ["leased1", "0", "none", "1"], ["buried1", "1"]],
    "unwait": [["ready1"]],
    "purge": [["ready", "10"], ["buried", "1", "buried1"], ["leased", "5"]],
    "release_all": [["10"], ["10", "n0.1"]],
    "check_record": [["1"]],
    "check": [["tasks", "0", "100", "1"], ["ready:20", "0", "5", "0"], ["held", "0", "5", "1"]],
    "read_buried": [["10", "100", "0", "", "0", "0"], ["1", "5", "0", "b", "0", "7"],
                    ["1", "5", "0", "", "0", "0", "0", "buried1", "none"]],
    "reasons": [["10", "0"], ["10", "0", "5"]],
    "put_again": [["buried1", "p", "0"], ["ready1", "p", "5"]],
    "delete_buried": [["5", "", "b", "0", "0", "0", "1"], ["5", "", "", "0", "0", "0", "0", "buried1", "none"]],
    "end": [["leased1", "LEASE", "fail", "-1", "why"], ["leased1", "LEASE", "bury", "-1", ""]],
    "touch": [["leased1", "LEASE", "0"]],
    "lock_acquire": [["lock", "=k", "100", "1", "0", ""], ["lock", "=k", "100", "1", "1", UUID, "lock", "=x", "5", "0", "1", ""]],
    "lock_renew": [["lock", "5", "100"], ["lock", "5", "1", "other", "6", "1"]],
    "lock_release": [["lock", "5"]],
    "kick": [["1", "", "", "0"], ["1", "buried1", "", "0"], ["5", "", "b", "0", "1700000000000", "0"], ["5", "", "", "0", "0", "0"],
             ["5", "", "", "0", "0", "0", "1", "buried1", "none"]],
    "update": [["ready1", "1", "p", "0", "0", "0", "0", "-1", "0"], ["leased1", "0", "", "1", "5", "2", "5", "3", "LEASE"]],
    "delete": [["ready1", "0", "0"], ["leased1", "LEASE", "0"]],
    "pause": [["1000"], ["-1"], ["0"]],
    "configure": [["lease_ms", "5"], ["order", "bands", "urgent_ms", "7"], ["history", "3"]],
    "peek": [["id", "ready1", ""], ["ready", "10", ""], ["leased", "1", "leased:n0.1 5 a"], ["leased", "5", "", "1"],
             ["ids", "5", "", "", "ready1", "buried1"], ["buried", "5", "", "2"]],
    "stats": [[]],
    "sweep": [["1", "10"]],
    "reap": [["1", "n1", "5", "10"]],
    "session_release": [[UUID, "10"], [UUID, "10", "release"]],
}  # fmt: skip


class Shop:
    """A shard with a task in every state, put back as it was after each example that changed it."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.fill()

    def fill(self) -> None:
        desk = self.desk
        desk.client.flushdb()
        if desk.views:
            desk.set_view(1)
        for name in ("ready1", "ready2"):
            desk.put(name, priority=20)
        desk.put("delayed1", delay_ms=60_000)
        desk.put("shared1")
        desk.run("queue.take", 1, 1, 0, f"0{UUID}", "shared1")
        for name in ("leased1", "buried1"):
            desk.put(name, priority=10)
            row = desk.take_one(task_id=name)
            if name == "leased1":
                self.lease = str(row.lease)
            else:
                desk.end(row, "bury", reason="bad")
        self.start = desk.digest()

    def play(self, verb: str, args: list[Any]) -> None:
        args = [self.lease if arg == "LEASE" else arg for arg in args]
        refused = self.refusal(verb, args)
        if refused is None:
            self.desk.audit()
            self.fill()
            return
        assert self.desk.digest() == self.start, (
            f"{verb} {args} was refused ({refused}) and changed something"
        )
        assert type(refused) in (Error, BadArg, Stale, TooBig), f"{verb} {args}: {refused!r}"

    def refusal(self, verb: str, args: list[Any]) -> Error | None:
        try:
            self.desk.run(f"queue.{verb}", *args)
        except Error as error:
            return error
        return None


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_rubbish_changes_nothing(desk: Any, verb: str) -> None:
    shop = Shop(desk)

    @settings(
        max_examples=settings().max_examples // 4, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def play(data: st.DataObject) -> None:
        args: list[Any] = list(data.draw(st.sampled_from(GOOD[verb])))
        how = data.draw(st.sampled_from(["replace", "drop", "add"] if args else ["add"]))
        at = data.draw(st.integers(0, max(0, len(args) - 1)))
        if how == "replace":
            args[at] = data.draw(RUBBISH)
        elif how == "drop":
            del args[at]
        else:
            args.insert(at, data.draw(RUBBISH))
        if verb == "put" and not all(args[1::3]):
            args[0] = "made-by-us"  # without options the id is ours and new, which nobody looks up
        shop.play(verb, args)

    play()


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_what_they_are_made_for_is_no_rubbish(desk: Any, verb: str) -> None:
    for args in GOOD[verb]:
        shop = Shop(desk)
        desk.run(f"queue.{verb}", *[shop.lease if arg == "LEASE" else arg for arg in args])
        desk.audit()


@pytest.mark.parametrize("now", ["", "x", "1 2"])
def test_a_time_that_is_none(desk: Any, now: str) -> None:
    desk.put("a")
    before, desk.now = desk.digest(), now
    with pytest.raises(Error):
        desk.run("queue.take", 200, 1, 0, 0, "")
    assert desk.digest() == before
