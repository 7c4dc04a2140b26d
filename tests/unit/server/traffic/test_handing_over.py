"""What a further process counts comes to the first one, whole, however often there is no room."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from support.manual_clock import ManualClock

from tidewarden.server.traffic.handing_over import HandingOver
from tidewarden.server.traffic.node_traffic import NodeTraffic, PartsOfProcess
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.server.traffic.tables import Part
from tidewarden.server.traffic.tap import TapFilter, TapNews

PACKET_BYTES = 200_000  # what the kernel takes, about


class Wire:
    """The socket between the two, which has room for so many packets."""

    def __init__(self) -> None:
        self.room = 0
        self.refused = 0
        self.clock = ManualClock()
        self.first = NodeTraffic(Recorder(self.clock), self.clock)
        self.recorder = Recorder(self.clock)
        self.later: list[Callable[[], None]] = []
        self._parts = PartsOfProcess(self.first)
        self.handing_over = HandingOver(
            self.recorder, self.send, lambda _, what: self.later.append(what)
        )
        self.first.recorder.taps.spread = self.handing_over.follow

    def send(self, message: Mapping[str, Any]) -> bool:
        if self.room == 0:
            self.refused += 1
            return False
        self.room -= 1
        packet = msgspec.json.encode(message)
        assert len(packet) < PACKET_BYTES
        found = msgspec.json.decode(packet)
        if "traffic" in found:
            self._parts.hear(msgspec.convert(found["traffic"], Part))
        else:
            self.first.recorder.taps.hear(msgspec.convert(found["tap"], TapNews))
        return True

    def put(self, name: bytes) -> None:
        self.recorder.note("app" * 20, "Q.PUT", name, "10.0.0.1", 100, 20, "", 0.001)


def test_nothing_is_lost_while_there_is_no_room() -> None:
    wire = Wire()
    for round_ in range(40):
        for number in range(60):
            wire.put(b"q%d" % (number % (round_ + 1)) + b"\\" * 150)
        wire.room = round_ % 3
        wire.handing_over.hand_over()
    assert wire.refused > 10
    wire.room = 1000
    for _ in range(2):
        wire.handing_over.hand_over()
    for by in ("request", "user", "verb", "queue", "peer"):
        table, _ = wire.first.seen(by, "start")  # type: ignore[arg-type]
        assert table.totals[:3] == [2400, 240_000, 48_000]
    assert wire.room > 900


def test_an_idle_process_sends_nothing() -> None:
    wire = Wire()
    wire.handing_over.hand_over()
    assert wire.refused == 0


def test_a_tap_of_the_first_process_shows_what_the_further_one_answers() -> None:
    wire = Wire()
    tap = wire.first.recorder.taps.begin(TapFilter(queue="mails"), lambda: None)
    for name in (b"mails", b"bills", b"mails"):
        wire.put(name)
    (tell,) = wire.later
    tell()  # no room: tried again
    assert not tap.lines
    wire.room = 10
    wire.later[-1]()
    assert [json.loads(line)["name"] for line in tap.take()] == ["mails", "mails"]
    assert tap.matched == 2
    wire.put(b"mails")
    wire.later[-1]()
    assert tap.matched == 3
